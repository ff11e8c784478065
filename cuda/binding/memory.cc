// Entry of the memory part. Names and order as in lib/native/memory-types.ts.
#include "memory_objects.h"

namespace state_handoff {

MemoryCounters& Counters() {
  static MemoryCounters counters;
  return counters;
}

namespace {

Napi::Value CountersNow(const Napi::CallbackInfo& info) {
  const auto number = [&](const std::atomic<int64_t>& counter) {
    return Napi::Number::New(info.Env(), static_cast<double>(counter.load()));
  };
  Napi::Object counters = Napi::Object::New(info.Env());
  counters.Set("generations", number(Counters().generations));
  counters.Set("blockPools", number(Counters().block_pools));
  counters.Set("slotPools", number(Counters().slot_pools));
  counters.Set("hashJobs", number(Counters().hash_jobs));
  return counters;
}

}  // namespace

void InitMemory(Napi::Env env, Napi::Object exports) {
  exports.Set("NativeGenerations", GenerationsObject::Define(env));
  exports.Set("NativeBlockPool", BlockPoolObject::Define(env));
  exports.Set("NativeSsmSlotPool", SsmSlotPoolObject::Define(env));
  InitBlockHash(env, exports);
  exports.Set("memoryCounters", Napi::Function::New<CountersNow>(env, "memoryCounters"));
}

}  // namespace state_handoff
