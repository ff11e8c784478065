// Live SSM state slots (spec 5): a LIFO stack of slots and the request rows they are bound to.
//
// A slot is free, bound to one row, or held by whoever allocated or detached it. Held slots survive a reset. One thread
// at a time; every call either completes or throws with nothing changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "generations.h"

namespace state_handoff {

class SsmSlotPool {
 public:
  static constexpr int32_t kRequestsMax = 1 << 20;

  // With `dummy`, one more slot of index `max_requests` exists in memory and is never handed out. `generations` may be
  // null.
  SsmSlotPool(int32_t max_requests, bool dummy, std::shared_ptr<Generations> generations);

  int32_t max_requests() const { return max_requests_; }
  int32_t physical_slots() const { return max_requests_ + (dummy_ ? 1 : 0); }
  bool has_dummy() const { return dummy_; }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
  const std::shared_ptr<Generations>& generations() const { return generations_; }

  // A slot, or -1.
  int32_t Allocate();
  // The top `count` slots in stack order, or false with nothing changed.
  bool AllocateBatch(int64_t count, int32_t* out);
  void Free(int64_t slot);
  void Bind(int64_t row, int64_t slot);
  // Binds row 0 to the dummy slot; again is fine.
  void BindDummy();
  // Unbinds the row and returns its slot, which stays out of the pool.
  int32_t Detach(int64_t row);
  // Unbinds the rows and frees their slots, in this order; rows without a slot are passed over.
  void FreeRequests(const int32_t* rows, size_t count);
  // Frees what is still bound to a row.
  void Reset();
  void GenerationsOf(const int32_t* slots, size_t count, uint64_t* out) const;

  const std::vector<int32_t>& free_stack() const { return free_; }
  // The slot of each row, or -1.
  const std::vector<int32_t>& rows() const { return rows_; }

 private:
  // Where a slot is: in the stack, held, or bound to the row of this number.
  static constexpr int32_t kInStack = -2;
  static constexpr int32_t kHeld = -1;

  void CheckRow(int64_t row, const char* path) const;
  void CheckSlot(int64_t slot, const char* path, int32_t limit) const;
  void ReleaseRow(int32_t row);

  const int32_t max_requests_;
  const bool dummy_;
  const std::shared_ptr<Generations> generations_;
  std::vector<int32_t> free_;
  std::vector<int32_t> rows_;
  std::vector<int32_t> places_;
};

}  // namespace state_handoff
