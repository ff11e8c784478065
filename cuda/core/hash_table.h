// From block hash to block id: open addressing with linear probing, at most a third full, no allocation after the
// start.
//
// A slot holds 32 mixed bits of the hash and the id, eight bytes; the full hash stands in the block's own record, which
// the caller lends through `hash_of`. Deletion shifts the run back, so there are no tombstones and speed does not
// decay.
#pragma once

#include <bit>
#include <cstdint>

#include "page_array.h"

namespace state_handoff {

class HashTable {
 public:
  // Room for `count` blocks.
  explicit HashTable(size_t count)
      : slots_(std::bit_ceil(count < 8 ? size_t{16} : count * 3)),
        mask_(slots_.count() - 1),
        shift_(32 - std::countr_zero(slots_.count())) {}

  // The block that holds `hash`, or -1.
  template <typename HashOf>
  int32_t Find(int64_t hash, HashOf&& hash_of) const {
    const uint32_t tag = Tag(hash);
    for (size_t at = Home(tag);; at = (at + 1) & mask_) {
      const Slot& slot = slots_[at];
      if (slot.link == 0) return -1;
      if (slot.tag == tag && hash_of(slot.link - 1) == hash) return slot.link - 1;
    }
  }

  // `hash` must not be in the table.
  void Insert(int64_t hash, int32_t id) {
    const uint32_t tag = Tag(hash);
    size_t at = Home(tag);
    while (slots_[at].link != 0) at = (at + 1) & mask_;
    slots_[at] = {tag, id + 1};
    ++count_;
  }

  // Removes `id`, which must be in the table under `hash`.
  void Erase(int64_t hash, int32_t id) {
    size_t hole = Home(Tag(hash));
    while (slots_[hole].link != id + 1) hole = (hole + 1) & mask_;
    for (size_t at = hole;;) {
      at = (at + 1) & mask_;
      if (slots_[at].link == 0) break;
      const size_t home = Home(slots_[at].tag);
      if (((at - home) & mask_) < ((at - hole) & mask_)) continue;  // its home lies behind the hole: it may not move
      slots_[hole] = slots_[at];
      hole = at;
    }
    slots_[hole] = {0, 0};
    --count_;
  }

  void Prefetch(int64_t hash) const { __builtin_prefetch(&slots_[Home(Tag(hash))], 1); }

  void Clear() {
    slots_.Clear();
    count_ = 0;
  }
  size_t count() const { return count_; }
  size_t bytes() const { return slots_.bytes(); }

 private:
  struct Slot {
    uint32_t tag;
    int32_t link;  // id + 1; 0 is empty
  };
  static_assert(sizeof(Slot) == 8);

  // Mixing spreads hashes that are no digests (tests, engines with counters) as well.
  static uint32_t Tag(int64_t hash) {
    return static_cast<uint32_t>((static_cast<uint64_t>(hash) * 0x9E3779B97F4A7C15u) >> 32);
  }
  size_t Home(uint32_t tag) const { return tag >> shift_; }

  PageArray<Slot> slots_;
  size_t mask_;
  int shift_;
  size_t count_ = 0;
};

}  // namespace state_handoff
