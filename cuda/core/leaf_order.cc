// Chunk and directory work of the eviction order; leaf_order.h says what it promises.
#include "leaf_order.h"

#include <algorithm>
#include <cstring>

namespace state_handoff {

namespace {

// Two neighbours hold more than kMergeBelow (63) leaves, so n leaves take at most n / 32 + 2 chunks.
size_t ChunksMax(size_t leaves_max) { return leaves_max / 32 + 4; }

template <typename T>
void Move(T* to, const T* from, size_t count) {
  std::memmove(static_cast<void*>(to), from, count * sizeof(T));
}

}  // namespace

LeafOrder::LeafOrder(size_t leaves_max)
    : chunks_(ChunksMax(leaves_max)),
      directory_(ChunksMax(leaves_max) * 2),
      first_(directory_.count() / 2),
      last_(first_) {}

void LeafOrder::Clear() {
  first_ = last_ = directory_.count() / 2;
  chunks_begun_ = 0;
  free_chunk_ = 0;
  count_ = 0;
}

void LeafOrder::Insert(Leaf leaf) {
  ++count_;
  if (first_ == last_) {
    const uint32_t number = NewChunk();
    Place(chunks_[number], 0, leaf);
    AddEntry(first_, leaf, number);
    return;
  }
  size_t at = EntryFor(leaf);
  Chunk* chunk = &chunks_[directory_[at].chunk];
  if (chunk->size() == kChunkLeaves) {
    if (at + 1 == last_ &&
        chunk->leaves[chunk->end - 1] < leaf) {  // new leaves are mostly the newest: keep chunks full
      const uint32_t number = NewChunk();
      Place(chunks_[number], 0, leaf);
      AddEntry(last_, leaf, number);
      return;
    }
    Split(at);
    at = EntryFor(leaf);
    chunk = &chunks_[directory_[at].chunk];
  }
  Place(*chunk, Position(*chunk, leaf), leaf);
}

void LeafOrder::Erase(Leaf leaf) {
  const size_t at = first_ == last_ ? last_ : EntryFor(leaf);
  Chunk* chunk = at == last_ ? nullptr : &chunks_[directory_[at].chunk];
  const uint32_t position = chunk == nullptr ? 0 : Position(*chunk, leaf);
  if (chunk == nullptr || position == chunk->end || !(chunk->leaves[position] == leaf)) {
    throw NativeError(ErrorCode::kINVARIANT, "broken invariant: block " + std::to_string(leaf.id) +
                                                 " is no evictable leaf of time " + std::to_string(leaf.timestamp));
  }
  if (position - chunk->begin < chunk->end - position) {
    Move(&chunk->leaves[chunk->begin + 1], &chunk->leaves[chunk->begin], position - chunk->begin);
    ++chunk->begin;
  } else {
    Move(&chunk->leaves[position], &chunk->leaves[position + 1], chunk->end - position - 1);
    --chunk->end;
  }
  --count_;
  MergeAround(at);
}

std::optional<Leaf> LeafOrder::PopOldest() {
  if (first_ == last_) return std::nullopt;
  Chunk& chunk = chunks_[directory_[first_].chunk];
  const Leaf leaf = chunk.leaves[chunk.begin++];
  --count_;
  MergeAround(first_);
  return leaf;
}

int32_t LeafOrder::PeekId(size_t distance) const {
  for (size_t at = first_; at < last_ && at < first_ + 2; ++at) {
    const Chunk& chunk = chunks_[directory_[at].chunk];
    if (distance < chunk.size()) return chunk.leaves[chunk.begin + distance].id;
    distance -= chunk.size();
  }
  return -1;
}

// The last entry whose lower bound is not above `leaf`, else the first. The directory is not empty.
size_t LeafOrder::EntryFor(Leaf leaf) const {
  // Nearly all come to the ends: parents of what was just evicted, and blocks just let go of.
  if (first_ + 1 == last_ || leaf < directory_[first_ + 1].lower()) return first_;
  if (!(leaf < directory_[last_ - 1].lower())) return last_ - 1;
  const Entry* after = std::upper_bound(directory_.data() + first_ + 1, directory_.data() + last_, leaf,
                                        [](Leaf a, const Entry& b) { return a < b.lower(); });
  return static_cast<size_t>(after - directory_.data()) - 1;
}

// Of the first leaf not below `leaf`.
uint32_t LeafOrder::Position(const Chunk& chunk, Leaf leaf) {
  return static_cast<uint32_t>(std::lower_bound(chunk.leaves + chunk.begin, chunk.leaves + chunk.end, leaf) -
                               chunk.leaves);
}

// The chunk is not full. Shifts the shorter side that has room.
void LeafOrder::Place(Chunk& chunk, uint32_t position, Leaf leaf) {
  const bool left = chunk.begin > 0 && (chunk.end == kChunkLeaves || position - chunk.begin < chunk.end - position);
  if (left) {
    Move(&chunk.leaves[chunk.begin - 1], &chunk.leaves[chunk.begin], position - chunk.begin);
    --chunk.begin;
    --position;
  } else {
    Move(&chunk.leaves[position + 1], &chunk.leaves[position], chunk.end - position);
    ++chunk.end;
  }
  chunk.leaves[position] = leaf;
}

uint32_t LeafOrder::NewChunk() {
  uint32_t number = chunks_begun_;
  if (free_chunk_ != 0) {
    number = free_chunk_ - 1;
    free_chunk_ = chunks_[number].next_free;
  } else if (++chunks_begun_ > chunks_.count()) {
    throw NativeError(ErrorCode::kINVARIANT, "broken invariant: more evictable leaves than blocks");
  }
  chunks_[number].begin = chunks_[number].end = 0;
  return number;
}

void LeafOrder::FreeChunk(uint32_t number) {
  chunks_[number].next_free = free_chunk_;
  free_chunk_ = number + 1;
}

void LeafOrder::AddEntry(size_t at, Leaf lower, uint32_t chunk) {
  if (first_ == 0 || last_ == directory_.count()) {  // at a wall: back to the middle
    const size_t size = last_ - first_;
    const size_t first = (directory_.count() - size) / 2;
    Move(&directory_[first], &directory_[first_], size);
    at = at - first_ + first;
    first_ = first;
    last_ = first + size;
  }
  if (at - first_ < last_ - at) {
    Move(&directory_[first_ - 1], &directory_[first_], at - first_);
    --first_;
    --at;
  } else {
    Move(&directory_[at + 1], &directory_[at], last_ - at);
    ++last_;
  }
  directory_[at] = {lower.timestamp, lower.id, chunk};
}

void LeafOrder::RemoveEntry(size_t at) {
  FreeChunk(directory_[at].chunk);
  if (at - first_ < last_ - at) {
    Move(&directory_[first_ + 1], &directory_[first_], at - first_);
    ++first_;
  } else {
    Move(&directory_[at], &directory_[at + 1], last_ - at - 1);
    --last_;
  }
}

void LeafOrder::Split(size_t at) {
  const uint32_t number = NewChunk();
  Chunk& upper = chunks_[number];
  Chunk& lower = chunks_[directory_[at].chunk];
  const uint32_t kept = lower.size() / 2;
  upper.end = lower.size() - kept;
  Move(upper.leaves, &lower.leaves[lower.begin + kept], upper.end);
  lower.end = lower.begin + kept;
  AddEntry(at + 1, upper.leaves[0], number);
}

// After the chunk of entry `at` lost a leaf. Entries are named by rank here, since a removal may shift either side.
void LeafOrder::MergeAround(size_t at) {
  const auto chunk = [this](size_t rank) -> Chunk& { return chunks_[directory_[first_ + rank].chunk]; };
  size_t rank = at - first_;
  if (chunk(rank).size() == 0) {
    RemoveEntry(at);
    if (rank == 0) return;
    --rank;  // its neighbours are now neighbours of each other
  }
  for (;;) {
    const size_t entries = last_ - first_;
    const bool with_next = rank + 1 < entries && chunk(rank).size() + chunk(rank + 1).size() <= kMergeBelow;
    if (!with_next) {
      if (rank == 0 || chunk(rank - 1).size() + chunk(rank).size() > kMergeBelow) return;
      --rank;
    }
    Chunk& to = chunk(rank);
    Chunk& from = chunk(rank + 1);
    Move(to.leaves, &to.leaves[to.begin], to.size());
    to.end = to.size();
    to.begin = 0;
    Move(&to.leaves[to.end], &from.leaves[from.begin], from.size());
    to.end += from.size();
    RemoveEntry(first_ + rank + 1);
  }
}

}  // namespace state_handoff
