// Eviction of a block pool: the cached forest is peeled from its leaves, oldest first, and what ended is deregistered.
#include <algorithm>

#include "block_pool.h"

namespace state_handoff {

namespace {

constexpr size_t kPrefetchDistance = 12;

}  // namespace

bool BlockPool::Evict(int64_t count) {
  removed_ids_.clear();
  if (count <= 0) return true;
  if (evictable_ < count || !EvictLeaves(count)) return false;
  if (generations_ != nullptr) generations_->Advance(victims_.data(), victim_count_);
  return true;
}

// All but moving the generations. `count` is not more than what is evictable.
bool BlockPool::EvictLeaves(int64_t count) {
  if (!Peel(static_cast<size_t>(count))) {
    Unpeel();
    const int32_t id = maybe_cyclic_ ? FindOnCycle() : -1;
    if (id < 0) return false;  // what is left are cached ancestors of blocks in use
    throw NativeError(ErrorCode::kBLOCK_GRAPH_CYCLE,
                      "evict failed because block " + std::to_string(id) + " is its own ancestor");
  }
  evictable_ -= static_cast<int32_t>(count);
  Deregister(victims_.data(), victim_count_);
  return true;
}

bool BlockPool::IsMemoryAvailable(int64_t count, int64_t matched) {
  if (count <= free_) return true;
  if (allocatable_count() - matched < count) return false;
  if (blocking_links_ == 0) return true;
  // Blocks in use hold on to cached ancestors, so only a trial tells. Those about to be pinned are counted as well.
  const bool enough = Peel(static_cast<size_t>(count - free_ + matched));
  Unpeel();
  return enough;
}

// Loads what the peel will need soon, so that a large pool costs little more than a small one. Blocks of one request
// mostly have neighbouring ids, so a leaf tells where its ancestors are.
void BlockPool::PrefetchAhead() const {
  const int32_t ahead = leaves_.PeekId(kPrefetchDistance);
  if (ahead >= 0) __builtin_prefetch(&blocks_[ahead], 1);
  const int32_t next = leaves_.PeekId(2);
  if (next < 0) return;
  const int32_t step = blocks_[next].parent_link - 1 - next;
  if (step != 1 && step != -1) return;
  for (int32_t ancestor = 2; ancestor <= 8; ancestor += 2) {
    const int32_t id = next + ancestor * step;
    if (id >= 0 && id < pool_size_) __builtin_prefetch(&blocks_[id], 1);
  }
}

// Takes `count` leaves off the order, into victims_. Returns false when they run out first. Child counts of the parents
// are changed; nothing else is, so that Unpeel can take it all back.
bool BlockPool::Peel(size_t count) {
  victim_count_ = 0;
  int32_t exposed = -1;
  while (victim_count_ < count) {
    const std::optional<Leaf> leaf = leaves_.PopOldest();
    if (!leaf.has_value()) return false;
    if (leaf->id != exposed) PrefetchAhead();
    victims_[victim_count_++] = leaf->id;
    const int32_t link = blocks_[leaf->id].parent_link;
    if (link == 0) continue;
    Block& parent = blocks_[link - 1];
    if (--parent.children == 0 && IsEvictable(parent)) {
      exposed = link - 1;
      leaves_.Insert(LeafOf(exposed));
    }
  }
  return true;
}

void BlockPool::Unpeel() {
  while (victim_count_ > 0) {
    const int32_t id = victims_[--victim_count_];
    leaves_.Insert(LeafOf(id));
    const int32_t link = blocks_[id].parent_link;
    if (link == 0) continue;
    Block& parent = blocks_[link - 1];
    if (parent.children++ == 0 && IsEvictable(parent)) leaves_.Erase(LeafOf(link - 1));
  }
}

// Ends the names of unused blocks that are nobody's parent any more, and returns the blocks to the bag in this order.
void BlockPool::Deregister(const int32_t* ids, size_t count) {
  for (size_t i = 0; i < std::min(count, kPrefetchDistance); ++i) table_.Prefetch(blocks_[ids[i]].hash);
  for (size_t i = 0; i < count; ++i) {
    if (i + kPrefetchDistance < count) table_.Prefetch(blocks_[ids[i + kPrefetchDistance]].hash);
    if (generations_ != nullptr) generations_->Prefetch(ids[i]);
    Block& block = blocks_[ids[i]];
    if (track_removed_) {
      removed_ids_.push_back(ids[i]);
      if (i == 0) removed_hashes_.clear();
      if (block.hash != 0) removed_hashes_.push_back(block.hash);
    }
    if (block.hash != 0) table_.Erase(block.hash, ids[i]);
    block = Block{};
    bag_[free_++] = ids[i];
  }
}

// A cached block that is its own ancestor, or -1.
int32_t BlockPool::FindOnCycle() const {
  std::vector<int32_t> walk(pool_size_, 0);  // the walk that came by, from 1
  for (int32_t start = 0; start < pool_size_; ++start) {
    for (int32_t id = start; id >= 0 && (walk[id] == 0 || walk[id] == start + 1); id = Parent(id)) {
      if (walk[id] == start + 1) return id;
      walk[id] = start + 1;
    }
  }
  return -1;
}

}  // namespace state_handoff
