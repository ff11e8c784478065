// The block pool as JavaScript sees it. Results are written into arrays of the caller; what fails throws.
#include "memory_arguments.h"
#include "memory_objects.h"

namespace state_handoff {

namespace {

EvictionPolicy PolicyOf(const Napi::Value& value) {
  if (value.IsString()) {
    const std::string name = value.As<Napi::String>().Utf8Value();
    if (name == "none") return EvictionPolicy::kNone;
    if (name == "ref_zero") return EvictionPolicy::kRefZero;
    if (name == "lru") return EvictionPolicy::kLru;
  }
  RefuseArgument("evictionPolicy", "'none', 'ref_zero' or 'lru'", value);
}

}  // namespace

Napi::Function BlockPoolObject::Define(Napi::Env env) {
  return DefineClass(env, "NativeBlockPool",
                     {
                         InstanceAccessor<&BlockPoolObject::FreeCount>("freeCount"),
                         InstanceAccessor<&BlockPoolObject::EvictableCount>("evictableCount"),
                         InstanceMethod<&BlockPoolObject::SetClock>("setClock"),
                         InstanceMethod<&BlockPoolObject::Allocate>("allocate"),
                         InstanceMethod<&BlockPoolObject::Release>("release"),
                         InstanceMethod<&BlockPoolObject::Retain>("retain"),
                         InstanceMethod<&BlockPoolObject::Touch>("touch"),
                         InstanceMethod<&BlockPoolObject::Register>("register"),
                         InstanceMethod<&BlockPoolObject::Evict>("evict"),
                         InstanceMethod<&BlockPoolObject::Reset>("reset"),
                         InstanceMethod<&BlockPoolObject::Lookup>("lookup"),
                         InstanceMethod<&BlockPoolObject::MatchPrefix>("matchPrefix"),
                         InstanceMethod<&BlockPoolObject::UnreferencedCount>("unreferencedCount"),
                         InstanceMethod<&BlockPoolObject::IsMemoryAvailable>("isMemoryAvailable"),
                         InstanceMethod<&BlockPoolObject::DistinctCount>("distinctCount"),
                         InstanceMethod<&BlockPoolObject::GenerationsOf>("generationsOf"),
                         InstanceMethod<&BlockPoolObject::TrackRemoved>("trackRemoved"),
                         InstanceMethod<&BlockPoolObject::Removed>("removed"),
                         InstanceMethod<&BlockPoolObject::Snapshot>("snapshot"),
                         InstanceMethod<&BlockPoolObject::Audit>("audit"),
                         InstanceMethod<&BlockPoolObject::Close>("close"),
                     });
}

BlockPoolObject::BlockPoolObject(const Napi::CallbackInfo& info) : ObjectWrap(info) {
  Guarded(info.Env(), [&] {
    const auto size = static_cast<int32_t>(WholeNumber(info[0], "poolSize", 2, BlockPool::kPoolSizeMax));
    const EvictionPolicy policy = PolicyOf(info[1]);
    pool_ = std::make_unique<BlockPool>(size, policy, GenerationsObject::TableOf(info[2], "generations"));
  });
  charged_bytes_ = static_cast<int64_t>(pool_->bytes());
  Napi::MemoryManagement::AdjustExternalMemory(info.Env(), charged_bytes_);
  ++Counters().block_pools;
}

BlockPoolObject::~BlockPoolObject() { Drop(Env()); }

void BlockPoolObject::Drop(Napi::Env env) {
  if (pool_ == nullptr) return;
  pool_.reset();
  int64_t total;
  napi_adjust_external_memory(env, -charged_bytes_, &total);  // not the throwing form: destructors call this
  --Counters().block_pools;
}

BlockPool& BlockPoolObject::pool() const {
  if (pool_ == nullptr) throw NativeError(ErrorCode::kCLOSED, "the block pool was closed");
  return *pool_;
}

Napi::Value BlockPoolObject::Outcome(Napi::Env env, bool done) const {
  return Napi::Number::New(env, (done ? kDone : 0) | (pool_->removed_ids().empty() ? 0 : kRemoved));
}

Napi::Value BlockPoolObject::FreeCount(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return Napi::Number::New(info.Env(), pool().free_count()); });
}

Napi::Value BlockPoolObject::EvictableCount(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return Napi::Number::New(info.Env(), pool().evictable_count()); });
}

Napi::Value BlockPoolObject::SetClock(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    pool().SetClock(WholeNumber(info[0], "time", -kSafeInteger, kSafeInteger));
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::Allocate(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    const Borrowed<int32_t> out = OutputElements<int32_t>(info[0], "out", -1);
    return Outcome(info.Env(), blocks.Allocate(static_cast<int64_t>(out.count), out.data));
  });
}

Napi::Value BlockPoolObject::Release(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    CopyElements(info[0], "ids", ids_);
    blocks.Release(ids_.data(), ids_.size());
    return Outcome(info.Env(), true);
  });
}

Napi::Value BlockPoolObject::Retain(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    CopyElements(info[0], "ids", ids_);
    blocks.Retain(ids_.data(), ids_.size());
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::Touch(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    CopyElements(info[0], "ids", ids_);
    blocks.Touch(ids_.data(), ids_.size());
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::Register(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    CopyElements(info[0], "ids", ids_);
    CopyElements(info[1], "hashes", hashes_);
    CopyElements(info[2], "parents", parents_);
    const std::string expected = "a BigInt64Array of " + std::to_string(ids_.size());
    if (hashes_.size() != ids_.size()) RefuseArgument("hashes", expected, info[1]);
    if (parents_.size() != ids_.size()) RefuseArgument("parents", expected, info[2]);
    blocks.Register(ids_.data(), hashes_.data(), parents_.data(), ids_.size());
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::Evict(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    return Outcome(info.Env(), blocks.Evict(WholeNumber(info[0], "count", 0, kSafeInteger)));
  });
}

Napi::Value BlockPoolObject::Reset(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    pool().Reset();
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::Lookup(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const BlockPool& blocks = pool();
    int64_t hash = 0;
    bool lossless = false;
    if (napi_get_value_bigint_int64(info.Env(), info[0], &hash, &lossless) != napi_ok || !lossless) {
      RefuseArgument("hash", "a signed 64-bit bigint", info[0]);
    }
    return Napi::Number::New(info.Env(), blocks.Lookup(hash));
  });
}

Napi::Value BlockPoolObject::MatchPrefix(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const BlockPool& blocks = pool();
    CopyElements(info[0], "hashes", hashes_);
    const Borrowed<int32_t> out = OutputElements<int32_t>(info[1], "out", static_cast<int64_t>(hashes_.size()));
    const size_t matched = blocks.MatchPrefix(hashes_.data(), hashes_.size(), out.data);
    return Napi::Number::New(info.Env(), static_cast<double>(matched));
  });
}

Napi::Value BlockPoolObject::UnreferencedCount(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const BlockPool& blocks = pool();
    CopyElements(info[0], "ids", ids_);
    return Napi::Number::New(info.Env(), static_cast<double>(blocks.UnreferencedCount(ids_.data(), ids_.size())));
  });
}

Napi::Value BlockPoolObject::IsMemoryAvailable(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    const int64_t count = WholeNumber(info[0], "count", 0, kSafeInteger);
    return Napi::Boolean::New(info.Env(),
                              blocks.IsMemoryAvailable(count, WholeNumber(info[1], "matched", 0, kSafeInteger)));
  });
}

Napi::Value BlockPoolObject::DistinctCount(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    CopyElements(info[0], "ids", ids_);
    return Napi::Number::New(info.Env(), static_cast<double>(blocks.DistinctCount(ids_.data(), ids_.size())));
  });
}

Napi::Value BlockPoolObject::GenerationsOf(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const BlockPool& blocks = pool();
    if (blocks.generations() == nullptr) {
      throw NativeError(ErrorCode::kARGUMENT_INVALID, "generationsOf failed because this pool was made without them");
    }
    CopyElements(info[0], "ids", ids_);
    const Borrowed<uint64_t> out = OutputElements<uint64_t>(info[1], "out", static_cast<int64_t>(ids_.size()));
    blocks.GenerationsOf(ids_.data(), ids_.size(), out.data);
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::TrackRemoved(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    BlockPool& blocks = pool();
    if (!info[0].IsBoolean()) RefuseArgument("track", "a boolean", info[0]);
    blocks.TrackRemoved(info[0].As<Napi::Boolean>().Value());
    return info.Env().Undefined();
  });
}

Napi::Value BlockPoolObject::Removed(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const BlockPool& blocks = pool();
    const std::vector<int32_t>& ids = blocks.removed_ids();
    const std::vector<int64_t> hashes = blocks.RemovedHashes();
    Napi::Object removed = Napi::Object::New(info.Env());
    removed.Set("ids", NewArray<Napi::Int32Array>(info.Env(), ids.data(), ids.size()));
    removed.Set("hashes", NewArray<Napi::BigInt64Array>(info.Env(), hashes.data(), hashes.size()));
    return removed;
  });
}

Napi::Value BlockPoolObject::Snapshot(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] {
    const Napi::Env env = info.Env();
    const BlockPool& blocks = pool();
    const auto count = static_cast<size_t>(blocks.pool_size());
    auto references = Napi::Int32Array::New(env, count);
    auto hashes = Napi::BigInt64Array::New(env, count);
    auto parents = Napi::Int32Array::New(env, count);
    auto children = Napi::Int32Array::New(env, count);
    auto timestamps = Napi::BigInt64Array::New(env, count);
    for (size_t i = 0; i < count; ++i) {
      const auto id = static_cast<int32_t>(i);
      references[i] = blocks.References(id);
      hashes[i] = blocks.Hash(id);
      parents[i] = blocks.Parent(id);
      children[i] = blocks.Children(id);
      timestamps[i] = blocks.Timestamp(id);
    }
    Napi::Object snapshot = Napi::Object::New(env);
    snapshot.Set("freeStack", NewArray<Napi::Int32Array>(env, blocks.free_stack(), blocks.free_count()));
    snapshot.Set("references", references);
    snapshot.Set("hashes", hashes);
    snapshot.Set("parents", parents);
    snapshot.Set("children", children);
    snapshot.Set("timestamps", timestamps);
    return snapshot;
  });
}

Napi::Value BlockPoolObject::Audit(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return Napi::String::New(info.Env(), pool().Audit()); });
}

Napi::Value BlockPoolObject::Close(const Napi::CallbackInfo& info) {
  Drop(info.Env());
  return info.Env().Undefined();
}

}  // namespace state_handoff
