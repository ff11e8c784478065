// A copy of many small pieces that writes past the cache, for transfers that would not stay in it: an ordinary store
// first reads the line that it is about to overwrite, and memcpy avoids that by itself for longer pieces only.
#pragma once

#include <cstdint>

namespace state_handoff {

// Bytes of a piece, its target and the way to the next target are multiples of this.
inline constexpr uint64_t kStreamedLine = 64;

// Whether this processor has what StreamPieces needs.
bool CanStream();

// Copies `count` pieces of `bytes`, each side's one stride after the other. Where one thread's last call returned, it
// calls FenceStreamed before it tells anybody that the bytes are there.
void StreamPieces(uint8_t* target, const uint8_t* source, int64_t bytes, int64_t count, int64_t target_stride,
                  int64_t source_stride);

void FenceStreamed();

}  // namespace state_handoff
