#include "completion_ring.h"

#include <string>
#include <utility>

#include "error_codes.h"

namespace state_handoff {

CompletionRing::CompletionRing(size_t capacity, std::function<void()> wake)
    : places_(capacity), wake_(std::move(wake)) {}

void CompletionRing::Reserve() {
  const std::lock_guard lock(mutex_);
  if (reserved_ == places_.size()) {
    throw NativeError(ErrorCode::kNATIVE_LIMIT,
                      "the transfer did not begin because " + std::to_string(places_.size()) +
                          " are under way or not yet taken; take the changed ones and try again");
  }
  ++reserved_;
}

void CompletionRing::Unreserve() {
  const std::lock_guard lock(mutex_);
  --reserved_;
}

void CompletionRing::Push(uint64_t id) {
  {
    const std::lock_guard lock(mutex_);
    places_[(first_ + filled_) % places_.size()] = id;
    ++filled_;
    if (std::exchange(woken_, true)) return;
  }
  wake_();
}

void CompletionRing::Ring() {
  {
    const std::lock_guard lock(mutex_);
    if (std::exchange(woken_, true)) return;
  }
  wake_();
}

std::vector<uint64_t> CompletionRing::Take() {
  const std::lock_guard lock(mutex_);
  woken_ = false;  // before the ring is read
  std::vector<uint64_t> ids;
  ids.reserve(filled_);
  for (; filled_ > 0; --filled_, --reserved_) {
    ids.push_back(places_[first_]);
    first_ = (first_ + 1) % places_.size();
  }
  return ids;
}

}  // namespace state_handoff
