// The pool of SSM state slots as JavaScript sees it.
#include "memory_arguments.h"
#include "memory_objects.h"

namespace state_handoff {

Napi::Function SsmSlotPoolObject::Define(Napi::Env env) {
  return DefineClass(env, "NativeSsmSlotPool",
                     {
                         InstanceAccessor<&SsmSlotPoolObject::FreeCount>("freeCount"),
                         InstanceMethod<&SsmSlotPoolObject::Allocate>("allocate"),
                         InstanceMethod<&SsmSlotPoolObject::AllocateBatch>("allocateBatch"),
                         InstanceMethod<&SsmSlotPoolObject::Free>("free"),
                         InstanceMethod<&SsmSlotPoolObject::Bind>("bind"),
                         InstanceMethod<&SsmSlotPoolObject::BindDummy>("bindDummy"),
                         InstanceMethod<&SsmSlotPoolObject::Detach>("detach"),
                         InstanceMethod<&SsmSlotPoolObject::FreeRequests>("freeRequests"),
                         InstanceMethod<&SsmSlotPoolObject::Reset>("reset"),
                         InstanceMethod<&SsmSlotPoolObject::GenerationsOf>("generationsOf"),
                         InstanceMethod<&SsmSlotPoolObject::FreeStack>("freeStack"),
                         InstanceMethod<&SsmSlotPoolObject::Rows>("rows"),
                         InstanceMethod<&SsmSlotPoolObject::Close>("close"),
                     });
}

SsmSlotPoolObject::SsmSlotPoolObject(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  Guarded(info.Env(), [&] {
    const auto size = static_cast<int32_t>(WholeNumber(info[0], "maxRequests", 1, SsmSlotPool::kRequestsMax));
    if (!info[1].IsBoolean()) RefuseArgument("dummySlot", "a boolean", info[1]);
    pool_ = std::make_unique<SsmSlotPool>(size, info[1].As<Napi::Boolean>().Value(),
                                          GenerationsObject::TableOf(info[2], "generations"));
  });
  ++Counters().slot_pools;
}

SsmSlotPoolObject::~SsmSlotPoolObject() {
  if (pool_ != nullptr) --Counters().slot_pools;
}

SsmSlotPool& SsmSlotPoolObject::pool() const {
  if (pool_ == nullptr) throw NativeError(ErrorCode::kCLOSED, "the slot pool was closed");
  return *pool_;
}

Napi::Value SsmSlotPoolObject::FreeCount(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return Napi::Number::New(info.Env(), pool().free_count()); });
}

Napi::Value SsmSlotPoolObject::Allocate(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return Napi::Number::New(info.Env(), pool().Allocate()); });
}

Napi::Value SsmSlotPoolObject::AllocateBatch(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    SsmSlotPool& slots = pool();
    const int64_t count = WholeNumber(info[0], "count", 0, kSafeInteger);
    if (count > slots.free_count()) return info.Env().Null();
    ids_.resize(static_cast<size_t>(count));
    slots.AllocateBatch(count, ids_.data());
    return static_cast<Napi::Value>(NewArray<Napi::Int32Array>(info.Env(), ids_.data(), ids_.size()));
  });
}

Napi::Value SsmSlotPoolObject::Free(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    SsmSlotPool& slots = pool();
    slots.Free(WholeNumber(info[0], "slot", -kSafeInteger, kSafeInteger));
    return info.Env().Undefined();
  });
}

Napi::Value SsmSlotPoolObject::Bind(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    SsmSlotPool& slots = pool();
    const int64_t row = WholeNumber(info[0], "row", -kSafeInteger, kSafeInteger);
    slots.Bind(row, WholeNumber(info[1], "slot", -kSafeInteger, kSafeInteger));
    return info.Env().Undefined();
  });
}

Napi::Value SsmSlotPoolObject::BindDummy(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    pool().BindDummy();
    return info.Env().Undefined();
  });
}

Napi::Value SsmSlotPoolObject::Detach(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    SsmSlotPool& slots = pool();
    return Napi::Number::New(info.Env(), slots.Detach(WholeNumber(info[0], "row", -kSafeInteger, kSafeInteger)));
  });
}

Napi::Value SsmSlotPoolObject::FreeRequests(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    SsmSlotPool& slots = pool();
    CopyElements(info[0], "rows", ids_);
    slots.FreeRequests(ids_.data(), ids_.size());
    return info.Env().Undefined();
  });
}

Napi::Value SsmSlotPoolObject::Reset(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    pool().Reset();
    return info.Env().Undefined();
  });
}

Napi::Value SsmSlotPoolObject::GenerationsOf(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const SsmSlotPool& slots = pool();
    if (slots.generations() == nullptr) {
      throw NativeError(ErrorCode::kARGUMENT_INVALID, "generationsOf failed because this pool was made without them");
    }
    CopyElements(info[0], "slots", ids_);
    const Borrowed<uint64_t> out = OutputElements<uint64_t>(info[1], "out", static_cast<int64_t>(ids_.size()));
    slots.GenerationsOf(ids_.data(), ids_.size(), out.data);
    return info.Env().Undefined();
  });
}

Napi::Value SsmSlotPoolObject::FreeStack(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const std::vector<int32_t>& stack = pool().free_stack();
    return NewArray<Napi::Int32Array>(info.Env(), stack.data(), stack.size());
  });
}

Napi::Value SsmSlotPoolObject::Rows(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const std::vector<int32_t>& rows = pool().rows();
    return NewArray<Napi::Int32Array>(info.Env(), rows.data(), rows.size());
  });
}

Napi::Value SsmSlotPoolObject::Close(const Napi::CallbackInfo& info) {
  if (pool_ != nullptr) --Counters().slot_pools;
  pool_.reset();
  return info.Env().Undefined();
}

}  // namespace state_handoff
