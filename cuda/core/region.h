// A host buffer that is registered once for transfer: sealed memory, and the count of transfers that may touch it.
//
// Owned by JavaScript's region object; transports and peers' mappings share the memory itself, which lives as long as
// any of them. Closing is refused while a transfer is counted.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "sealed_memory.h"

namespace state_handoff {

class HostRegion {
 public:
  static std::shared_ptr<HostRegion> Allocate(size_t bytes, const std::string& name);
  ~HostRegion();

  HostRegion(const HostRegion&) = delete;
  HostRegion& operator=(const HostRegion&) = delete;

  size_t bytes() const { return bytes_; }
  // Null once the region is closed. Any thread.
  std::shared_ptr<SealedMemory> memory() const;

  // A transfer is about to touch the memory: counts it and gives the memory, or null when the region is closed.
  std::shared_ptr<SealedMemory> BeginUse();
  void EndUse();

  // False while a transfer may touch the memory; idempotent otherwise. This object lets go of the memory.
  bool TryClose();

  static int64_t live() { return live_.load(std::memory_order_relaxed); }

 private:
  explicit HostRegion(std::shared_ptr<SealedMemory> memory);

  const size_t bytes_;
  mutable std::mutex mutex_;
  std::shared_ptr<SealedMemory> memory_;
  int64_t users_ = 0;
  static std::atomic<int64_t> live_;
};

// One transfer's use of a region, for exactly as long as this object lives.
class RegionUse {
 public:
  // Throws CLOSED.
  RegionUse(std::shared_ptr<HostRegion> region, const std::string& field);
  RegionUse(RegionUse&&) = default;
  RegionUse& operator=(RegionUse&&) = delete;
  ~RegionUse();

  uint8_t* data() const { return memory_->data(); }
  size_t bytes() const { return memory_->bytes(); }

 private:
  std::shared_ptr<HostRegion> region_;
  std::shared_ptr<SealedMemory> memory_;
};

}  // namespace state_handoff
