#include "sequence_state.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

namespace state_handoff::llama {
namespace {

constexpr uint32_t kMagic = 0xaf143cd8;
constexpr size_t kHeadBytes = 16;       // magic, sequence, streams, cells
constexpr size_t kCellBytes = 12;       // position, count of sequences, sequence
constexpr size_t kShapeBytes = 8;       // whether values are transposed, layers
constexpr size_t kPlaneHeadBytes = 12;  // type, bytes of a row

[[noreturn]] void Refuse(const std::string& field, const std::string& expected, const std::string& got) {
  throw std::runtime_error("state." + field + ": expected " + expected + ", got " + got);
}

class Reader {
 public:
  explicit Reader(std::span<const uint8_t> bytes) : bytes_(bytes) {}

  template <typename Number>
  Number Take() {
    Number number;
    std::memcpy(&number, Skip(sizeof(Number)), sizeof(Number));
    return number;
  }

  template <typename Number>
  void Expect(const char* field, Number expected) {
    const Number got = Take<Number>();
    if (got != expected) Refuse(field, std::to_string(expected), std::to_string(got));
  }

  const uint8_t* Skip(size_t count) {
    if (bytes_.size() - at_ < count) Refuse("size", "more bytes", std::to_string(bytes_.size()));
    at_ += count;
    return bytes_.data() + at_ - count;
  }

  size_t left() const { return bytes_.size() - at_; }

 private:
  std::span<const uint8_t> bytes_;
  size_t at_ = 0;
};

void CheckRun(const StateShape& shape, const BlockShape& form, const BlockRun& run, size_t memory_bytes) {
  const auto fail = [](const std::string& what) { throw std::runtime_error(what); };
  if (form.block_tokens == 0 || form.plane_stride < form.block_tokens * shape.row_bytes ||
      form.layer_stride < 2 * form.plane_stride || form.block_stride < shape.layers * form.layer_stride) {
    fail("shape: expected strides that reach over what lies inside them");
  }
  if (run.from < 0 || run.to <= run.from) fail("run: expected at least one token");
  if (static_cast<uint32_t>(run.from) % form.block_tokens != 0) fail("run.from: expected the first token of a block");
  const size_t tokens = static_cast<size_t>(run.to - run.from);
  const size_t blocks = (tokens + form.block_tokens - 1) / form.block_tokens;
  if (run.blocks.size() != blocks) {
    fail("run.blocks: expected " + std::to_string(blocks) + " blocks, got " + std::to_string(run.blocks.size()));
  }
  const uint64_t held = memory_bytes / form.block_stride;
  for (const int32_t block : run.blocks) {
    if (block < 0 || static_cast<uint64_t>(block) >= held) {
      fail("run.blocks: expected ids below " + std::to_string(held) + ", got " + std::to_string(block));
    }
  }
}

size_t Place(const StateShape& shape, const BlockShape& form, const BlockRun& run, uint32_t layer, size_t index) {
  const uint64_t block = static_cast<uint64_t>(run.blocks[index / form.block_tokens]);
  return block * form.block_stride + layer * form.layer_stride + index % form.block_tokens * shape.row_bytes;
}

}  // namespace

StateShape ShapeOf(std::span<const uint8_t> state) {
  Reader reader(state);
  reader.Expect<uint32_t>("magic", kMagic);
  reader.Take<int32_t>();
  reader.Expect<uint32_t>("streams", 1);
  reader.Expect<uint32_t>("cells", 1);
  reader.Skip(kCellBytes);
  reader.Expect<uint32_t>("transposed", 0);
  StateShape shape{reader.Take<uint32_t>(), 0, 0};
  for (uint64_t plane = 0; plane < 2 * uint64_t{shape.layers}; ++plane) {
    const int32_t type = reader.Take<int32_t>();
    const uint64_t row_bytes = reader.Take<uint64_t>();
    if (plane == 0) shape = {shape.layers, type, row_bytes};
    if (type != shape.element_type) Refuse("type", std::to_string(shape.element_type), std::to_string(type));
    if (row_bytes != shape.row_bytes) Refuse("row_bytes", std::to_string(shape.row_bytes), std::to_string(row_bytes));
    reader.Skip(row_bytes);
  }
  if (reader.left() != 0) Refuse("size", "nothing behind the last row", std::to_string(reader.left()));
  return shape;
}

size_t StateBytes(const StateShape& shape, size_t tokens) {
  return kHeadBytes + kShapeBytes + 2 * shape.layers * kPlaneHeadBytes +
         tokens * (kCellBytes + 2 * shape.layers * shape.row_bytes);
}

void StateToBlocks(std::span<const uint8_t> state, const StateShape& shape, const BlockShape& form, const BlockRun& run,
                   std::span<uint8_t> memory) {
  CheckRun(shape, form, run, memory.size());
  const uint32_t tokens = static_cast<uint32_t>(run.to - run.from);
  if (state.size() != StateBytes(shape, tokens)) {
    Refuse("size", std::to_string(StateBytes(shape, tokens)) + " bytes", std::to_string(state.size()));
  }
  Reader reader(state);
  reader.Expect<uint32_t>("magic", kMagic);
  reader.Take<int32_t>();
  reader.Expect<uint32_t>("streams", 1);
  reader.Expect<uint32_t>("cells", tokens);
  // Cells come in the order of llama.cpp's memory, whatever that is.
  std::vector<uint32_t> index_of_cell(tokens);
  std::vector<bool> seen(tokens, false);
  for (uint32_t cell = 0; cell < tokens; ++cell) {
    const int32_t position = reader.Take<int32_t>();
    reader.Expect<uint32_t>("cell.sequences", 1);
    reader.Take<int32_t>();
    if (position < run.from || position >= run.to || seen[position - run.from]) {
      Refuse("cell.position", "each of the run once", std::to_string(position));
    }
    index_of_cell[cell] = static_cast<uint32_t>(position - run.from);
    seen[position - run.from] = true;
  }
  reader.Expect<uint32_t>("transposed", 0);
  reader.Expect<uint32_t>("layers", shape.layers);
  // Everything is checked before anything is written.
  std::vector<const uint8_t*> planes(2 * shape.layers);
  for (const uint8_t*& plane : planes) {
    reader.Expect<int32_t>("type", shape.element_type);
    reader.Expect<uint64_t>("row_bytes", shape.row_bytes);
    plane = reader.Skip(tokens * shape.row_bytes);
  }
  if (reader.left() != 0) Refuse("size", "nothing behind the last row", std::to_string(reader.left()));
  for (uint32_t plane = 0; plane < planes.size(); ++plane) {
    const uint32_t layer = plane % shape.layers;
    const uint64_t offset = plane < shape.layers ? 0 : form.plane_stride;
    for (uint32_t cell = 0; cell < tokens; ++cell) {
      std::memcpy(memory.data() + Place(shape, form, run, layer, index_of_cell[cell]) + offset,
                  planes[plane] + cell * shape.row_bytes, shape.row_bytes);
    }
  }
}

void BlocksToState(std::span<const uint8_t> memory, const StateShape& shape, const BlockShape& form,
                   const BlockRun& run, std::vector<uint8_t>& state) {
  CheckRun(shape, form, run, memory.size());
  const uint32_t tokens = static_cast<uint32_t>(run.to - run.from);
  state.resize(StateBytes(shape, tokens));
  uint8_t* at = state.data();
  const auto put = [&at](auto number) {
    std::memcpy(at, &number, sizeof(number));
    at += sizeof(number);
  };
  put(kMagic);
  put(int32_t{0});
  put(uint32_t{1});
  put(tokens);
  for (uint32_t index = 0; index < tokens; ++index) {
    put(static_cast<int32_t>(run.from + index));
    put(uint32_t{1});
    put(int32_t{0});
  }
  put(uint32_t{0});
  put(shape.layers);
  for (uint32_t plane = 0; plane < 2 * shape.layers; ++plane) {
    const uint64_t offset = plane < shape.layers ? 0 : form.plane_stride;
    put(shape.element_type);
    put(shape.row_bytes);
    for (uint32_t index = 0; index < tokens; index += form.block_tokens) {
      const size_t rows = std::min<size_t>(form.block_tokens, tokens - index) * shape.row_bytes;
      std::memcpy(at, memory.data() + Place(shape, form, run, plane % shape.layers, index) + offset, rows);
      at += rows;
    }
  }
}

}  // namespace state_handoff::llama
