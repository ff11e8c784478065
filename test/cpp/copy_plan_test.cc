// Promises: a plan, run tile by tile, copies what a plain loop copies, whatever the strides, alignments, cuts and
// chunks; every vector lies at a multiple of its width; chunks are whole, in order and no larger than asked for.
#include "../../cuda/core/copy_plan.h"

#include <vector>

#include "device_copy.h"
#include "transfer_fixture.h"

namespace state_handoff::test {

namespace {

struct Nest {
  CopyProgram program;
  int64_t source_bytes;
  int64_t target_bytes;
};

// One rectangle with loops and rows in any order on the source side; everything is a multiple of `unit`.
Nest RandomNest(Random& random, int64_t unit) {
  Nest nest{};
  Rectangle rectangle{0, 0, -1, 0, 1, 0, 0, unit * Between(random, 1, 40), 0, {}};
  int64_t extent = rectangle.fragment_bytes;
  int64_t source_extent = rectangle.fragment_bytes;
  const int64_t depth = Between(random, 0, 4);
  const int64_t rows_at = Between(random, -2, depth);
  std::vector<Loop> loops;
  for (int64_t i = 0; i <= depth; ++i) {
    if (i == rows_at) {
      const auto count = static_cast<int32_t>(Between(random, 1, 7));
      const int64_t target_block = extent + unit * Between(random, 0, 3);
      const int64_t source_block = source_extent + unit * Between(random, 0, 3);
      rectangle.table = 0;
      rectangle.table_from = Between(random, 0, count - 1);
      rectangle.table_count = Between(random, 1, count - rectangle.table_from);
      nest.program.tables.push_back(
          Table{Shuffled(random, count), Shuffled(random, count), {}, {}, source_block, target_block, 0, 0});
      extent += (count - 1) * target_block;
      source_extent += (count - 1) * source_block;
    }
    if (i == depth) break;
    const int64_t count = Between(random, 1, 6);
    const bool dense = Between(random, 0, 2) == 0;
    const Loop loop{count, dense ? source_extent : source_extent + unit * Between(random, 0, 5),
                    dense ? extent : extent + unit * Between(random, 0, 5)};
    loops.insert(loops.begin(), loop);
    extent += (count - 1) * loop.target_stride;
    source_extent += (count - 1) * loop.source_stride;
  }
  rectangle.loop_count = static_cast<int>(loops.size());
  std::copy(loops.begin(), loops.end(), rectangle.loops.begin());
  rectangle.source_offset = unit * Between(random, 0, 9);
  rectangle.target_offset = unit * Between(random, 0, 9);
  nest.source_bytes = rectangle.source_offset + source_extent;
  nest.target_bytes = rectangle.target_offset + extent;
  nest.program.rectangles.push_back(rectangle);
  return nest;
}

std::vector<uint8_t> RandomBytes(Random& random, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random());
  return bytes;
}

void CheckChunks(const CopyPlan& plan, int64_t bytes, int64_t chunk_bytes) {
  uint32_t next = 0;
  int64_t all = 0;
  for (const PlanChunk& chunk : plan.chunks()) {
    CHECK_EQUAL(chunk.first_tile, next);
    CHECK(chunk.tiles > 0 && chunk.bytes > 0);
    CHECK(chunk.bytes <= chunk_bytes || chunk.tiles == 1);
    next += chunk.tiles;
    all += chunk.bytes;
  }
  CHECK_EQUAL(all, bytes);
  CHECK_EQUAL(plan.bytes(), bytes);
}

void RunPlan(const CopyPlan& plan) {
  std::vector<uint64_t> image(plan.image_bytes() / sizeof(uint64_t) + 2);
  const uint64_t address = (reinterpret_cast<uint64_t>(image.data()) + 15) / 16 * 16;
  plan.WriteImage(reinterpret_cast<uint8_t*>(address));
  for (const PlanChunk& chunk : plan.chunks()) RunLaunchOnHost(plan.Launch(address, chunk), chunk.tiles);
  const CopyLaunch launch = plan.Launch(address, PlanChunk{0, 0, 0});
  for (uint32_t i = 0; i < launch.walk_count; ++i) {
    const DeviceWalk& walk = launch.walks[i];
    const uint64_t width = uint64_t{1} << walk.width_log2;
    for (uint32_t vector = 0; vector < walk.vectors; ++vector) {
      const DeviceRow place = PlaceOf(walk, launch.rows, vector);
      CHECK_EQUAL((walk.source + static_cast<uint64_t>(place.source)) % width, 0u);
      CHECK_EQUAL((walk.target + static_cast<uint64_t>(place.target)) % width, 0u);
    }
  }
}

}  // namespace

TEST(PlanDividesLikeDivision) {
  Random random(11);
  for (int i = 0; i < 200'000; ++i) {
    const auto divisor =
        static_cast<uint32_t>(std::max<int64_t>(1, Between(random, 1, kWalkVectorsMax) >> Between(random, 0, 30)));
    const auto number = static_cast<uint32_t>(Between(random, 0, kWalkVectorsMax) >> Between(random, 0, 30));
    const FastDivisor fast = MakeFastDivisor(divisor);
    CHECK_EQUAL(Divide(number, fast), number / divisor);
    CHECK_EQUAL(Divide(kWalkVectorsMax, fast), kWalkVectorsMax / divisor);
    CHECK_EQUAL(Divide(divisor - 1, fast), 0u);
    CHECK_EQUAL(Divide(divisor, fast), 1u);
  }
}

TEST(PlanCopiesWhatAPlainLoopCopies) {
  Random random(12);
  for (int round = 0; round < 3'000; ++round) {
    const int64_t unit = int64_t{1} << Between(random, 0, 4);
    const Nest nest = RandomNest(random, unit);
    CheckProgram(nest.program, std::vector<int64_t>{nest.source_bytes}, std::vector<int64_t>{nest.target_bytes}, {});
    // Whatever the regions' own alignment.
    const int64_t source_shift = Between(random, 0, 16);
    const int64_t target_shift = Between(random, 0, 1) == 0 ? source_shift : Between(random, 0, 16);
    const std::vector<uint8_t> source = RandomBytes(random, nest.source_bytes + source_shift);
    std::vector<uint8_t> target = RandomBytes(random, nest.target_bytes + target_shift);
    std::vector<uint8_t> expected = target;
    CopyPlainly(nest.program, source.data() + source_shift, expected.data() + target_shift);

    PlanLimits limits;
    if (Between(random, 0, 1) == 0) limits.walk_vectors = Between(random, 1, 64);
    if (Between(random, 0, 1) == 0) limits.chunk_bytes = Between(random, 1, 8'192);
    const CopyPlan plan(
        nest.program, {PlanRegion{reinterpret_cast<uint64_t>(source.data() + source_shift), nest.source_bytes}},
        {PlanRegion{reinterpret_cast<uint64_t>(target.data() + target_shift), nest.target_bytes}}, limits);
    CheckChunks(plan, ProgramBytes(nest.program), limits.chunk_bytes);
    RunPlan(plan);
    CHECK(target == expected);
  }
}

TEST(PlanUsesTheWidestVectorsThatFit) {
  Random random(13);
  const CopyProgram blocks = BlockProgram(random, 8, 4'096, 0);
  const auto width = [&](uint64_t source, uint64_t target) {
    const CopyPlan plan(blocks, {PlanRegion{source, 32'768}}, {PlanRegion{target, 32'768}});
    std::vector<uint64_t> image(plan.image_bytes() / sizeof(uint64_t) + 2);
    const uint64_t address = (reinterpret_cast<uint64_t>(image.data()) + 15) / 16 * 16;
    plan.WriteImage(reinterpret_cast<uint8_t*>(address));
    return 1 << plan.Launch(address, plan.chunks()[0]).walks[0].width_log2;
  };
  CHECK_EQUAL(width(1 << 20, 1 << 21), 16);
  CHECK_EQUAL(width((1 << 20) + 8, 1 << 21), 8);
  CHECK_EQUAL(width(1 << 20, (1 << 21) + 4), 4);
  CHECK_EQUAL(width((1 << 20) + 6, 1 << 21), 2);
  CHECK_EQUAL(width(1 << 20, (1 << 21) + 1), 1);
}

TEST(PlanOfManyLayersIsOneWalkAndSmall) {
  // 64 layers × K and V × 512 blocks of 32 KiB: 2 GiB in 32 chunks.
  Random random(14);
  CopyProgram program;
  constexpr int64_t kBlock = 32 << 10;
  program.tables.push_back(Table{Shuffled(random, 512), Shuffled(random, 512), {}, {}, kBlock, kBlock, 0, 0});
  Rectangle rectangle{0, 0, 0, 0, 512, 0, 0, kBlock, 2, {}};
  rectangle.loops[0] = Loop{2, 64 * 512 * kBlock, 64 * 512 * kBlock};
  rectangle.loops[1] = Loop{64, 512 * kBlock, 512 * kBlock};
  program.rectangles.push_back(rectangle);
  const int64_t bytes = int64_t{2} * 64 * 512 * kBlock;
  const CopyPlan plan(program, {PlanRegion{1 << 20, bytes}}, {PlanRegion{1 << 20, bytes}});
  CHECK_EQUAL(plan.chunks().size(), 32u);
  CHECK(plan.image_bytes() < 16 << 10);
  CheckChunks(plan, bytes, 64 << 20);
}

}  // namespace state_handoff::test
