// A checked program lowered for GPUs: walks in device form, the rows of its tables as byte offsets, and the chunks in
// which it is launched. Addresses are those of the device that copies.
//
// Pure arithmetic over numbers; nothing here calls a driver. A program with too much to number is refused.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "copy_program.h"
#include "device_walk.h"

namespace state_handoff {

struct PlanRegion {
  uint64_t address;  // 0 for a region that the program does not name
  int64_t bytes;
};

// What one launch copies.
struct PlanChunk {
  uint32_t first_tile;
  uint32_t tiles;
  int64_t bytes;
};

struct PlanLimits {
  int64_t chunk_bytes = int64_t{64} << 20;
  int64_t walk_vectors = kWalkVectorsMax;
};

class CopyPlan {
 public:
  // `program` was checked against these very sizes, and outlives WriteImage. Throws NATIVE_LIMIT when it takes more
  // tiles than can be numbered.
  CopyPlan(const CopyProgram& program, const std::vector<PlanRegion>& sources, const std::vector<PlanRegion>& targets,
           const PlanLimits& limits = {});

  const std::vector<PlanChunk>& chunks() const { return chunks_; }
  int64_t bytes() const { return bytes_; }

  // The plan as one piece of memory, and how a launch finds its parts once that lies at `address`.
  size_t image_bytes() const;
  void WriteImage(uint8_t* image) const;
  CopyLaunch Launch(uint64_t address, const PlanChunk& chunk) const;

 private:
  void CutChunks(int64_t chunk_bytes);

  const CopyProgram& program_;
  std::vector<DeviceWalk> walks_;
  std::vector<uint32_t> first_tiles_;
  uint32_t row_count_ = 0;
  std::vector<PlanChunk> chunks_;
  uint32_t tiles_ = 0;
  int64_t bytes_ = 0;
};

}  // namespace state_handoff
