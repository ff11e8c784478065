// One 64-bit generation for each block or slot. It moves when the *content* ends: the id leaves the free bag for a new
// owner, or is evicted. Never when a pin is dropped.
//
// A reader in another process maps the table read-only, loads the generation before and after it copies, and compares
// both with the value its ticket carries. So a late read is always noticed.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "sealed_memory.h"

namespace state_handoff {

class Generations {
 public:
  static_assert(std::atomic<uint64_t>::is_always_lock_free, "a reader on a read-only page can only load");

  // Generations start at 1, so that a zeroed ticket never matches.
  explicit Generations(size_t count);

  // Owner's thread only. When this returns, no reader that sees bytes written afterwards can still see the old value.
  // `steps` contents end one after another, as when a block is evicted and handed out in one call.
  void Advance(const int32_t* ids, size_t count, uint64_t steps = 1);

  // A hint that `id` will be advanced soon.
  void Prefetch(int32_t id) const { __builtin_prefetch(&table_[id], 1); }

  uint64_t Get(size_t id) const { return table_[id].load(std::memory_order_relaxed); }
  size_t count() const { return count_; }
  const std::shared_ptr<SealedMemory>& memory() const { return memory_; }

 private:
  size_t count_;
  std::shared_ptr<SealedMemory> memory_;
  std::atomic<uint64_t>* table_;
};

}  // namespace state_handoff
