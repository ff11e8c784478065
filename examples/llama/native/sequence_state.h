// The bytes in which llama.cpp gives and takes the state of one sequence, and their way into and out of paged blocks:
// header, one record a cell, then layer by layer the key rows and the value rows. Refuses what is not exactly the
// tokens that were asked for; blocks and ranges are checked before an address is formed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace state_handoff::llama {

// What one token's state looks like, by the model and the cache's type.
struct StateShape {
  uint32_t layers;
  int32_t element_type;  // llama.cpp's number
  uint64_t row_bytes;    // of the keys of one token in one layer; the values have as many
};

// Where token t of block b lies: keys of layer l at
// `b * block_stride + l * layer_stride + (t % block_tokens) * row_bytes`, values `plane_stride` later.
struct BlockShape {
  uint32_t block_tokens;
  uint64_t block_stride;
  uint64_t layer_stride;
  uint64_t plane_stride;
};

// A run of a sequence's tokens and the blocks that hold them; `blocks[0]` holds token `from`.
struct BlockRun {
  int32_t from;
  int32_t to;
  std::span<const int32_t> blocks;
};

// The shape that the state of one token shows. Throws std::runtime_error when keys and values of all layers are not
// alike.
StateShape ShapeOf(std::span<const uint8_t> state);

// Bytes of the state of `tokens` tokens in llama.cpp's form.
size_t StateBytes(const StateShape& shape, size_t tokens);

// Both throw std::runtime_error, naming what was expected and what came. Nothing is written unless all of it fits.
void StateToBlocks(std::span<const uint8_t> state, const StateShape& shape, const BlockShape& form, const BlockRun& run,
                   std::span<uint8_t> memory);
void BlocksToState(std::span<const uint8_t> memory, const StateShape& shape, const BlockShape& form,
                   const BlockRun& run, std::vector<uint8_t>& state);

}  // namespace state_handoff::llama
