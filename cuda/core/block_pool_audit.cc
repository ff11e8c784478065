// The self-check of a block pool: recomputes from the records what the pool keeps up to date step by step.
#include <map>
#include <vector>

#include "block_pool.h"

namespace state_handoff {

std::string BlockPool::Audit() const {
  const int32_t usable = pool_size_ - 1;
  const auto block = [](int32_t id) { return "block " + std::to_string(id); };
  std::vector<char> in_bag(pool_size_, 0);
  if (free_ < 0 || free_ > usable) return "free count " + std::to_string(free_);
  for (int32_t i = 0; i < free_; ++i) {
    const int32_t id = bag_[i];
    if (id < 0 || id >= usable) return "the bag holds " + std::to_string(id);
    if (in_bag[id]++ != 0) return block(id) + " is in the bag twice";
  }
  std::vector<int32_t> children(pool_size_, 0);
  std::vector<int32_t> used_children(pool_size_, 0);
  int32_t evictable = 0;
  size_t registered = 0;
  for (int32_t id = 0; id < usable; ++id) {
    const Block& record = blocks_[id];
    if (record.references < 0) return block(id) + " has negative references";
    if (IsFree(record) != (in_bag[id] != 0)) return block(id) + (in_bag[id] ? " is in the bag and owned" : " is lost");
    if (IsEvictable(record)) ++evictable;
    if (record.parent_link != 0) {
      if (record.hash == 0) return block(id) + " has a parent and no hash";
      if (blocks_[record.parent_link - 1].hash == 0) return block(id) + " has a parent that is not registered";
      ++children[record.parent_link - 1];
      if (record.references > 0) ++used_children[record.parent_link - 1];
    }
    if (record.hash == 0) continue;
    ++registered;
    if (table_.Find(record.hash, HashOf()) != id) return block(id) + " is not found by its hash";
  }
  if (registered != table_.count()) return "the table counts " + std::to_string(table_.count()) + " hashes";
  if (policy_ == EvictionPolicy::kLru ? evictable != evictable_ : evictable != 0 || evictable_ != 0) {
    return "evictable count " + std::to_string(evictable_) + ", found " + std::to_string(evictable);
  }
  int64_t blocking_links = 0;
  size_t leaves = 0;
  for (int32_t id = 0; id < usable; ++id) {
    const Block& record = blocks_[id];
    if (record.children != children[id]) return block(id) + " counts " + std::to_string(record.children) + " children";
    if (record.used_children != used_children[id]) return block(id) + " miscounts its used children";
    if (record.references == 0) blocking_links += record.used_children;
    if (IsLru() && IsEvictable(record) && record.children == 0) ++leaves;
  }
  if (blocking_links != blocking_links_) return "blocking links " + std::to_string(blocking_links_);
  if (leaves != leaves_.count()) return "leaf count " + std::to_string(leaves_.count());
  std::string wrong;
  const Leaf* before = nullptr;
  Leaf last{};
  leaves_.ForEach([&](const Leaf& leaf) {
    const Block& record = blocks_[leaf.id];
    if (!IsEvictable(record) || record.children != 0) wrong = block(leaf.id) + " is ordered and no leaf";
    if (record.timestamp != leaf.timestamp) wrong = block(leaf.id) + " is ordered by another time";
    if (before != nullptr && !(last < leaf)) wrong = block(leaf.id) + " is out of order";
    last = leaf;
    before = &last;
    --leaves;
  });
  if (wrong.empty() && leaves != 0) return "the order lost leaves";
  return wrong;
}

}  // namespace state_handoff
