// Promises: a program's messages are its rows, in order, of the sizes of its rows; those that are staged and those that
// are not bring together what a plain loop brings, each byte once; no group is larger than asked for.
#include "../../cuda/core/message_chunks.h"

#include <cstring>

#include "../../cuda/core/copy_walk.h"
#include "transfer_fixture.h"

namespace state_handoff::test {

namespace {

constexpr size_t kBytes = 1 << 20;
constexpr int64_t kStaging = 4096;

void Run(const CopyProgram& program, const uint8_t* source, uint8_t* target) {
  for (const Rectangle& rectangle : program.rectangles) {
    const CopyWalk walk(program, rectangle, CopySource{source, kBytes}, CopyTarget{target, kBytes});
    walk.Copy(0, walk.bytes());
  }
}

// Rows of slices, and rows of one piece, by turns.
CopyProgram MixedProgram(Random& random) {
  CopyProgram program;
  for (int64_t i = 0; i < 3; ++i) {
    const auto blocks = static_cast<int32_t>(Between(random, 1, 400));
    const int64_t block = 512;
    program.tables.push_back(Table{Shuffled(random, blocks), Shuffled(random, blocks), {}, {}, block, block, 0, 0});
    const int64_t at = i << 18;
    Rectangle rectangle{0, 0, i, 0, blocks, at, at, Between(random, 1, 64), 1, {}};
    rectangle.loops[0] = Loop{Between(random, 0, 2) == 0 ? 1 : Between(random, 2, 8), 64, 64};
    program.rectangles.push_back(rectangle);
  }
  return program;
}

}  // namespace

TEST(MessagesAreTheRowsOfAProgramAndBringWhatItCopies) {
  Random random(41);
  const std::vector<int64_t> sizes{static_cast<int64_t>(kBytes)};
  for (int round = 0; round < 100; ++round) {
    const CopyProgram program = MixedProgram(random);
    std::vector<uint8_t> source(kBytes);
    for (uint8_t& each : source) each = static_cast<uint8_t>(random());
    std::vector<uint8_t> expected(kBytes, 0xee);
    CopyPlainly(program, source.data(), expected.data());
    std::vector<uint8_t> target(kBytes, 0xee);
    std::vector<int64_t> rows;
    for (const Rectangle& each : program.rectangles) rows.insert(rows.end(), each.table_count, RowBytes(each));
    MessageChunks chunks(program, kStaging);
    MessageChunk chunk;
    size_t at = 0;
    while (chunks.Next(chunk)) {
      CHECK(chunk.messages.size() <= MessageChunks::kMessagesMax);
      CHECK(chunk.staged.bytes <= kStaging);
      std::vector<uint8_t> sent(kBytes);
      std::vector<uint8_t> received(kBytes);
      if (chunk.staged.bytes > 0) {
        CheckProgram(chunk.staged.pack, sizes, std::vector<int64_t>{chunk.staged.bytes}, {});
        CheckProgram(chunk.staged.unpack, std::vector<int64_t>{chunk.staged.bytes}, sizes, {});
      }
      Run(chunk.staged.pack, source.data(), sent.data());
      int64_t bytes = 0;
      for (const Message& message : chunk.messages) {
        CHECK_EQUAL(message.bytes, rows.at(at++));
        const uint8_t* from = (message.staged ? sent : source).data() + message.source_offset;
        std::memcpy((message.staged ? received : target).data() + message.target_offset, from,
                    static_cast<size_t>(message.bytes));
        bytes += message.bytes;
      }
      CHECK_EQUAL(chunk.bytes, bytes);
      Run(chunk.staged.unpack, received.data(), target.data());
    }
    CHECK_EQUAL(at, rows.size());
    CHECK(target == expected);
  }
}

TEST(MessagesAreRefusedWhenAScatteredRowFitsNoStaging) {
  Random random(42);
  CopyProgram program = MixedProgram(random);
  program.rectangles[1].loops[0].count = 8;
  const int64_t row = RowBytes(program.rectangles[1]);
  bool refused = false;
  try {
    MessageChunks chunks(program, row - 1);
  } catch (const NativeError& error) {
    refused = error.code() == ErrorCode::kNATIVE_LIMIT;
  }
  CHECK(refused);
  // In one piece, a row may have any size.
  program.rectangles = {program.rectangles[1]};
  program.rectangles[0].loop_count = 0;
  program.rectangles[0].fragment_bytes = 512;
  MessageChunks chunks(program, 1);
  MessageChunk chunk;
  CHECK(chunks.Next(chunk));
}

}  // namespace state_handoff::test
