// The evictable leaves of a block pool in the order of eviction: by time of last use, then by block id.
//
// A sorted sequence cut into chunks, with a sorted directory over them. Taking the oldest touches one chunk whatever
// the size; adding or removing any leaf searches the directory and shifts one chunk. All memory is set aside at the
// start.
#pragma once

#include <cstdint>
#include <optional>

#include "page_array.h"

namespace state_handoff {

struct Leaf {
  int64_t timestamp;
  int32_t id;

  friend bool operator<(const Leaf& a, const Leaf& b) {
    return a.timestamp != b.timestamp ? a.timestamp < b.timestamp : a.id < b.id;
  }
  friend bool operator==(const Leaf& a, const Leaf& b) { return a.timestamp == b.timestamp && a.id == b.id; }
};

class LeafOrder {
 public:
  // Room for `leaves_max` leaves.
  explicit LeafOrder(size_t leaves_max);

  // The leaf must not be in the order.
  void Insert(Leaf leaf);
  // Throws INVARIANT when the leaf is not in the order.
  void Erase(Leaf leaf);
  // Removes and returns the oldest; nothing when empty.
  std::optional<Leaf> PopOldest();

  // A hint: the id of a leaf that will be popped about `distance` pops from now, or -1.
  int32_t PeekId(size_t distance) const;

  size_t count() const { return count_; }
  // At most one for every 32 leaves, and two.
  size_t chunks() const { return last_ - first_; }
  size_t bytes() const { return chunks_.bytes() + directory_.bytes(); }
  void Clear();

  template <typename Visit>
  void ForEach(Visit&& visit) const {
    for (size_t at = first_; at < last_; ++at) {
      const Chunk& chunk = chunks_[directory_[at].chunk];
      for (uint32_t i = chunk.begin; i < chunk.end; ++i) visit(chunk.leaves[i]);
    }
  }

 private:
  static constexpr uint32_t kChunkLeaves = 127;
  // Two neighbours never hold this few together, which bounds the number of chunks.
  static constexpr uint32_t kMergeBelow = kChunkLeaves / 2;

  struct Chunk {
    uint32_t begin;
    uint32_t end;
    uint32_t next_free;  // chunk number + 1, in the list of free chunks
    uint32_t unused;
    Leaf leaves[kChunkLeaves];
    uint32_t size() const { return end - begin; }
  };
  static_assert(sizeof(Chunk) == 2048);

  // `lower` is no more than the chunk's first leaf and more than the last leaf of the chunk before. That of the first
  // entry is not looked at.
  struct Entry {
    int64_t timestamp;
    int32_t id;
    uint32_t chunk;
    Leaf lower() const { return {timestamp, id}; }
  };
  static_assert(sizeof(Entry) == 16);

  size_t EntryFor(Leaf leaf) const;
  static uint32_t Position(const Chunk& chunk, Leaf leaf);
  static void Place(Chunk& chunk, uint32_t position, Leaf leaf);
  uint32_t NewChunk();
  void FreeChunk(uint32_t number);
  void AddEntry(size_t at, Leaf lower, uint32_t chunk);
  void RemoveEntry(size_t at);
  void Split(size_t at);
  void MergeAround(size_t at);

  PageArray<Chunk> chunks_;
  PageArray<Entry> directory_;  // [first_, last_) is in use
  size_t first_;
  size_t last_;
  uint32_t chunks_begun_ = 0;  // chunks that were ever in use; those after are untouched pages
  uint32_t free_chunk_ = 0;    // number + 1
  size_t count_ = 0;
};

}  // namespace state_handoff
