// Generations as JavaScript sees them.
#include "memory_arguments.h"
#include "memory_objects.h"

namespace state_handoff {

namespace {

constexpr napi_type_tag kTag{0x5b0f3e9a61c84d27, 0xb2d1740c9f6e83a5};
constexpr int64_t kCountMax = int64_t{1} << 24;

}  // namespace

Napi::Function GenerationsObject::Define(Napi::Env env) {
  return DefineClass(env, "NativeGenerations",
                     {
                         InstanceAccessor<&GenerationsObject::Count>("count"),
                         InstanceMethod<&GenerationsObject::Get>("get"),
                         InstanceMethod<&GenerationsObject::Advance>("advance"),
                         InstanceMethod<&GenerationsObject::Close>("close"),
                     });
}

std::shared_ptr<Generations> GenerationsObject::TableOf(const Napi::Value& value, const char* path) {
  if (value.IsNull()) return nullptr;
  if (!value.IsObject() || !value.As<Napi::Object>().CheckTypeTag(&kTag)) {
    RefuseArgument(path, "a native generations object or null", value);
  }
  const GenerationsObject* object = ObjectWrap::Unwrap(value.As<Napi::Object>());
  if (object->table_ == nullptr) {
    throw NativeError(ErrorCode::kCLOSED, std::string(path) + ": expected open generations, got closed ones");
  }
  return object->table_;
}

GenerationsObject::GenerationsObject(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  Guarded(info.Env(), [&] {
    table_ = std::make_shared<Generations>(static_cast<size_t>(WholeNumber(info[0], "count", 1, kCountMax)));
  });
  Value().TypeTag(&kTag);
  ++Counters().generations;
}

GenerationsObject::~GenerationsObject() {
  if (table_ != nullptr) --Counters().generations;
}

Generations& GenerationsObject::table() const {
  if (table_ == nullptr) throw NativeError(ErrorCode::kCLOSED, "the generations were closed");
  return *table_;
}

Napi::Value GenerationsObject::Count(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return Napi::Number::New(info.Env(), static_cast<double>(table().count())); });
}

Napi::Value GenerationsObject::Get(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const int64_t id = WholeNumber(info[0], "id", 0, static_cast<int64_t>(table().count()) - 1);
    return Napi::BigInt::New(info.Env(), table().Get(static_cast<size_t>(id)));
  });
}

Napi::Value GenerationsObject::Advance(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    Generations& generations = table();
    CopyElements(info[0], "ids", ids_);
    generations.Advance(ids_.data(), ids_.size());
    return info.Env().Undefined();
  });
}

Napi::Value GenerationsObject::Close(const Napi::CallbackInfo& info) {
  if (table_ != nullptr) --Counters().generations;
  table_.reset();
  return info.Env().Undefined();
}

}  // namespace state_handoff
