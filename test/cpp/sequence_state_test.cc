// Promises of the llama.cpp example: state goes to blocks by the position of each cell, in whatever order cells lie,
// and comes back in order; state that is not exactly the tokens asked for is refused with nothing written, whatever its
// bytes.
#include "../../examples/llama/native/sequence_state.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <stdexcept>

#include "check.h"

namespace state_handoff::test {

namespace {

using llama::BlockRun;
using llama::BlockShape;
using llama::BlocksToState;
using llama::ShapeOf;
using llama::StateBytes;
using llama::StateShape;
using llama::StateToBlocks;

constexpr StateShape kShape{3, 1, 8};
// Gaps between planes, layers and blocks show who writes too far.
constexpr BlockShape kForm{4, 3 * 80 + 16, 80, 36};
constexpr int32_t kFrom = 8;
constexpr int32_t kTokens = 10;
constexpr size_t kMemory = 6 * kForm.block_stride;
constexpr uint8_t kUntouched = 0xee;
const std::vector<int32_t> kBlocks{5, 0, 3};
const BlockRun kRun{kFrom, kFrom + kTokens, kBlocks};

uint8_t ByteOf(uint32_t plane, int32_t position, size_t at) {
  return static_cast<uint8_t>(plane * 97 + position * 13 + at * 5);
}

// As llama.cpp would write it, its cells in this order.
std::vector<uint8_t> StateOf(const std::vector<int32_t>& positions) {
  std::vector<uint8_t> state;
  const auto put = [&state](auto number) {
    const size_t at = state.size();
    state.resize(at + sizeof(number));
    std::memcpy(state.data() + at, &number, sizeof(number));
  };
  put(uint32_t{0xaf143cd8});
  put(int32_t{0});
  put(uint32_t{1});
  put(static_cast<uint32_t>(positions.size()));
  for (const int32_t position : positions) {
    put(position);
    put(uint32_t{1});
    put(int32_t{0});
  }
  put(uint32_t{0});
  put(kShape.layers);
  for (uint32_t plane = 0; plane < 2 * kShape.layers; ++plane) {
    put(kShape.element_type);
    put(kShape.row_bytes);
    for (const int32_t position : positions) {
      for (size_t at = 0; at < kShape.row_bytes; ++at) state.push_back(ByteOf(plane, position, at));
    }
  }
  return state;
}

std::vector<int32_t> InOrder() {
  std::vector<int32_t> positions(kTokens);
  std::iota(positions.begin(), positions.end(), kFrom);
  return positions;
}

std::vector<uint8_t> ExpectedMemory() {
  std::vector<uint8_t> memory(kMemory, kUntouched);
  for (uint32_t plane = 0; plane < 2 * kShape.layers; ++plane) {
    for (int32_t index = 0; index < kTokens; ++index) {
      const size_t place = kBlocks[index / 4] * kForm.block_stride + plane % kShape.layers * kForm.layer_stride +
                           (plane < kShape.layers ? 0 : kForm.plane_stride) + index % 4 * kShape.row_bytes;
      for (size_t at = 0; at < kShape.row_bytes; ++at) memory[place + at] = ByteOf(plane, kFrom + index, at);
    }
  }
  return memory;
}

template <typename Call>
std::string RefusalOf(Call&& call) {
  try {
    call();
    return "";
  } catch (const std::runtime_error& error) {
    return error.what();
  }
}

// What it is refused with; empty when it is taken. Refused or not, nothing but the run is ever written.
std::string ParsedAs(const std::vector<uint8_t>& state, std::vector<uint8_t>& memory) {
  memory.assign(kMemory, kUntouched);
  const std::string refusal = RefusalOf([&] { StateToBlocks(state, kShape, kForm, kRun, memory); });
  if (!refusal.empty()) CHECK(memory == std::vector<uint8_t>(kMemory, kUntouched));
  return refusal;
}

template <typename Number>
std::string RefusalWith(size_t at, Number number) {
  std::vector<uint8_t> state = StateOf(InOrder());
  CHECK(at + sizeof(number) <= state.size());
  std::memcpy(state.data() + at, &number, sizeof(number));
  std::vector<uint8_t> memory;
  return ParsedAs(state, memory);
}

constexpr size_t kCells = 16;
constexpr size_t kAfterCells = kCells + 12 * kTokens;
constexpr size_t kPlane = 12 + kTokens * kShape.row_bytes;

}  // namespace

TEST(LlamaStateGoesWhereTheCellsPositionsSay) {
  std::mt19937 random(1);
  std::vector<int32_t> positions = InOrder();
  for (int round = 0; round < 50; ++round) {
    std::vector<uint8_t> memory;
    CHECK_EQUAL(ParsedAs(StateOf(positions), memory), "");
    CHECK(memory == ExpectedMemory());
    std::vector<uint8_t> state;
    BlocksToState(memory, kShape, kForm, kRun, state);
    CHECK(state == StateOf(InOrder()));
    std::shuffle(positions.begin(), positions.end(), random);
  }
}

TEST(LlamaStateOfAnotherFormIsRefusedByName) {
  CHECK_EQUAL(RefusalWith<uint32_t>(0, 0xaf143cd9), "state.magic: expected 2937339096, got 2937339097");
  CHECK_EQUAL(RefusalWith<uint32_t>(8, 2), "state.streams: expected 1, got 2");
  CHECK_EQUAL(RefusalWith<uint32_t>(12, 9), "state.cells: expected 10, got 9");
  CHECK_EQUAL(RefusalWith<uint32_t>(12, 0xffffffff), "state.cells: expected 10, got 4294967295");
  CHECK_EQUAL(RefusalWith<uint32_t>(kCells + 4, 2), "state.cell.sequences: expected 1, got 2");
  CHECK_EQUAL(RefusalWith<uint32_t>(kCells + 4, 0), "state.cell.sequences: expected 1, got 0");
  CHECK_EQUAL(RefusalWith<uint32_t>(kAfterCells, 1), "state.transposed: expected 0, got 1");
  CHECK_EQUAL(RefusalWith<uint32_t>(kAfterCells + 4, 4), "state.layers: expected 3, got 4");
  for (uint32_t plane = 0; plane < 2 * kShape.layers; ++plane) {
    const size_t at = kAfterCells + 8 + plane * kPlane;
    CHECK_EQUAL(RefusalWith<int32_t>(at, 30), "state.type: expected 1, got 30");
    CHECK_EQUAL(RefusalWith<uint64_t>(at + 4, 16), "state.row_bytes: expected 8, got 16");
    CHECK_EQUAL(RefusalWith<uint64_t>(at + 4, std::numeric_limits<uint64_t>::max()),
                "state.row_bytes: expected 8, got 18446744073709551615");
  }
}

TEST(LlamaStateWithPositionsThatAreNotTheRunsIsRefused) {
  for (const int32_t position : {kFrom - 1, kFrom + kTokens, kFrom + 1, -1, std::numeric_limits<int32_t>::min(),
                                 std::numeric_limits<int32_t>::max()}) {
    // The position of the first cell; the second one has kFrom + 1, too.
    CHECK_EQUAL(RefusalWith(kCells, position),
                "state.cell.position: expected each of the run once, got " + std::to_string(position));
  }
}

TEST(LlamaStateThatIsCutOffOrTooLongIsRefused) {
  const std::vector<uint8_t> state = StateOf(InOrder());
  CHECK_EQUAL(state.size(), StateBytes(kShape, kTokens));
  std::vector<uint8_t> memory;
  for (size_t size = 0; size < state.size(); ++size) {
    const std::string refusal = ParsedAs({state.begin(), state.begin() + size}, memory);
    CHECK_EQUAL(refusal.rfind("state.size: expected ", 0), 0u);
  }
  std::vector<uint8_t> longer = state;
  longer.push_back(0);
  CHECK_EQUAL(ParsedAs(longer, memory).rfind("state.size: expected ", 0), 0u);
}

// Only what carries no meaning here (names of sequences) and the rows themselves may have any value.
TEST(LlamaStateWithAnyByteFlippedIsRefusedOrIsItsRows) {
  const std::vector<uint8_t> good = StateOf(InOrder());
  std::vector<uint8_t> memory;
  for (size_t at = 0; at < good.size(); ++at) {
    for (const int bit : {0, 3, 7}) {
      std::vector<uint8_t> state = good;
      state[at] ^= static_cast<uint8_t>(1 << bit);
      const std::string refusal = ParsedAs(state, memory);
      const bool is_name = (at >= 4 && at < 8) || (at >= kCells && at < kAfterCells && (at - kCells) % 12 >= 8);
      const bool is_row = at >= kAfterCells + 8 && (at - kAfterCells - 8) % kPlane >= 12;
      CHECK_EQUAL(refusal.empty(), is_name || is_row);
      if (is_row) {
        const std::vector<uint8_t> expected = ExpectedMemory();
        const std::ptrdiff_t same = std::inner_product(memory.begin(), memory.end(), expected.begin(),
                                                       std::ptrdiff_t{0}, std::plus<>(), std::equal_to<>());
        CHECK_EQUAL(same, static_cast<std::ptrdiff_t>(kMemory) - 1);
      }
    }
  }
}

TEST(LlamaShapeIsThatOfOneTokensState) {
  const std::vector<uint8_t> good = StateOf({0});
  const StateShape shape = ShapeOf(good);
  CHECK_EQUAL(shape.layers, kShape.layers);
  CHECK_EQUAL(shape.element_type, kShape.element_type);
  CHECK_EQUAL(shape.row_bytes, kShape.row_bytes);
  const size_t planes = kCells + 12 + 8;
  const size_t plane = 12 + kShape.row_bytes;
  const auto refusal = [&](size_t at, auto number) {
    std::vector<uint8_t> state = good;
    std::memcpy(state.data() + at, &number, sizeof(number));
    return RefusalOf([&] { ShapeOf(state); });
  };
  // The values of the first layer; what was first is what is expected.
  CHECK_EQUAL(refusal(planes + 3 * plane, int32_t{8}), "state.type: expected 1, got 8");
  CHECK_EQUAL(refusal(planes + 3 * plane + 4, uint64_t{4}), "state.row_bytes: expected 8, got 4");
  CHECK_EQUAL(refusal(planes + 4, std::numeric_limits<uint64_t>::max()).rfind("state.size: expected more", 0), 0u);
  CHECK_EQUAL(refusal(planes - 4, std::numeric_limits<uint32_t>::max()).rfind("state.", 0), 0u);
  CHECK_EQUAL(refusal(planes - 4, uint32_t{2}), "state.size: expected nothing behind the last row, got 40");
  CHECK_EQUAL(refusal(planes - 8, uint32_t{1}), "state.transposed: expected 0, got 1");
  for (size_t size = 0; size < good.size(); ++size) {
    const std::vector<uint8_t> cut(good.begin(), good.begin() + size);
    CHECK(!RefusalOf([&] { ShapeOf(cut); }).empty());
  }
}

TEST(LlamaRunsAndShapesThatReachTooFarAreRefused) {
  std::vector<uint8_t> memory(kMemory, kUntouched);
  const std::vector<uint8_t> state = StateOf(InOrder());
  std::vector<uint8_t> out;
  // Both directions check alike.
  const auto refusal = [&](const BlockShape& form, const BlockRun& run) {
    const std::string into = RefusalOf([&] { StateToBlocks(state, kShape, form, run, memory); });
    CHECK_EQUAL(RefusalOf([&] { BlocksToState(memory, kShape, form, run, out); }), into);
    CHECK(memory == std::vector<uint8_t>(kMemory, kUntouched));
    return into;
  };
  const std::vector<int32_t> beyond{5, 0, 6};
  const std::vector<int32_t> negative{5, 0, -1};
  const std::vector<int32_t> few{5, 0};
  const std::vector<int32_t> many{5, 0, 3, 1};
  const int32_t to = kFrom + kTokens;
  CHECK_EQUAL(refusal(kForm, {kFrom, to, beyond}), "run.blocks: expected ids below 6, got 6");
  CHECK_EQUAL(refusal(kForm, {kFrom, to, negative}), "run.blocks: expected ids below 6, got -1");
  CHECK_EQUAL(refusal(kForm, {kFrom, to, few}), "run.blocks: expected 3 blocks, got 2");
  CHECK_EQUAL(refusal(kForm, {kFrom, to, many}), "run.blocks: expected 3 blocks, got 4");
  CHECK_EQUAL(refusal(kForm, {kFrom + 1, to + 1, kBlocks}), "run.from: expected the first token of a block");
  CHECK_EQUAL(refusal(kForm, {kFrom, kFrom, kBlocks}), "run: expected at least one token");
  CHECK_EQUAL(refusal(kForm, {-4, 4, few}), "run: expected at least one token");
  const std::string strides = "shape: expected strides that reach over what lies inside them";
  CHECK_EQUAL(refusal({4, kForm.block_stride, 80, 31}, kRun), strides);
  CHECK_EQUAL(refusal({4, kForm.block_stride, 71, 36}, kRun), strides);
  CHECK_EQUAL(refusal({4, 239, 80, 36}, kRun), strides);
  CHECK_EQUAL(refusal({0, kForm.block_stride, 80, 36}, kRun), strides);
}

}  // namespace state_handoff::test
