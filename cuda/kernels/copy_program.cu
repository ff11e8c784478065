// Copies one chunk of a checked program: each block of threads takes one tile of one walk. Source and target are any
// memory this device can address: its own, a peer's, another process's.
//
// Nothing is checked here: addresses, bounds and overlaps were, before the plan was made (cuda/core/copy_plan.h).
#include "../core/device_walk.h"

namespace state_handoff {

namespace {

// Read once and written once: neither side should push others out of the caches.
template <typename Vector>
__device__ __forceinline__ Vector Read(uint64_t address) {
  return __ldcs(reinterpret_cast<const Vector*>(address));
}
template <typename Vector>
__device__ __forceinline__ void Write(uint64_t address, Vector value) {
  __stcs(reinterpret_cast<Vector*>(address), value);
}

constexpr uint32_t kWarp = 32;

// Fragments that are whole runs of 32 vectors: each warp copies neighbouring runs. A lane finds the place of one of
// them for all, and every thread has 16 reads under way before its first write.
__device__ __forceinline__ void CopyRuns(const DeviceWalk& walk, const DeviceRow* rows, uint32_t tile_first) {
  const uint32_t lane = threadIdx.x % kWarp;
  const uint32_t first = tile_first + threadIdx.x / kWarp * kTileRounds * kWarp;
  const uint32_t index = first + lane % kTileRounds * kWarp;
  uint64_t source = 0;
  uint64_t target = 0;
  if (index < walk.vectors) {
    const DeviceRow place = PlaceOf(walk, rows, index);
    source = walk.source + place.source;
    target = walk.target + place.target;
  }
  uint4 values[kTileRounds];
#pragma unroll
  for (uint32_t run = 0; run < kTileRounds; ++run) {
    const uint64_t address = __shfl_sync(0xffffffff, source, run);
    if (address != 0) values[run] = Read<uint4>(address + lane * sizeof(uint4));
  }
#pragma unroll
  for (uint32_t run = 0; run < kTileRounds; ++run) {
    const uint64_t address = __shfl_sync(0xffffffff, target, run);
    if (address != 0) Write<uint4>(address + lane * sizeof(uint4), values[run]);
  }
}

// Anything else: every thread finds the place of each of its vectors, four of them read before they are written.
template <typename Vector>
__device__ __forceinline__ void CopyVectors(const DeviceWalk& walk, const DeviceRow* rows, uint32_t tile_first) {
  constexpr uint32_t kAtOnce = 4;
#pragma unroll 1
  for (uint32_t round = 0; round < kTileRounds; round += kAtOnce) {
    Vector values[kAtOnce];
    uint64_t targets[kAtOnce];
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      const uint32_t index = tile_first + (round + i) * kTileThreads + threadIdx.x;
      targets[i] = 0;
      if (index >= walk.vectors) continue;
      const DeviceRow place = PlaceOf(walk, rows, index);
      targets[i] = walk.target + place.target;
      values[i] = Read<Vector>(walk.source + place.source);
    }
#pragma unroll
    for (uint32_t i = 0; i < kAtOnce; ++i) {
      if (targets[i] != 0) Write<Vector>(targets[i], values[i]);
    }
  }
}

__device__ __forceinline__ void CopyTile(const CopyLaunch& launch, uint32_t tile) {
  __shared__ DeviceWalk walk;
  __shared__ uint32_t first_tile;
  {
    const uint32_t index = FindWalk(launch.first_tiles, launch.walk_count, tile);
    constexpr uint32_t kWords = sizeof(DeviceWalk) / sizeof(uint4);
    if (threadIdx.x < kWords) {
      reinterpret_cast<uint4*>(&walk)[threadIdx.x] =
          __ldg(reinterpret_cast<const uint4*>(&launch.walks[index]) + threadIdx.x);
    }
    if (threadIdx.x == kWords) first_tile = launch.first_tiles[index];
  }
  __syncthreads();
  const uint32_t first = (tile - first_tile) * kTileVectors;
  switch (walk.width_log2) {
    case 4:
      if (walk.fragment.value % kWarp == 0) return CopyRuns(walk, launch.rows, first);
      return CopyVectors<uint4>(walk, launch.rows, first);
    case 3:
      return CopyVectors<uint2>(walk, launch.rows, first);
    case 2:
      return CopyVectors<uint32_t>(walk, launch.rows, first);
    case 1:
      return CopyVectors<uint16_t>(walk, launch.rows, first);
    default:
      return CopyVectors<uint8_t>(walk, launch.rows, first);
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(kTileThreads) state_handoff_copy(const CopyLaunch launch) {
  CopyTile(launch, launch.first_tile + blockIdx.x);
}

// The same with as many blocks as the caller likes: how much of the device a copy takes is measured with it.
extern "C" __global__ void __launch_bounds__(kTileThreads)
    state_handoff_copy_by_few(const CopyLaunch launch, uint32_t tiles) {
  for (uint32_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    CopyTile(launch, launch.first_tile + tile);
    __syncthreads();
  }
}

}  // namespace state_handoff
