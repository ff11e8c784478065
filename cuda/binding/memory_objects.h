// What JavaScript holds of native memory objects: one class each, made by lib/memory/*.ts.
//
// V8 checks the receiver of every method against its class, so `this` is always ours; objects passed as arguments are
// checked by type tag. Close gives the memory back early; afterwards every call throws CLOSED.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "../core/block_pool.h"
#include "../core/generations.h"
#include "../core/ssm_slot_pool.h"
#include "napi_support.h"

namespace state_handoff {

// Objects alive in this process, over all environments; tests see them return to where they started.
struct MemoryCounters {
  std::atomic<int64_t> generations{0};
  std::atomic<int64_t> block_pools{0};
  std::atomic<int64_t> slot_pools{0};
  std::atomic<int64_t> hash_jobs{0};
};
MemoryCounters& Counters();

class GenerationsObject : public Napi::ObjectWrap<GenerationsObject> {
 public:
  static Napi::Function Define(Napi::Env env);
  // The table behind a native generations object, or null for null. For other bindings: the table stays alive as long
  // as somebody holds it, also after close. Throws ARGUMENT_INVALID naming `path` for anything else, and CLOSED.
  static std::shared_ptr<Generations> TableOf(const Napi::Value& value, const char* path);

  explicit GenerationsObject(const Napi::CallbackInfo& info);
  ~GenerationsObject() override;

 private:
  Generations& table() const;
  Napi::Value Count(const Napi::CallbackInfo& info);
  Napi::Value Get(const Napi::CallbackInfo& info);
  Napi::Value Advance(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);

  std::shared_ptr<Generations> table_;
  std::vector<int32_t> ids_;
};

class BlockPoolObject : public Napi::ObjectWrap<BlockPoolObject> {
 public:
  static Napi::Function Define(Napi::Env env);
  explicit BlockPoolObject(const Napi::CallbackInfo& info);
  ~BlockPoolObject() override;

 private:
  // What allocate, release and evict answer.
  static constexpr int kDone = 1;
  static constexpr int kRemoved = 2;

  BlockPool& pool() const;
  Napi::Value Outcome(Napi::Env env, bool done) const;
  void Drop(Napi::Env env);
  Napi::Value FreeCount(const Napi::CallbackInfo& info);
  Napi::Value EvictableCount(const Napi::CallbackInfo& info);
  Napi::Value SetClock(const Napi::CallbackInfo& info);
  Napi::Value Allocate(const Napi::CallbackInfo& info);
  Napi::Value Release(const Napi::CallbackInfo& info);
  Napi::Value Retain(const Napi::CallbackInfo& info);
  Napi::Value Touch(const Napi::CallbackInfo& info);
  Napi::Value Register(const Napi::CallbackInfo& info);
  Napi::Value Evict(const Napi::CallbackInfo& info);
  Napi::Value Reset(const Napi::CallbackInfo& info);
  Napi::Value Lookup(const Napi::CallbackInfo& info);
  Napi::Value MatchPrefix(const Napi::CallbackInfo& info);
  Napi::Value UnreferencedCount(const Napi::CallbackInfo& info);
  Napi::Value IsMemoryAvailable(const Napi::CallbackInfo& info);
  Napi::Value DistinctCount(const Napi::CallbackInfo& info);
  Napi::Value GenerationsOf(const Napi::CallbackInfo& info);
  Napi::Value TrackRemoved(const Napi::CallbackInfo& info);
  Napi::Value Removed(const Napi::CallbackInfo& info);
  Napi::Value Snapshot(const Napi::CallbackInfo& info);
  Napi::Value Audit(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);

  std::unique_ptr<BlockPool> pool_;
  int64_t charged_bytes_ = 0;
  std::vector<int32_t> ids_;
  std::vector<int64_t> hashes_;
  std::vector<int64_t> parents_;
};

class SsmSlotPoolObject : public Napi::ObjectWrap<SsmSlotPoolObject> {
 public:
  static Napi::Function Define(Napi::Env env);
  explicit SsmSlotPoolObject(const Napi::CallbackInfo& info);
  ~SsmSlotPoolObject() override;

 private:
  SsmSlotPool& pool() const;
  Napi::Value FreeCount(const Napi::CallbackInfo& info);
  Napi::Value Allocate(const Napi::CallbackInfo& info);
  Napi::Value AllocateBatch(const Napi::CallbackInfo& info);
  Napi::Value Free(const Napi::CallbackInfo& info);
  Napi::Value Bind(const Napi::CallbackInfo& info);
  Napi::Value BindDummy(const Napi::CallbackInfo& info);
  Napi::Value Detach(const Napi::CallbackInfo& info);
  Napi::Value FreeRequests(const Napi::CallbackInfo& info);
  Napi::Value Reset(const Napi::CallbackInfo& info);
  Napi::Value GenerationsOf(const Napi::CallbackInfo& info);
  Napi::Value FreeStack(const Napi::CallbackInfo& info);
  Napi::Value Rows(const Napi::CallbackInfo& info);
  Napi::Value Close(const Napi::CallbackInfo& info);

  std::unique_ptr<SsmSlotPool> pool_;
  std::vector<int32_t> ids_;
};

template <typename Array, typename Element>
Array NewArray(Napi::Env env, const Element* data, size_t count) {
  Array array = Array::New(env, count);
  for (size_t i = 0; i < count; ++i) array[i] = data[i];
  return array;
}

void InitBlockHash(Napi::Env env, Napi::Object exports);  // block_hash_binding.cc

}  // namespace state_handoff
