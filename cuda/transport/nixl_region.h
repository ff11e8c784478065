// A region that the NIXL transport was given, of host memory or of a GPU; where it lies, and its use by one transfer.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <variant>

#include "../core/cuda_region.h"
#include "../core/error_codes.h"
#include "../core/region.h"
#include "nixl_agent.h"

namespace state_handoff {

// For as long as it lives, nobody closes the region.
using NixlRegionUse = std::variant<RegionUse, CudaRegionUse>;

class NixlRegion {
 public:
  // Throws CLOSED.
  NixlRegion(std::shared_ptr<HostRegion> region) : host_(std::move(region)), memory_(host_->memory()) {
    if (memory_ == nullptr) throw NativeError(ErrorCode::kCLOSED, "region: expected an open region, got a closed one");
  }
  // Holds the region open: a GPU's memory has no other owner that outlives its closing.
  NixlRegion(std::shared_ptr<CudaRegion> region)
      : gpu_(std::move(region)), held_(std::make_shared<CudaRegionUse>(gpu_, "region")) {}

  NixlRange range() const {
    if (gpu_ == nullptr) return NixlRange{reinterpret_cast<uint64_t>(memory_->data()), memory_->bytes()};
    return NixlRange{gpu_->address(), gpu_->bytes(), kNixlVram, static_cast<uint64_t>(gpu_->device()->ordinal())};
  }
  // Null for host memory.
  const std::shared_ptr<CudaRegion>& gpu() const { return gpu_; }

  // Throws CLOSED.
  NixlRegionUse Use(const std::string& field) const {
    if (gpu_ == nullptr) return NixlRegionUse(std::in_place_type<RegionUse>, host_, field);
    return NixlRegionUse(std::in_place_type<CudaRegionUse>, gpu_, field);
  }

 private:
  std::shared_ptr<HostRegion> host_;
  std::shared_ptr<SealedMemory> memory_;  // mapped for as long as this lives
  std::shared_ptr<CudaRegion> gpu_;
  std::shared_ptr<CudaRegionUse> held_;
};

}  // namespace state_handoff
