#include "generations.h"

#include <new>
#include <string>

#include "error_codes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace state_handoff {

Generations::Generations(size_t count)
    : count_(count), memory_(SealedMemory::Create(count * sizeof(uint64_t), "state-handoff-generations")) {
  table_ = reinterpret_cast<std::atomic<uint64_t>*>(memory_->data());
  for (size_t id = 0; id < count; ++id) new (&table_[id]) std::atomic<uint64_t>(1);
}

void Generations::Advance(const int32_t* ids, size_t count, uint64_t steps) {
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] < 0 || static_cast<size_t>(ids[i]) >= count_) {
      throw NativeError(ErrorCode::kARGUMENT_INVALID, "ids[" + std::to_string(i) + "]: expected an id below " +
                                                          std::to_string(count_) + ", got " + std::to_string(ids[i]));
    }
  }
  for (size_t i = 0; i < count; ++i) {
    std::atomic<uint64_t>& generation = table_[ids[i]];
    generation.store(generation.load(std::memory_order_relaxed) + steps, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_release);
#if defined(__x86_64__)
  _mm_sfence();  // the new owner may write past the cache, which the fence above does not order
#endif
}

}  // namespace state_handoff
