// A GPU buffer that is registered once for transfer: allocated here, or the host engine's own; and who may touch it,
// the transfers of this process and the transports that let other processes map it.
//
// Closing is refused while either is counted. Memory of the engine's own is never freed here.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "cuda_device.h"

namespace state_handoff {

class CudaRegion {
 public:
  // Zeroed memory of the device; `virtual_memory`: made of physical memory that is mapped, which other libraries can
  // register but CUDA IPC cannot export. Throws NATIVE_SYSTEM.
  static std::shared_ptr<CudaRegion> Allocate(std::shared_ptr<CudaDevice> device, size_t bytes, bool virtual_memory);
  // Memory that somebody else in this process owns; it outlives the region. Throws ARGUMENT_INVALID when `address` is
  // no device memory of at least `bytes` bytes.
  static std::shared_ptr<CudaRegion> Import(const CudaDriver& driver, CudaPointer address, size_t bytes);
  ~CudaRegion();

  CudaRegion(const CudaRegion&) = delete;
  CudaRegion& operator=(const CudaRegion&) = delete;

  size_t bytes() const { return bytes_; }
  CudaPointer address() const { return address_; }
  const std::shared_ptr<CudaDevice>& device() const { return device_; }

  struct IpcHandle {
    CudaIpcMemory allocation;
    uint64_t offset;  // of the region in its allocation
  };
  // Throws ARGUMENT_INVALID when other processes cannot map this memory.
  IpcHandle Export() const;

  // A transfer, or a transport with importers, is about to touch or show the memory. False when the region is closed.
  bool BeginUse();
  void EndUse();
  // Importers may have it mapped for as long as they live: the memory is left to the driver, which frees it when the
  // last process that maps it has ended.
  void LeaveToDriver() { left_to_driver_ = true; }

  // False while it is in use; idempotent otherwise.
  bool TryClose();
  bool closed() const;

  static int64_t live() { return live_.load(std::memory_order_relaxed); }

 private:
  CudaRegion(std::shared_ptr<CudaDevice> device, CudaPointer address, size_t bytes);
  void Free();

  const std::shared_ptr<CudaDevice> device_;
  const CudaPointer address_;
  const size_t bytes_;
  bool owned_ = false;
  size_t mapped_bytes_ = 0;  // of virtual memory
  std::atomic<bool> left_to_driver_{false};
  mutable std::mutex mutex_;
  bool closed_ = false;
  int64_t users_ = 0;
  static std::atomic<int64_t> live_;
};

// One use of a region, for exactly as long as this object lives.
class CudaRegionUse {
 public:
  // Throws CLOSED.
  CudaRegionUse(std::shared_ptr<CudaRegion> region, const std::string& field);
  CudaRegionUse(CudaRegionUse&&) = default;
  CudaRegionUse& operator=(CudaRegionUse&&) = delete;
  ~CudaRegionUse();

  CudaRegion& region() const { return *region_; }

 private:
  std::shared_ptr<CudaRegion> region_;
};

}  // namespace state_handoff
