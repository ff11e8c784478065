// Ids of transfers that have ended, from native threads to the one thread that takes them.
//
// Bounded: a place is reserved when a transfer begins, so that its completion always finds one. The wake flag is
// cleared before the ring is emptied: whatever is pushed later rings again, so no wake-up is lost.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <vector>

namespace state_handoff {

class CompletionRing {
 public:
  // `wake` is called from the thread that pushes, at most once between two calls of Take.
  CompletionRing(size_t capacity, std::function<void()> wake);

  // Throws NATIVE_LIMIT when as many transfers as the ring has places are under way or not yet taken.
  void Reserve();
  // Gives back a place whose transfer never began.
  void Unreserve();
  // Once for each reservation. Any thread.
  void Push(uint64_t id);
  // Something else than a completion is worth a look. Any thread.
  void Ring();
  // Empties the ring, oldest first, and frees those places.
  std::vector<uint64_t> Take();

  size_t capacity() const { return places_.size(); }

 private:
  std::mutex mutex_;
  std::vector<uint64_t> places_;
  size_t first_ = 0;
  size_t filled_ = 0;
  size_t reserved_ = 0;  // filled places included
  bool woken_ = false;
  const std::function<void()> wake_;
};

}  // namespace state_handoff
