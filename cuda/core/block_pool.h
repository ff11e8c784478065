// The deterministic block allocator of spec 4: a free bag used as a stack, references, a prefix cache from hash to
// block and eviction of its leaves, least recently used first. All ranks of an instance apply the same calls in the
// same order and so hold the same ids; nothing here depends on addresses, time or chance.
//
// One thread at a time. Every call either completes or throws with nothing changed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "generations.h"
#include "hash_table.h"
#include "leaf_order.h"
#include "page_array.h"

namespace state_handoff {

enum class EvictionPolicy { kNone, kRefZero, kLru };

class BlockPool {
 public:
  static constexpr int32_t kPoolSizeMax = 1 << 24;

  // `pool_size` counts the dummy block, which has the last id and is never handed out. `generations` may be null.
  BlockPool(int32_t pool_size, EvictionPolicy policy, std::shared_ptr<Generations> generations);

  int32_t pool_size() const { return pool_size_; }
  EvictionPolicy policy() const { return policy_; }
  bool prefix_caching() const { return policy_ != EvictionPolicy::kNone; }
  int32_t free_count() const { return free_; }
  int32_t evictable_count() const { return evictable_; }
  int32_t allocatable_count() const { return free_ + evictable_; }
  const std::shared_ptr<Generations>& generations() const { return generations_; }
  size_t bytes() const;

  void SetClock(int64_t time) { clock_ = time; }

  // Writes `count` ids with one reference each and returns true, or changes nothing and returns false.
  bool Allocate(int64_t count, int32_t* out);
  void Release(const int32_t* ids, size_t count);
  void Retain(const int32_t* ids, size_t count);
  void Touch(const int32_t* ids, size_t count);
  void Register(const int32_t* ids, const int64_t* hashes, const int64_t* parents, size_t count);
  bool Evict(int64_t count);
  void Reset();

  int32_t Lookup(int64_t hash) const;
  // Writes the blocks of the longest resident leading run to `out` and returns how many they are.
  size_t MatchPrefix(const int64_t* hashes, size_t count, int32_t* out) const;
  size_t UnreferencedCount(const int32_t* ids, size_t count) const;
  bool IsMemoryAvailable(int64_t count, int64_t matched);
  // How many different ids there are; -1 is padding.
  size_t DistinctCount(const int32_t* ids, size_t count);
  void GenerationsOf(const int32_t* ids, size_t count, uint64_t* out) const;

  // What the last Allocate, Release or Evict deregistered: ids in order, and their hashes as an ascending set.
  void TrackRemoved(bool track);
  const std::vector<int32_t>& removed_ids() const { return removed_ids_; }
  std::vector<int64_t> RemovedHashes() const;

  // State for snapshots. Hash and parent are -1 when unset.
  const int32_t* free_stack() const { return bag_.data(); }
  int32_t References(int32_t id) const { return blocks_[id].references; }
  int64_t Hash(int32_t id) const { return blocks_[id].hash == 0 ? -1 : blocks_[id].hash; }
  int32_t Parent(int32_t id) const { return blocks_[id].parent_link - 1; }
  int32_t Children(int32_t id) const { return blocks_[id].children; }
  int64_t Timestamp(int32_t id) const { return blocks_[id].timestamp; }

  // Recomputes everything that is kept incrementally. Empty, or the first thing found wrong. Slow; for tests.
  std::string Audit() const;

 private:
  // All zeroes is a block of a new pool.
  struct Block {
    int64_t hash;  // 0 is unset
    int64_t timestamp;
    int32_t references;
    int32_t parent_link;    // parent + 1; 0 is none
    int32_t children;       // registered blocks whose parent this is
    int32_t used_children;  // those of them with references
  };
  static_assert(sizeof(Block) == 32);

  bool IsEvictable(const Block& block) const { return block.references == 0 && block.hash != 0; }
  bool IsFree(const Block& block) const { return block.references == 0 && block.hash == 0; }
  bool IsLru() const { return policy_ == EvictionPolicy::kLru; }
  Leaf LeafOf(int32_t id) const { return {blocks_[id].timestamp, id}; }
  auto HashOf() const {
    return [this](int32_t id) { return blocks_[id].hash; };
  }

  void CheckIds(const int32_t* ids, size_t count) const;
  void RequireCaching(const char* call) const;
  void BecameUsed(int32_t id);
  void BecameUnused(int32_t id);
  bool EvictLeaves(int64_t count);
  void PrefetchAhead() const;
  bool Peel(size_t count);
  void Unpeel();
  void Deregister(const int32_t* ids, size_t count);
  int32_t FindOnCycle() const;
  void NextMark();

  const int32_t pool_size_;
  const EvictionPolicy policy_;
  const std::shared_ptr<Generations> generations_;
  PageArray<Block> blocks_;
  PageArray<int32_t> bag_;
  HashTable table_;
  LeafOrder leaves_;
  PageArray<int32_t> victims_;  // of the eviction under way, in order
  size_t victim_count_ = 0;
  int32_t free_ = 0;
  int32_t evictable_ = 0;
  // Links from a used block to an unused parent. Requests hold whole prefixes, so there are none as a rule; while there
  // are, not everything evictable can be peeled.
  int64_t blocking_links_ = 0;
  int64_t clock_ = 0;
  // Set by a batch in which a block precedes its parent: only then can there be a cycle.
  bool maybe_cyclic_ = false;
  std::vector<int32_t> picked_;  // of the call under way: ids or positions
  PageArray<uint32_t> marks_;
  uint32_t mark_ = 0;
  bool track_removed_ = false;
  std::vector<int32_t> removed_ids_;
  std::vector<int64_t> removed_hashes_;
};

}  // namespace state_handoff
