// Promise: the ring never overflows, loses no completion and no wake-up.
#include "../../cuda/core/completion_ring.h"

#include <condition_variable>
#include <set>
#include <thread>

#include "check.h"

namespace state_handoff::test {

TEST(RingRefusesBeyondItsPlacesAndFreesThemWhenTaken) {
  int wakes = 0;
  CompletionRing ring(2, [&] { ++wakes; });
  ring.Reserve();
  ring.Reserve();
  CHECK_EQUAL(CodeOf([&] { ring.Reserve(); }), "NATIVE_LIMIT");
  ring.Push(7);
  ring.Push(8);
  CHECK_EQUAL(wakes, 1);
  CHECK_EQUAL(CodeOf([&] { ring.Reserve(); }), "NATIVE_LIMIT");
  const std::vector<uint64_t> taken = ring.Take();
  CHECK_EQUAL(taken.size(), size_t{2});
  CHECK_EQUAL(taken[0], uint64_t{7});
  CHECK_EQUAL(taken[1], uint64_t{8});
  ring.Reserve();
  ring.Push(9);
  CHECK_EQUAL(wakes, 2);
  CHECK_EQUAL(ring.Take().size(), size_t{1});
  CHECK_EQUAL(ring.Take().size(), size_t{0});
}

TEST(RingLosesNoWakeUpUnderManyProducers) {
  constexpr uint64_t kProducers = 4;
  constexpr uint64_t kEach = 5'000;
  std::mutex mutex;
  std::condition_variable changed;
  bool woken = false;
  CompletionRing ring(64, [&] {
    const std::lock_guard lock(mutex);
    woken = true;
    changed.notify_one();
  });
  std::vector<std::thread> producers;
  for (uint64_t producer = 0; producer < kProducers; ++producer) {
    producers.emplace_back([&ring, producer] {
      for (uint64_t i = 0; i < kEach;) {
        if (CodeOf([&] { ring.Reserve(); }) == "nothing") ring.Push(producer * kEach + i++);
      }
    });
  }
  std::set<uint64_t> seen;
  while (seen.size() < kProducers * kEach) {
    {
      std::unique_lock lock(mutex);
      // Without a wake-up nothing is looked at: a lost one hangs here.
      CHECK(changed.wait_for(lock, std::chrono::seconds(30), [&] { return woken; }));
      woken = false;
    }
    for (const uint64_t id : ring.Take()) CHECK(seen.insert(id).second);
  }
  for (std::thread& producer : producers) producer.join();
}

}  // namespace state_handoff::test
