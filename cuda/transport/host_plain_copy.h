// What the benchmarks measure the host transport against: a plain memcpy over a list of fragments that was expanded
// beforehand, and a nest of loops written for one shape, both from the same mapping, with the same chunks and as many
// threads. Not used by transfers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace state_handoff {

struct PlainFragment {
  const uint8_t* source;
  uint8_t* target;
  uint64_t bytes;
};

// Copies all fragments and returns the nanoseconds that took, threads' starts included. Blocks.
int64_t CopyPlainFragments(const std::vector<PlainFragment>& fragments, size_t threads);

// Blocks of 64 tokens: the first half of each token's bytes goes to a token half as long. Every number but the block
// ids is known when this is compiled.
struct HalfHeads {
  static constexpr int64_t kTokens = 64;

  const uint8_t* source;
  uint8_t* target;
  std::vector<int32_t> source_blocks;
  std::vector<int32_t> target_blocks;  // as many
};

// Whether there is a loop for halves of so many bytes: 64, 256, ... 64 KiB.
bool HasHalfHeadsLoop(int64_t bytes);

// Copies all blocks and returns the nanoseconds that took, threads' starts included. Blocks.
int64_t CopyHalfHeads(const HalfHeads& heads, int64_t bytes, size_t threads);

}  // namespace state_handoff
