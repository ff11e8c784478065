// Promises: a large walk of small pieces, which is written past the cache, brings the bytes of a plain loop and no
// others, cut anywhere; and what does not lie on whole lines is not written so.
#include "../../cuda/core/copy_walk.h"

#include <cstdlib>
#include <cstring>

#include "../../cuda/core/streamed_copy.h"
#include "transfer_fixture.h"

namespace state_handoff::test {

namespace {

// Twice what must be moved before a walk is streamed, and a margin that nothing may write.
constexpr size_t kBytes = 2 * CopyWalk::kStreamedBytesMin + 4096;

struct Aligned {
  Aligned() : data(static_cast<uint8_t*>(std::aligned_alloc(4096, kBytes))) { std::memset(data, 0xee, kBytes); }
  ~Aligned() { std::free(data); }
  Aligned(const Aligned&) = delete;

  uint8_t* const data;
};

// The first `part` bytes of each `token` bytes; eight tokens a block of either side, from target byte `offset` on.
CopyProgram Slices(Random& random, int64_t token, int64_t part, int64_t offset = 0) {
  const int64_t block = 8 * token;
  const auto blocks = static_cast<int32_t>(2 * CopyWalk::kStreamedBytesMin / block);
  CopyProgram program;
  program.tables.push_back(Table{Shuffled(random, blocks), Shuffled(random, blocks), {}, {}, block, block, 0, 0});
  Rectangle rectangle{0, 0, 0, 0, blocks, 0, offset, part, 1, {}};
  rectangle.loops[0] = Loop{8, token, token};
  program.rectangles.push_back(rectangle);
  return program;
}

CopyWalk WalkOf(const CopyProgram& program, const uint8_t* source, uint8_t* target) {
  return CopyWalk(program, program.rectangles[0], CopySource{source, kBytes}, CopyTarget{target, kBytes});
}

}  // namespace

TEST(StreamedPiecesAreThoseOfAPlainLoop) {
  Random random(41);
  const Aligned source;
  for (size_t i = 0; i < kBytes; ++i) source.data[i] = static_cast<uint8_t>(random() >> 24);
  for (const auto& [token, part] : {std::pair<int64_t, int64_t>{128, 64}, {256, 192}, {2048, 1024}, {4096, 4032}}) {
    const CopyProgram program = Slices(random, token, part);
    const Aligned expected;
    CopyPlainly(program, source.data, expected.data);
    const Aligned target;
    const CopyWalk walk = WalkOf(program, source.data, target.data);
    CHECK_EQUAL(walk.streamed(), CanStream());
    for (int64_t at = 0; at < walk.bytes();) {
      const int64_t end = std::min(at + Between(random, 1, 100'000), walk.bytes());
      walk.Copy(at, end);
      at = end;
    }
    CHECK(std::memcmp(target.data, expected.data, kBytes) == 0);
  }
}

TEST(WhatIsSmallLongOrOffItsLinesIsNotStreamed) {
  Random random(42);
  const Aligned source;
  const Aligned target;
  const auto streamed = [&](const CopyProgram& program, int64_t shift = 0) {
    return WalkOf(program, source.data, target.data + shift).streamed();
  };
  CHECK_EQUAL(streamed(Slices(random, 128, 64)), CanStream());
  CHECK(!streamed(Slices(random, 128, 96)));
  CHECK(!streamed(Slices(random, 160, 128)));
  CHECK(!streamed(Slices(random, 128, 64, 32)));
  CHECK(!streamed(Slices(random, 128, 64), 32));
  CHECK(!streamed(Slices(random, 8192, 4096)));
  CopyProgram small = Slices(random, 128, 64);
  small.rectangles[0].table_count -= 1;
  CHECK(!streamed(small));
  // Unless it is a part of more.
  const CopyWalk part(small, small.rectangles[0], CopySource{source.data, kBytes}, CopyTarget{target.data, kBytes},
                      CopyWalk::kStreamedBytesMin);
  CHECK_EQUAL(part.streamed(), CanStream());
  CopyProgram blocks = Slices(random, 128, 64);
  blocks.tables[0].target_block += 32;
  CHECK(!streamed(blocks));
  CopyProgram parts = Slices(random, 128, 64);
  parts.tables[0].target_sub.assign(parts.tables[0].target.size(), 0);
  parts.tables[0].source_sub = parts.tables[0].target_sub;
  CHECK_EQUAL(streamed(parts), CanStream());
  parts.tables[0].target_sub_stride = 32;
  CHECK(!streamed(parts));
}

}  // namespace state_handoff::test
