// Programs and transfers for the C++ tests: a source and a target region, random checked programs between them, and an
// executor whose ends can be waited for.
#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <random>

#include "../../cuda/core/copy_executor.h"
#include "../../cuda/core/copy_program_check.h"
#include "check.h"

namespace state_handoff::test {

using Random = std::mt19937_64;

inline int64_t Between(Random& random, int64_t least, int64_t most) {
  return std::uniform_int_distribution<int64_t>(least, most)(random);
}

inline std::vector<int32_t> Shuffled(Random& random, int32_t count) {
  std::vector<int32_t> ids(static_cast<size_t>(count));
  for (int32_t i = 0; i < count; ++i) ids[static_cast<size_t>(i)] = i;
  std::shuffle(ids.begin(), ids.end(), random);
  return ids;
}

// Blocks of `block` bytes, the rows of one table; all of each block, or every second slice of `slice` bytes of it.
inline CopyProgram BlockProgram(Random& random, int32_t blocks, int64_t block, int64_t slice) {
  CopyProgram program;
  program.tables.push_back(Table{Shuffled(random, blocks), Shuffled(random, blocks), {}, {}, block, block, 0, 0});
  Rectangle rectangle{0, 0, 0, 0, blocks, 0, 0, slice == 0 ? block : slice, 0, {}};
  if (slice != 0) {
    rectangle.loop_count = 1;
    rectangle.loops[0] = Loop{block / (2 * slice), 2 * slice, 2 * slice};
  }
  program.rectangles.push_back(rectangle);
  return program;
}

// The slow way.
inline void CopyPlainly(const CopyProgram& program, const uint8_t* source, uint8_t* target) {
  for (const Rectangle& rectangle : program.rectangles) {
    const int64_t rows = rectangle.table < 0 ? 1 : rectangle.table_count;
    for (int64_t row = 0; row < rows; ++row) {
      int64_t from = rectangle.source_offset;
      int64_t to = rectangle.target_offset;
      if (rectangle.table >= 0) {
        const Table& table = program.tables[static_cast<size_t>(rectangle.table)];
        from += table.SourceOffset(static_cast<size_t>(rectangle.table_from + row));
        to += table.TargetOffset(static_cast<size_t>(rectangle.table_from + row));
      }
      int64_t turns = 1;
      for (int i = 0; i < rectangle.loop_count; ++i) turns *= rectangle.loops[static_cast<size_t>(i)].count;
      for (int64_t turn = 0; turn < turns; ++turn) {
        int64_t rest = turn;
        int64_t source_at = from;
        int64_t target_at = to;
        for (int i = rectangle.loop_count - 1; i >= 0; --i) {
          const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
          source_at += rest % loop.count * loop.source_stride;
          target_at += rest % loop.count * loop.target_stride;
          rest /= loop.count;
        }
        std::copy(source + source_at, source + source_at + rectangle.fragment_bytes, target + target_at);
      }
    }
  }
}

// Waits for ends of transfers by id.
class Ends {
 public:
  void Report(const Transfer& transfer) {
    const std::lock_guard lock(mutex_);
    ++ended_[transfer.id()];
    changed_.notify_all();
  }
  void Wait(uint64_t id) {
    std::unique_lock lock(mutex_);
    CHECK(changed_.wait_for(lock, std::chrono::seconds(60), [&] { return ended_[id] > 0; }));
    CHECK_EQUAL(ended_[id], 1);
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, int> ended_;
};

inline TransferTarget TargetOf(const std::shared_ptr<HostRegion>& region) {
  TransferTarget target;
  target.uses.emplace_back(region, "region");
  target.regions.push_back(CopyTarget{target.uses.back().data(), region->bytes()});
  return target;
}

inline TransferSource SourceOf(const std::shared_ptr<HostRegion>& region) {
  const std::shared_ptr<SealedMemory> memory = region->memory();
  TransferSource source;
  source.regions.push_back(CopySource{memory->data(), memory->bytes()});
  source.keep = memory;
  return source;
}

}  // namespace state_handoff::test
