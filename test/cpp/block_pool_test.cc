// What the block pool stands on, against the standard library, at sizes at which chunks split and merge; and the pool
// itself over long random use with its own audit.
#include "../../cuda/core/block_pool.h"

#include <algorithm>
#include <map>
#include <random>
#include <set>

#include "check.h"

namespace state_handoff::test {

namespace {

// Every leaf of `expected`, in order, is what the order would pop.
void CheckSame(const LeafOrder& order, const std::set<Leaf>& expected) {
  CHECK_EQUAL(order.count(), expected.size());
  auto next = expected.begin();
  order.ForEach([&](const Leaf& leaf) {
    CHECK(next != expected.end());
    CHECK(leaf == *next);
    ++next;
  });
  CHECK(next == expected.end());
}

}  // namespace

TEST(leaf_order_is_a_sorted_set) {
  constexpr int32_t kLeaves = 6000;
  std::mt19937 random(1);
  // Times drawn from few values (ties by id), from many, rising, and falling: each way of growing fills chunks
  // otherwise.
  for (int way = 0; way < 4; ++way) {
    LeafOrder order(kLeaves);
    std::set<Leaf> expected;
    std::map<int32_t, int64_t> times;
    int64_t clock = 0;
    for (int step = 0; step < 60000; ++step) {
      ++clock;
      const bool growing = (step / 5000) % 2 == 0;
      const auto id = static_cast<int32_t>(random() % kLeaves);
      if (random() % 4 < (growing ? 3u : 1u)) {
        if (times.contains(id)) continue;
        const int64_t rising = clock, falling = -clock;
        const int64_t drawn = way == 0 ? static_cast<int64_t>(random() % 5) : static_cast<int64_t>(random());
        const Leaf leaf{way == 2 ? rising : way == 3 ? falling : drawn, id};
        times[id] = leaf.timestamp;
        order.Insert(leaf);
        expected.insert(leaf);
      } else if (random() % 2 == 0) {
        const std::optional<Leaf> oldest = order.PopOldest();
        CHECK_EQUAL(oldest.has_value(), !expected.empty());
        if (!oldest.has_value()) continue;
        CHECK(*oldest == *expected.begin());
        expected.erase(expected.begin());
        times.erase(oldest->id);
      } else if (times.contains(id)) {
        order.Erase({times[id], id});
        expected.erase({times[id], id});
        times.erase(id);
      }
      if (step % 500 == 0) CheckSame(order, expected);
    }
    CheckSame(order, expected);
    while (order.PopOldest().has_value()) expected.erase(expected.begin());
    CheckSame(order, expected);
    order.Insert({1, 1});
    order.Clear();
    CheckSame(order, {});
  }
}

TEST(leaf_order_keeps_what_falls_between_full_chunks) {
  LeafOrder order(1000);
  std::set<Leaf> expected;
  const auto insert = [&](int64_t time) {
    const Leaf leaf{time, static_cast<int32_t>(expected.size())};
    order.Insert(leaf);
    expected.insert(leaf);
  };
  // Rising times fill chunks to the brim; then one time after each, from the last to the first, and before them all.
  for (int64_t time = 0; time < 400; ++time) insert(time * 10);
  for (int64_t time = 400; time-- > 0;) insert(time * 10 + 5);
  insert(-1);
  CheckSame(order, expected);
}

TEST(leaf_order_stays_within_its_memory_when_thinned_out) {
  constexpr int32_t kLeaves = 50000;
  LeafOrder order(kLeaves);
  std::set<Leaf> expected;
  // Fill, leave one in forty, fill again between those: without merging, the chunks would run out. From either end, so
  // that the thin neighbour stands now before and now behind.
  for (int32_t round = 0; round < 4; ++round) {
    for (int32_t id = 0; id < kLeaves; ++id) {
      const Leaf leaf{id % 1000, id};
      if (expected.insert(leaf).second) order.Insert(leaf);
    }
    CHECK_EQUAL(order.count(), static_cast<size_t>(kLeaves));
    std::vector<Leaf> leaves(expected.begin(), expected.end());
    if (round % 2 == 1) std::reverse(leaves.begin(), leaves.end());
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (i % 40 == 0) continue;
      order.Erase(leaves[i]);
      expected.erase(leaves[i]);
    }
    CheckSame(order, expected);
    CHECK(order.chunks() <= order.count() / 32 + 2);
  }
  CHECK_EQUAL(CodeOf([&] { order.Erase({5, 6}); }), "INVARIANT");
}

TEST(hash_table_is_a_map) {
  constexpr int32_t kBlocks = 3000;
  HashTable table(kBlocks);
  std::vector<int64_t> hash_of(kBlocks, 0);
  std::map<int64_t, int32_t> expected;
  std::mt19937_64 random(2);
  const auto lookup = [&](int32_t id) { return hash_of[id]; };
  for (int step = 0; step < 100000; ++step) {
    const auto id = static_cast<int32_t>(random() % kBlocks);
    if (hash_of[id] == 0) {
      // Half of them in a row of neighbours: multiples of one number meet in the table.
      const int64_t hash =
          random() % 2 == 0 ? static_cast<int64_t>(random() >> 1) + 1 : static_cast<int64_t>(random() % 5000 + 1) << 40;
      if (expected.contains(hash)) continue;
      hash_of[id] = hash;
      expected[hash] = id;
      table.Insert(hash, id);
    } else {
      table.Erase(hash_of[id], id);
      expected.erase(hash_of[id]);
      hash_of[id] = 0;
    }
    if (step % 1000 != 0) continue;
    CHECK_EQUAL(table.count(), expected.size());
    for (const auto& [hash, holder] : expected) CHECK_EQUAL(table.Find(hash, lookup), holder);
    CHECK_EQUAL(table.Find(static_cast<int64_t>(random() >> 1) | 1, lookup), -1);
  }
  table.Clear();
  CHECK_EQUAL(table.count(), 0u);
}

TEST(block_pool_survives_long_use) {
  constexpr int32_t kPool = 5001;
  auto generations = std::make_shared<Generations>(kPool);
  BlockPool pool(kPool, EvictionPolicy::kLru, generations);
  std::mt19937_64 random(3);
  std::vector<std::vector<int32_t>> held;
  int64_t next_hash = 1;
  for (int64_t step = 1; step < 20000; ++step) {
    pool.SetClock(step);
    const size_t count = 1 + random() % 40;
    std::vector<int32_t> ids(count);
    const bool available = pool.IsMemoryAvailable(static_cast<int64_t>(count), 0);
    const bool allocated = pool.Allocate(static_cast<int64_t>(count), ids.data());
    CHECK_EQUAL(available, allocated);
    if (allocated) {
      std::vector<int64_t> hashes(count), parents(count);
      const int64_t older = static_cast<int64_t>(random() % static_cast<uint64_t>(next_hash));
      for (size_t i = 0; i < count; ++i) {
        hashes[i] = next_hash++;
        // Chains, with a branch now and then to an older name.
        parents[i] = i > 0 ? hashes[i - 1] : older;
      }
      pool.Register(ids.data(), hashes.data(), parents.data(), count - random() % 2);
      held.push_back(std::move(ids));
    }
    while (held.size() > 60 || (!allocated && !held.empty())) {
      const size_t at = random() % held.size();
      std::swap(held[at], held.back());
      // At times only the front goes, which leaves cached ancestors of blocks in use.
      const size_t part = random() % 4 == 0 ? held.back().size() / 2 : held.back().size();
      pool.Release(held.back().data(), part);
      held.back().erase(held.back().begin(), held.back().begin() + static_cast<std::ptrdiff_t>(part));
      if (held.back().empty()) held.pop_back();
      if (!allocated) break;
    }
    if (step % 500 == 0) CHECK_EQUAL(pool.Audit(), "");
  }
  for (const std::vector<int32_t>& ids : held) pool.Release(ids.data(), ids.size());
  CHECK_EQUAL(pool.allocatable_count(), kPool - 1);
  CHECK(pool.Evict(pool.evictable_count()));
  CHECK_EQUAL(pool.free_count(), kPool - 1);
  CHECK_EQUAL(pool.Audit(), "");
}

}  // namespace state_handoff::test
