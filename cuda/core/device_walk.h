// What a GPU kernel walks: one rectangle of a program as plain numbers that lie in device memory, and where its i-th
// vector goes. Compiled for the device and, as it stands here, for the host, where tests hold it against the CPU's
// copy.
//
// A walk's bytes are counted in vectors of one width (16 bytes down to 1, what every address of it is a multiple of)
// and its vectors in tiles; a tile is what one block of threads copies.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STATE_HANDOFF_DEVICE __host__ __device__ __forceinline__
#else
#define STATE_HANDOFF_DEVICE inline
#endif

namespace state_handoff {

inline constexpr uint32_t kTileThreads = 128;
inline constexpr uint32_t kTileRounds = 16;  // vectors of one thread
inline constexpr uint32_t kTileVectors = kTileThreads * kTileRounds;
// Vectors of one walk, at most: what FastDivisor divides.
inline constexpr uint32_t kWalkVectorsMax = 0x7fffffff;
inline constexpr int kWalkAxesMax = 6;

// Division of numbers up to kWalkVectorsMax without dividing (Granlund and Montgomery).
struct FastDivisor {
  uint32_t value;
  uint32_t multiplier;
  uint32_t shift;
};

inline FastDivisor MakeFastDivisor(uint32_t value) {
  uint32_t shift = 0;
  while ((uint64_t{1} << shift) < value) ++shift;
  const uint64_t multiplier = ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - value)) / value + 1;
  return FastDivisor{value, static_cast<uint32_t>(multiplier), shift};
}

STATE_HANDOFF_DEVICE uint32_t Divide(uint32_t number, const FastDivisor& by) {
  const auto high = static_cast<uint32_t>((static_cast<uint64_t>(number) * by.multiplier) >> 32);
  return (high + number) >> by.shift;
}

struct DeviceAxis {
  FastDivisor count;
  uint32_t rows;  // 1: the axis runs over rows, and has no strides
  int64_t source_stride;
  int64_t target_stride;
};

// Byte offsets that a row of a table adds on either side.
struct DeviceRow {
  int64_t source;
  int64_t target;
};

struct alignas(16) DeviceWalk {
  uint64_t source;  // address of its first byte
  uint64_t target;
  uint32_t vectors;
  uint32_t width_log2;
  uint32_t row_from;  // of all rows of the plan
  uint32_t axis_count;
  FastDivisor fragment;  // vectors of one fragment
  uint32_t reserved;
  DeviceAxis axes[kWalkAxesMax];  // outermost first
};
static_assert(sizeof(DeviceWalk) % 16 == 0 && sizeof(DeviceRow) == 16);

// What one launch copies: tiles first_tile … first_tile + its blocks, over walks whose first tiles ascend from 0.
struct CopyLaunch {
  const DeviceWalk* walks;
  const uint32_t* first_tiles;
  const DeviceRow* rows;
  uint32_t walk_count;
  uint32_t first_tile;
};

// The walk that `tile` belongs to.
STATE_HANDOFF_DEVICE uint32_t FindWalk(const uint32_t* first_tiles, uint32_t count, uint32_t tile) {
  uint32_t low = 0;
  uint32_t high = count;
  while (high - low > 1) {
    const uint32_t middle = (low + high) / 2;
    if (first_tiles[middle] <= tile) {
      low = middle;
    } else {
      high = middle;
    }
  }
  return low;
}

// Where vector `index` of a walk lies on either side, in bytes from the walk's addresses.
STATE_HANDOFF_DEVICE DeviceRow PlaceOf(const DeviceWalk& walk, const DeviceRow* rows, uint32_t index) {
  uint32_t turn = Divide(index, walk.fragment);
  const int64_t within = static_cast<int64_t>(index - turn * walk.fragment.value) << walk.width_log2;
  DeviceRow place{within, within};
  for (int i = static_cast<int>(walk.axis_count) - 1; i >= 0; --i) {
    const DeviceAxis& axis = walk.axes[i];
    const uint32_t over = i == 0 ? 0 : Divide(turn, axis.count);
    const uint32_t digit = turn - over * axis.count.value;
    turn = over;
    if (axis.rows != 0) {
      const DeviceRow row = rows[walk.row_from + digit];
      place.source += row.source;
      place.target += row.target;
    } else {
      place.source += digit * axis.source_stride;
      place.target += digit * axis.target_stride;
    }
  }
  return place;
}

}  // namespace state_handoff
