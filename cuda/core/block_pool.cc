// Allocation, references and registration. Eviction stands in block_eviction.cc, the self-check in block_pool_audit.cc.
#include "block_pool.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace state_handoff {

namespace {

std::string At(const char* list, size_t index) { return std::string(list) + "[" + std::to_string(index) + "]"; }

}  // namespace

BlockPool::BlockPool(int32_t pool_size, EvictionPolicy policy, std::shared_ptr<Generations> generations)
    : pool_size_(pool_size < 2 || pool_size > kPoolSizeMax
                     ? throw NativeError(ErrorCode::kARGUMENT_INVALID, "poolSize: expected an integer in [2, " +
                                                                           std::to_string(kPoolSizeMax) + "], got " +
                                                                           std::to_string(pool_size))
                     : pool_size),
      policy_(policy),
      generations_(std::move(generations)),
      blocks_(pool_size),
      bag_(pool_size),
      table_(policy == EvictionPolicy::kNone ? 0 : pool_size),
      leaves_(policy == EvictionPolicy::kLru ? pool_size : 0),
      victims_(policy == EvictionPolicy::kLru ? pool_size : 0),
      marks_(pool_size) {
  if (generations_ != nullptr && generations_->count() < static_cast<size_t>(pool_size)) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "generations: expected a table of at least " +
                                                        std::to_string(pool_size) + " entries, got " +
                                                        std::to_string(generations_->count()));
  }
  free_ = pool_size - 1;
  for (int32_t id = 0; id < free_; ++id) bag_[id] = id;
}

size_t BlockPool::bytes() const {
  return blocks_.bytes() + bag_.bytes() + table_.bytes() + leaves_.bytes() + victims_.bytes() + marks_.bytes();
}

void BlockPool::CheckIds(const int32_t* ids, size_t count) const {
  const uint32_t usable = static_cast<uint32_t>(pool_size_ - 1);
  for (size_t i = 0; i < count; ++i) {
    if (static_cast<uint32_t>(ids[i]) >= usable) {
      throw NativeError(ErrorCode::kARGUMENT_INVALID, At("ids", i) + ": expected a block id in [0, " +
                                                          std::to_string(pool_size_ - 2) + "], got " +
                                                          std::to_string(ids[i]));
    }
  }
}

void BlockPool::RequireCaching(const char* call) const {
  if (!prefix_caching()) {
    throw NativeError(ErrorCode::kPREFIX_CACHING_REQUIRED,
                      std::string(call) +
                          " failed because this pool has no prefix caching; make it with evictionPolicy "
                          "'ref_zero' or 'lru'");
  }
}

bool BlockPool::Allocate(int64_t count, int32_t* out) {
  removed_ids_.clear();
  const int64_t evicted = count > free_ ? count - free_ : 0;
  if (evicted > 0 && (!IsLru() || evictable_ < evicted || !EvictLeaves(evicted))) return false;
  free_ -= static_cast<int32_t>(count);
  const int32_t* top = &bag_[free_];
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = top[i];
    out[i] = id;
    Block& block = blocks_[id];
    block.references = 1;
    if (IsLru()) block.timestamp = clock_;
  }
  if (generations_ != nullptr) {
    generations_->Advance(top, count - evicted);
    generations_->Advance(top + count - evicted, evicted, 2);  // evicted, and handed out
  }
  return true;
}

void BlockPool::Release(const int32_t* ids, size_t count) {
  removed_ids_.clear();
  CheckIds(ids, count);
  picked_.clear();
  picked_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Block& block = blocks_[ids[i]];
    if (block.references > 0) {
      if (--block.references == 0) picked_.push_back(ids[i]);
      continue;
    }
    for (size_t j = 0; j < i; ++j) ++blocks_[ids[j]].references;
    throw NativeError(ErrorCode::kBLOCK_OVER_RELEASED,
                      "release failed because block " + std::to_string(ids[i]) + " has " +
                          std::to_string(block.references) + " references and " +
                          std::to_string(std::count(ids, ids + count, ids[i])) + " were to be dropped");
  }
  if (!prefix_caching()) {
    for (const int32_t id : picked_) bag_[free_++] = id;
    return;
  }
  if (!std::is_sorted(picked_.begin(), picked_.end())) std::sort(picked_.begin(), picked_.end());
  if (!IsLru()) {
    Deregister(picked_.data(), picked_.size());
    return;
  }
  // One after another, so that "has no references" and "is counted as unused" are the same at each step.
  for (const int32_t id : picked_) blocks_[id].references = 1;
  for (const int32_t id : picked_) {
    blocks_[id].references = 0;
    if (blocks_[id].hash == 0) {
      bag_[free_++] = id;
    } else {
      BecameUnused(id);
    }
  }
}

void BlockPool::Retain(const int32_t* ids, size_t count) {
  RequireCaching("retain");
  CheckIds(ids, count);
  for (size_t i = 0; i < count; ++i) {
    const Block& block = blocks_[ids[i]];
    if (IsFree(block)) {
      throw NativeError(ErrorCode::kARGUMENT_INVALID,
                        At("ids", i) + ": expected a referenced or cached block, got " + std::to_string(ids[i]));
    }
    if (static_cast<size_t>(std::numeric_limits<int32_t>::max() - block.references) < count) {
      throw NativeError(ErrorCode::kNATIVE_LIMIT, "retain failed because block " + std::to_string(ids[i]) + " has " +
                                                      std::to_string(block.references) + " references already");
    }
  }
  for (size_t i = 0; i < count; ++i) {
    Block& block = blocks_[ids[i]];
    if (block.references++ == 0) BecameUsed(ids[i]);
    if (IsLru()) block.timestamp = clock_;
  }
}

// The block got its first reference back. Its timestamp is still the one it is ordered by.
void BlockPool::BecameUsed(int32_t id) {
  Block& block = blocks_[id];
  --evictable_;
  if (block.children == 0) leaves_.Erase(LeafOf(id));
  blocking_links_ -= block.used_children;
  if (block.parent_link != 0) {
    Block& parent = blocks_[block.parent_link - 1];
    ++parent.used_children;
    if (parent.references == 0) ++blocking_links_;
  }
}

void BlockPool::BecameUnused(int32_t id) {
  Block& block = blocks_[id];
  ++evictable_;
  if (block.children == 0) leaves_.Insert(LeafOf(id));
  blocking_links_ += block.used_children;
  if (block.parent_link != 0) {
    Block& parent = blocks_[block.parent_link - 1];
    --parent.used_children;
    if (parent.references == 0) --blocking_links_;
  }
}

void BlockPool::Touch(const int32_t* ids, size_t count) {
  CheckIds(ids, count);
  if (!IsLru()) return;
  for (size_t i = 0; i < count; ++i) {
    Block& block = blocks_[ids[i]];
    if (block.timestamp == clock_) continue;
    const bool ordered = IsEvictable(block) && block.children == 0;
    if (ordered) leaves_.Erase(LeafOf(ids[i]));
    block.timestamp = clock_;
    if (ordered) leaves_.Insert(LeafOf(ids[i]));
  }
}

void BlockPool::Register(const int32_t* ids, const int64_t* hashes, const int64_t* parents, size_t count) {
  RequireCaching("register");
  CheckIds(ids, count);
  for (size_t i = 0; i < count; ++i) {
    const Block& block = blocks_[ids[i]];
    const auto refuse = [&](const char* list, const std::string& expected, int64_t got) {
      throw NativeError(ErrorCode::kARGUMENT_INVALID,
                        At(list, i) + ": expected " + expected + ", got " + std::to_string(got));
    };
    if (hashes[i] < 1) refuse("hashes", "a hash of at least 1", hashes[i]);
    if (parents[i] < 0) refuse("parents", "a hash of at least 1, or 0 for none", parents[i]);
    if (IsFree(block)) refuse("ids", "a referenced or cached block", ids[i]);
  }
  // First the names, so that a batch may hold parent and child in any order.
  picked_.clear();  // positions in the batch that got their name now
  picked_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    Block& block = blocks_[ids[i]];
    if (block.hash == hashes[i]) continue;
    if (block.hash != 0) {
      const int64_t held = block.hash;
      for (const int32_t at : picked_) {
        table_.Erase(hashes[at], ids[at]);
        blocks_[ids[at]].hash = 0;
      }
      throw NativeError(ErrorCode::kBLOCK_HASH_CONFLICT, "register failed because block " + std::to_string(ids[i]) +
                                                             " is registered as " + std::to_string(held) +
                                                             " and was given " + std::to_string(hashes[i]));
    }
    if (table_.Find(hashes[i], HashOf()) >= 0) continue;  // the first holder of a hash keeps it
    block.hash = hashes[i];
    table_.Insert(hashes[i], ids[i]);
    picked_.push_back(static_cast<int32_t>(i));
  }
  if (!IsLru()) return;
  NextMark();
  for (const int32_t at : picked_) marks_[ids[at]] = mark_;
  for (const int32_t at : picked_) {
    const int32_t parent = parents[at] == 0 ? -1 : table_.Find(parents[at], HashOf());
    // Nobody can have named a block as parent before it had its hash, so a cycle needs a link to this entry or a later.
    if (parent >= 0 && marks_[parent] == mark_) maybe_cyclic_ = true;
    marks_[ids[at]] = 0;
    if (parent < 0) continue;
    Block& block = blocks_[parent];
    blocks_[ids[at]].parent_link = parent + 1;
    if (block.children == 0 && IsEvictable(block)) leaves_.Erase(LeafOf(parent));
    ++block.children;
    ++block.used_children;  // whoever registers a block holds it
    if (block.references == 0) ++blocking_links_;
  }
}

void BlockPool::Reset() {
  removed_ids_.clear();
  blocks_.Clear();
  table_.Clear();
  leaves_.Clear();
  free_ = pool_size_ - 1;
  evictable_ = 0;
  blocking_links_ = 0;
  maybe_cyclic_ = false;
  for (int32_t id = 0; id < free_; ++id) bag_[id] = id;
  if (generations_ != nullptr) generations_->Advance(bag_.data(), free_);  // all content ends
}

int32_t BlockPool::Lookup(int64_t hash) const {
  return hash < 1 || !prefix_caching() ? -1 : table_.Find(hash, HashOf());
}

size_t BlockPool::MatchPrefix(const int64_t* hashes, size_t count, int32_t* out) const {
  for (size_t i = 0; i < count; ++i) {
    const int32_t id = Lookup(hashes[i]);
    if (id < 0) return i;
    out[i] = id;
  }
  return count;
}

size_t BlockPool::UnreferencedCount(const int32_t* ids, size_t count) const {
  CheckIds(ids, count);
  return std::count_if(ids, ids + count, [this](int32_t id) { return blocks_[id].references == 0; });
}

// No block carries the new mark.
void BlockPool::NextMark() {
  if (++mark_ != 0) return;
  marks_.Clear();
  mark_ = 1;
}

size_t BlockPool::DistinctCount(const int32_t* ids, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] != -1) CheckIds(ids + i, 1);
  }
  NextMark();
  size_t distinct = 0;
  for (size_t i = 0; i < count; ++i) {
    if (ids[i] == -1 || std::exchange(marks_[ids[i]], mark_) == mark_) continue;
    ++distinct;
  }
  return distinct;
}

void BlockPool::GenerationsOf(const int32_t* ids, size_t count, uint64_t* out) const {
  CheckIds(ids, count);
  for (size_t i = 0; i < count; ++i) out[i] = generations_->Get(ids[i]);
}

void BlockPool::TrackRemoved(bool track) {
  removed_ids_.clear();
  removed_hashes_.clear();
  if (track) {
    removed_ids_.reserve(pool_size_);
    removed_hashes_.reserve(pool_size_);
  }
  track_removed_ = track;
}

std::vector<int64_t> BlockPool::RemovedHashes() const {
  std::vector<int64_t> hashes;
  if (removed_ids_.empty()) return hashes;
  hashes = removed_hashes_;
  std::sort(hashes.begin(), hashes.end());
  return hashes;
}

}  // namespace state_handoff
