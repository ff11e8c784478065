#include "cuda_region.h"

#include <utility>

#include "error_codes.h"

namespace state_handoff {

namespace {

constexpr CudaPointer kAlignment = 16;

struct VirtualMemory {
  CudaPointer address;
  size_t bytes;
};

// Physical memory of `device`, mapped for it. The handle is not kept: the mapping keeps the memory.
VirtualMemory MapVirtualMemory(const CudaDevice& device, size_t bytes) {
  const CudaDriver& driver = device.driver();
  if (driver.AllocationCreate == nullptr || driver.AllocationGranularity == nullptr ||
      driver.AddressReserve == nullptr || driver.AllocationMap == nullptr || driver.AllocationSetAccess == nullptr ||
      driver.AllocationRelease == nullptr || driver.AllocationUnmap == nullptr || driver.AddressFree == nullptr) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM, "this CUDA driver has no virtual memory functions");
  }
  CudaAllocationProperties properties{};
  properties.type = kCudaAllocationPinned;
  properties.requested_handle_types = kCudaHandlePosixDescriptor;
  properties.location = CudaLocation{kCudaLocationDevice, device.ordinal()};
  int rdma = 0;
  if (driver.DeviceGetAttribute(&rdma, kCudaAttributeRdmaWithVirtual, device.ordinal()) == kCudaSuccess && rdma != 0) {
    properties.gpu_direct_rdma_capable = 1;
  }
  size_t granularity = 0;
  driver.Check(driver.AllocationGranularity(&granularity, &properties, 0), "asking for the size of GPU pages");
  const size_t mapped = (bytes + granularity - 1) / granularity * granularity;
  CudaAllocation allocation = 0;
  driver.Check(driver.AllocationCreate(&allocation, mapped, &properties, 0), "allocating GPU memory");
  CudaPointer address = 0;
  CudaResult result = driver.AddressReserve(&address, mapped, 0, 0, 0);
  if (result == kCudaSuccess) {
    result = driver.AllocationMap(address, mapped, 0, allocation, 0);
    if (result == kCudaSuccess) {
      const CudaAccess access{properties.location, kCudaAccessReadWrite};
      result = driver.AllocationSetAccess(address, mapped, &access, 1);
      if (result != kCudaSuccess) driver.AllocationUnmap(address, mapped);
    }
    if (result != kCudaSuccess) driver.AddressFree(address, mapped);
  }
  driver.AllocationRelease(allocation);
  driver.Check(result, "mapping GPU memory");
  return VirtualMemory{address, mapped};
}

}  // namespace

std::atomic<int64_t> CudaRegion::live_{0};

CudaRegion::CudaRegion(std::shared_ptr<CudaDevice> device, CudaPointer address, size_t bytes)
    : device_(std::move(device)), address_(address), bytes_(bytes) {
  live_.fetch_add(1, std::memory_order_relaxed);
}

std::shared_ptr<CudaRegion> CudaRegion::Allocate(std::shared_ptr<CudaDevice> device, size_t bytes,
                                                 bool virtual_memory) {
  const CudaDriver& driver = device->driver();
  std::shared_ptr<CudaRegion> region;
  {
    const CudaContextScope current(driver, device->context());
    if (virtual_memory) {
      const VirtualMemory mapped = MapVirtualMemory(*device, bytes);
      region.reset(new CudaRegion(device, mapped.address, bytes));
      region->mapped_bytes_ = mapped.bytes;
    } else {
      CudaPointer address = 0;
      driver.Check(driver.MemAlloc(&address, bytes), "allocating GPU memory");
      region.reset(new CudaRegion(device, address, bytes));
    }
    region->owned_ = true;
  }
  device->Fill(region->address_, 0, bytes);
  return region;
}

std::shared_ptr<CudaRegion> CudaRegion::Import(const CudaDriver& driver, CudaPointer address, size_t bytes) {
  int type = 0;
  int ordinal = 0;
  if (driver.PointerGetAttribute(&type, kCudaPointerMemoryType, address) != kCudaSuccess ||
      type != kCudaMemoryTypeDevice ||
      driver.PointerGetAttribute(&ordinal, kCudaPointerOrdinal, address) != kCudaSuccess) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "address: expected device memory, got " + std::to_string(address));
  }
  std::shared_ptr<CudaDevice> device = CudaDevice::Open(driver, ordinal);
  const CudaContextScope current(driver, device->context());
  CudaPointer base = 0;
  size_t size = 0;
  driver.Check(driver.MemGetAddressRange(&base, &size, address), "asking for an allocation's range");
  const uint64_t offset = address - base;
  if (offset > size || bytes > size - offset) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "byteLength: expected at most the " + std::to_string(size - offset) +
                          " bytes that the allocation has from there on, got " + std::to_string(bytes));
  }
  if (address % kAlignment != 0) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "address: expected a multiple of 16, got " + std::to_string(address));
  }
  return std::shared_ptr<CudaRegion>(new CudaRegion(std::move(device), address, bytes));
}

CudaRegion::~CudaRegion() {
  if (!closed_) Free();
  live_.fetch_sub(1, std::memory_order_relaxed);
}

void CudaRegion::Free() {
  const CudaDriver& driver = device_->driver();
  if (!owned_ || left_to_driver_ || driver.ContextPush(device_->context()) != kCudaSuccess) return;
  if (mapped_bytes_ > 0) {
    driver.AllocationUnmap(address_, mapped_bytes_);
    driver.AddressFree(address_, mapped_bytes_);
  } else {
    driver.MemFree(address_);
  }
  CudaContext popped;
  driver.ContextPop(&popped);
}

CudaRegion::IpcHandle CudaRegion::Export() const {
  const CudaDriver& driver = device_->driver();
  const CudaContextScope current(driver, device_->context());
  CudaPointer base = 0;
  size_t size = 0;
  IpcHandle handle{};
  CudaResult result = driver.MemGetAddressRange(&base, &size, address_);
  if (result == kCudaSuccess) result = driver.IpcGetMemory(&handle.allocation, base);
  if (result != kCudaSuccess || mapped_bytes_ > 0) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "region: expected memory that CUDA IPC can export (of cuMemAlloc), got memory of another kind" +
                          (result == kCudaSuccess ? std::string() : ": " + driver.Describe(result)));
  }
  handle.offset = address_ - base;
  return handle;
}

bool CudaRegion::BeginUse() {
  const std::lock_guard lock(mutex_);
  if (closed_) return false;
  ++users_;
  return true;
}

void CudaRegion::EndUse() {
  const std::lock_guard lock(mutex_);
  --users_;
}

bool CudaRegion::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

bool CudaRegion::TryClose() {
  const std::lock_guard lock(mutex_);
  if (closed_) return true;
  if (users_ > 0) return false;
  closed_ = true;
  Free();
  return true;
}

CudaRegionUse::CudaRegionUse(std::shared_ptr<CudaRegion> region, const std::string& field)
    : region_(std::move(region)) {
  if (!region_->BeginUse()) {
    region_.reset();
    throw NativeError(ErrorCode::kCLOSED, field + ": expected an open region, got a closed one");
  }
}

CudaRegionUse::~CudaRegionUse() {
  if (region_ != nullptr) region_->EndUse();
}

}  // namespace state_handoff
