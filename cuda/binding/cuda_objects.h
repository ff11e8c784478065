// What JavaScript holds of GPU objects, and how a driver's path is read. Used by the three cuda_*binding.cc.
#pragma once

#include <memory>
#include <string>

#include "../core/cuda_region.h"
#include "transfer_objects.h"

namespace state_handoff {

struct CudaRegionHandle {
  static constexpr napi_type_tag kTag{0x6d1f83a9c2574be0, 0x97e40b5ad1c3826f};
  static constexpr const char* kExpected = "a native GPU region";
  std::shared_ptr<CudaRegion> region;
};

// Text or null. Throws TRANSPORT_UNAVAILABLE saying why there is no driver.
const CudaDriver& DriverArgument(const Napi::CallbackInfo& info, size_t index);
// An address or a stream as a bigint.
uint64_t AddressArgument(const Napi::CallbackInfo& info, size_t index, const char* name);
// A compiled module of kernels; empty for null.
std::string KernelsArgument(const Napi::CallbackInfo& info, size_t index);
std::shared_ptr<CudaDevice> DeviceArgument(const Napi::CallbackInfo& info, size_t driver_index, size_t index);

}  // namespace state_handoff
