// Runs a launch of the copy kernel on the CPU: the same tiles, the same vectors, the same addresses, one after another.
// For tests of plans, and for the stand-in of the CUDA driver.
#pragma once

#include <algorithm>
#include <cstring>

#include "../../cuda/core/device_walk.h"

namespace state_handoff::test {

inline void RunTileOnHost(const CopyLaunch& launch, uint32_t tile) {
  const uint32_t index = FindWalk(launch.first_tiles, launch.walk_count, tile);
  const DeviceWalk& walk = launch.walks[index];
  const uint32_t first = (tile - launch.first_tiles[index]) * kTileVectors;
  const uint32_t end = std::min(walk.vectors, first + kTileVectors);
  for (uint32_t vector = first; vector < end; ++vector) {
    const DeviceRow place = PlaceOf(walk, launch.rows, vector);
    std::memcpy(reinterpret_cast<void*>(walk.target + static_cast<uint64_t>(place.target)),
                reinterpret_cast<const void*>(walk.source + static_cast<uint64_t>(place.source)),
                size_t{1} << walk.width_log2);
  }
}

inline void RunLaunchOnHost(const CopyLaunch& launch, uint32_t tiles) {
  for (uint32_t i = 0; i < tiles; ++i) RunTileOnHost(launch, launch.first_tile + i);
}

}  // namespace state_handoff::test
