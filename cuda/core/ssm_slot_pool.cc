// The slot stack and its bindings; ssm_slot_pool.h says what holds.
#include "ssm_slot_pool.h"

#include <numeric>
#include <string>
#include <utility>

#include "error_codes.h"

namespace state_handoff {

namespace {

[[noreturn]] void Refuse(ErrorCode code, const std::string& path, const std::string& expected, int64_t got) {
  throw NativeError(code, path + ": expected " + expected + ", got " + std::to_string(got));
}

std::string Range(const char* what, int64_t last) {
  return std::string(what) + " in [0, " + std::to_string(last) + "]";
}

std::string At(const char* list, size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

}  // namespace

SsmSlotPool::SsmSlotPool(int32_t max_requests, bool dummy, std::shared_ptr<Generations> generations)
    : max_requests_(max_requests), dummy_(dummy), generations_(std::move(generations)) {
  if (max_requests < 1 || max_requests > kRequestsMax) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "maxRequests: expected an integer in [1, " +
                                                        std::to_string(kRequestsMax) + "], got " +
                                                        std::to_string(max_requests));
  }
  if (generations_ != nullptr && generations_->count() < static_cast<size_t>(max_requests)) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "generations: expected a table of at least " +
                                                        std::to_string(max_requests) + " entries, got " +
                                                        std::to_string(generations_->count()));
  }
  free_.resize(max_requests);
  std::iota(free_.begin(), free_.end(), 0);
  rows_.assign(max_requests, -1);
  places_.assign(max_requests, kInStack);
}

void SsmSlotPool::CheckRow(int64_t row, const char* path) const {
  if (row < 0 || row >= max_requests_) {
    Refuse(ErrorCode::kARGUMENT_INVALID, path, Range("a row", max_requests_ - 1), row);
  }
}

void SsmSlotPool::CheckSlot(int64_t slot, const char* path, int32_t limit) const {
  if (slot < 0 || slot >= limit) Refuse(ErrorCode::kSLOT_OUT_OF_RANGE, path, Range("a slot", limit - 1), slot);
}

int32_t SsmSlotPool::Allocate() {
  int32_t slot = -1;
  AllocateBatch(1, &slot);
  return slot;
}

bool SsmSlotPool::AllocateBatch(int64_t count, int32_t* out) {
  if (count > free_count()) return false;
  const size_t from = free_.size() - static_cast<size_t>(count);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = free_[from + i];
    places_[out[i]] = kHeld;
  }
  free_.resize(from);
  if (generations_ != nullptr && count > 0) generations_->Advance(out, static_cast<size_t>(count));
  return true;
}

void SsmSlotPool::Free(int64_t slot) {
  CheckSlot(slot, "slot", max_requests_);
  const int32_t place = places_[slot];
  if (place == kInStack) {
    throw NativeError(ErrorCode::kSLOT_POOL_OVERFLOW,
                      "free failed because slot " + std::to_string(slot) + " is free already");
  }
  if (place >= 0) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "slot: expected a slot bound to no row, got " +
                                                        std::to_string(slot) + ", which row " + std::to_string(place) +
                                                        " holds");
  }
  places_[slot] = kInStack;
  free_.push_back(static_cast<int32_t>(slot));
}

void SsmSlotPool::Bind(int64_t row, int64_t slot) {
  CheckRow(row, "row");
  CheckSlot(slot, "slot", max_requests_);
  if (rows_[row] == slot) return;
  if (rows_[row] != -1) Refuse(ErrorCode::kARGUMENT_INVALID, "row", "a row without a slot", row);
  if (places_[slot] != kHeld) {
    Refuse(ErrorCode::kARGUMENT_INVALID, "slot", "an allocated slot that no other row holds", slot);
  }
  rows_[row] = static_cast<int32_t>(slot);
  places_[slot] = static_cast<int32_t>(row);
}

void SsmSlotPool::BindDummy() {
  if (!dummy_) throw NativeError(ErrorCode::kSLOT_NOT_BOUND, "bindDummy failed because this pool has no dummy slot");
  if (rows_[0] != -1 && rows_[0] != max_requests_) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "row 0: expected a row without a slot, got one that holds slot " + std::to_string(rows_[0]));
  }
  rows_[0] = max_requests_;
}

int32_t SsmSlotPool::Detach(int64_t row) {
  CheckRow(row, "row");
  const int32_t slot = rows_[row];
  if (slot < 0 || slot == max_requests_) {
    throw NativeError(ErrorCode::kSLOT_NOT_BOUND,
                      "detach failed because row " + std::to_string(row) + " has no live slot");
  }
  rows_[row] = -1;
  places_[slot] = kHeld;
  return slot;
}

void SsmSlotPool::ReleaseRow(int32_t row) {
  const int32_t slot = std::exchange(rows_[row], -1);
  if (slot < 0 || slot == max_requests_) return;
  places_[slot] = kInStack;
  free_.push_back(slot);
}

void SsmSlotPool::FreeRequests(const int32_t* rows, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (rows[i] < 0 || rows[i] >= max_requests_) CheckRow(rows[i], At("rows", i).c_str());
  }
  for (size_t i = 0; i < count; ++i) ReleaseRow(rows[i]);
}

void SsmSlotPool::Reset() {
  for (int32_t row = 0; row < max_requests_; ++row) ReleaseRow(row);
}

void SsmSlotPool::GenerationsOf(const int32_t* slots, size_t count, uint64_t* out) const {
  for (size_t i = 0; i < count; ++i) {
    if (slots[i] < 0 || slots[i] >= max_requests_) CheckSlot(slots[i], At("slots", i).c_str(), max_requests_);
  }
  for (size_t i = 0; i < count; ++i) out[i] = generations_->Get(slots[i]);
}

}  // namespace state_handoff
