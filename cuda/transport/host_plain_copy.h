// What the benchmark measures the host transport against: a plain memcpy over a list of fragments that was expanded
// beforehand, from the same mapping, with the same chunks and as many threads. Not used by transfers.
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

}  // namespace state_handoff
