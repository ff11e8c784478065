// Promises: chunks that are gathered, moved as one piece and scattered bring exactly the bytes of a plain loop, each
// once, no chunk is larger than asked for, every program of a chunk passes the check, and both ends cut alike.
#include "../../cuda/core/packed_copy.h"

#include "../../cuda/core/copy_walk.h"
#include "../../cuda/transport/nixl_pack_message.h"
#include "transfer_fixture.h"

namespace state_handoff::test {

namespace {

constexpr size_t kBytes = 1 << 20;

std::vector<uint8_t> Filled(Random& random) {
  std::vector<uint8_t> bytes(kBytes);
  for (uint8_t& each : bytes) each = static_cast<uint8_t>(random());
  return bytes;
}

// Layers of tokens of heads, of which a part is copied; sometimes once and not for each row of a table.
CopyProgram SlicedProgram(Random& random) {
  const int64_t head = int64_t{1} << Between(random, 0, 6);
  const int64_t heads = Between(random, 1, 4);
  const int64_t part = Between(random, 1, heads);
  const int64_t tokens = Between(random, 1, 8);
  const int64_t layers = Between(random, 1, 3);
  const int64_t block = head * heads * tokens * layers;
  const auto blocks = static_cast<int32_t>(Between(random, 1, std::min<int64_t>(64, kBytes / block)));
  CopyProgram program;
  program.tables.push_back(Table{Shuffled(random, blocks), Shuffled(random, blocks), {}, {}, block, block, 0, 0});
  const int64_t from = Between(random, 0, blocks - 1);
  Rectangle rectangle{0, 0, 0, from, Between(random, 1, blocks - from), 0, 0, head * part, 2, {}};
  if (Between(random, 0, 4) == 0) rectangle.table = -1;
  rectangle.loops[0] = Loop{layers, block / layers, block / layers};
  rectangle.loops[1] = Loop{tokens, head * heads, head * heads};
  program.rectangles.push_back(rectangle);
  return program;
}

void Run(const CopyProgram& program, const uint8_t* source, uint8_t* target) {
  for (const Rectangle& rectangle : program.rectangles) {
    const CopyWalk walk(program, rectangle, CopySource{source, kBytes}, CopyTarget{target, kBytes});
    walk.Copy(0, walk.bytes());
  }
}

}  // namespace

TEST(PackedChunksBringWhatAPlainLoopBrings) {
  Random random(31);
  const std::vector<int64_t> sizes{static_cast<int64_t>(kBytes)};
  for (int round = 0; round < 400; ++round) {
    const CopyProgram program = SlicedProgram(random);
    const std::vector<uint8_t> source = Filled(random);
    std::vector<uint8_t> expected(kBytes, 0xee);
    CopyPlainly(program, source.data(), expected.data());
    std::vector<uint8_t> packed(kBytes, 0xee);
    std::vector<uint8_t> direct(kBytes, 0xee);
    const int64_t chunk_bytes = Between(random, 1, 4096);
    PackedChunks chunks(program, {0}, chunk_bytes);
    PackedChunk chunk;
    int64_t bytes = 0;
    while (chunks.Next(chunk)) {
      CHECK(chunk.bytes <= chunk_bytes);
      bytes += chunk.bytes;
      const std::vector<int64_t> slot{chunk.bytes};
      CheckProgram(chunk.pack, sizes, slot, {});
      CheckProgram(chunk.unpack, slot, sizes, {});
      CheckProgram(chunk.direct, sizes, sizes, {});
      std::vector<uint8_t> staging(kBytes, 0x11);
      Run(chunk.pack, source.data(), staging.data());
      Run(chunk.unpack, staging.data(), packed.data());
      Run(chunk.direct, source.data(), direct.data());
    }
    CHECK_EQUAL(bytes, ProgramBytes(program));
    CHECK_EQUAL(chunks.bytes(), bytes);
    CHECK(packed == expected);
    CHECK(direct == expected);
  }
}

TEST(PackedChunksAreCutAlikeWhateverTheOtherEndsBlocksAre) {
  Random random(32);
  for (int round = 0; round < 100; ++round) {
    const CopyProgram program = SlicedProgram(random);
    CopyProgram other = program;
    for (size_t i = 0; i < other.tables[0].target.size(); ++i) other.tables[0].target[i] = static_cast<int32_t>(i);
    const int64_t chunk_bytes = Between(random, 1, 4096);
    PackedChunks mine(program, {0}, chunk_bytes);
    PackedChunks theirs(other, {0}, chunk_bytes);
    PackedChunk left;
    PackedChunk right;
    for (bool more = true; more;) {
      more = mine.Next(left);
      CHECK_EQUAL(theirs.Next(right), more);
      CHECK_EQUAL(left.bytes, right.bytes);
      CHECK_EQUAL(left.pack.rectangles.size(), right.pack.rectangles.size());
      for (size_t i = 0; i < left.pack.rectangles.size(); ++i) {
        CHECK_EQUAL(left.pack.rectangles[i].target_offset, right.pack.rectangles[i].target_offset);
        CHECK_EQUAL(left.pack.rectangles[i].source_offset, right.pack.rectangles[i].source_offset);
      }
    }
  }
}

TEST(PackMessagesComeBackAsTheyWereAndBrokenOnesAreNone) {
  Random random(33);
  for (int round = 0; round < 200; ++round) {
    PackMessage message;
    for (int64_t i = Between(random, 0, 3); i > 0; --i) message.read.push_back(PackTicket{random(), random()});
    const CopyProgram program = SlicedProgram(random);
    if (Between(random, 0, 3) != 0) {
      message.ticket = PackTicket{random(), random() | 1};
      message.program = program;
    }
    const std::string text = EncodePackMessage(message);
    const std::optional<PackMessage> back = DecodePackMessage(text);
    CHECK(back.has_value());
    CHECK(back->read == message.read);
    CHECK(back->ticket == message.ticket);
    CHECK_EQUAL(back->program.has_value(), message.program.has_value());
    if (message.program) {
      CHECK(back->program->tables[0].source == program.tables[0].source);
      CHECK_EQUAL(back->program->rectangles[0].fragment_bytes, program.rectangles[0].fragment_bytes);
      CHECK_EQUAL(back->program->rectangles[0].loops[1].source_stride, program.rectangles[0].loops[1].source_stride);
    }
    CHECK(!DecodePackMessage(text.substr(0, text.size() - 1)).has_value());
    CHECK(!DecodePackMessage(text + "x").has_value());
    CHECK(!DecodePackMessage(text.substr(0, static_cast<size_t>(Between(random, 0, 40)))).has_value());
    // Whatever bit turns over: a message or none, never a crash.
    std::string broken = text;
    const auto at = static_cast<size_t>(Between(random, 0, static_cast<int64_t>(text.size()) - 1));
    broken[at] = static_cast<char>(broken[at] ^ (1 << Between(random, 0, 7)));
    (void)DecodePackMessage(broken);
  }
  PackMessage empty;
  empty.program = SlicedProgram(random);
  CHECK(!DecodePackMessage(EncodePackMessage(empty)).has_value());  // the ticket that an empty slot shows
}

}  // namespace state_handoff::test
