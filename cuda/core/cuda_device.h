// One GPU as this process uses it: its primary context, retained (the one that every other CUDA user of the process
// has), the kernels loaded into it, and a stream of low priority for copies that the caller waits for.
//
// Never makes a context, never synchronises a device. Shared by all who need it and released with the last.
#pragma once

#include <memory>
#include <mutex>
#include <string>

#include "cuda_driver.h"
#include "device_walk.h"

namespace state_handoff {

class CudaDevice {
 public:
  // The device of this ordinal. Throws ARGUMENT_INVALID for one that there is none of, NATIVE_SYSTEM. Any thread.
  static std::shared_ptr<CudaDevice> Open(const CudaDriver& driver, CudaOrdinal ordinal);
  ~CudaDevice();

  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  const CudaDriver& driver() const { return driver_; }
  CudaOrdinal ordinal() const { return ordinal_; }
  CudaContext context() const { return context_; }
  const CudaUuid& uuid() const { return uuid_; }

  // Loads the kernels: `image` (a fat binary, or PTX with its NUL), or those the addon carries when it is empty. Throws
  // TRANSPORT_UNAVAILABLE when there are none for this device. Idempotent; any thread.
  void LoadKernels(const std::string& image);
  // Starts a copy of `tiles` tiles. Kernels are loaded and the context is current.
  CudaResult LaunchCopy(const CopyLaunch& launch, uint32_t tiles, CudaStream stream) const;
  // The same by so many blocks of threads and no more. For measurements.
  CudaResult LaunchCopyByFew(const CopyLaunch& launch, uint32_t tiles, uint32_t blocks, CudaStream stream) const;

  // Lets this device read the other's memory. Throws TRANSPORT_UNAVAILABLE when the machine cannot.
  void AllowReading(const CudaDevice& other) const;

  // A stream of the lowest priority that waits for no other. Throws NATIVE_SYSTEM. The context is current.
  CudaStream MakeStream() const;

  // Copies and fills that are over when they return. Throw NATIVE_SYSTEM. Any thread, one at a time.
  void CopyToHost(void* target, CudaPointer source, size_t bytes);
  void CopyToDevice(CudaPointer target, const void* source, size_t bytes);
  void Fill(CudaPointer target, uint8_t value, size_t bytes);

 private:
  CudaDevice(const CudaDriver& driver, CudaOrdinal ordinal);
  template <typename Work>
  void RunAndWait(const char* what, Work&& work);

  const CudaDriver& driver_;
  const CudaOrdinal ordinal_;
  CudaContext context_ = nullptr;
  CudaUuid uuid_{};
  std::mutex mutex_;
  CudaStream stream_ = nullptr;
  CudaModule module_ = nullptr;
  CudaFunction copy_ = nullptr;
};

// Where work that was given to a stream has come to. Completes once; shared by whoever waits for it.
class CudaFence {
 public:
  // Records on `stream` (0: the device's default stream) of the host engine. Throws NATIVE_SYSTEM.
  CudaFence(std::shared_ptr<CudaDevice> device, CudaStream stream);
  ~CudaFence();

  CudaFence(const CudaFence&) = delete;
  CudaFence& operator=(const CudaFence&) = delete;

  // Never blocks. Throws NATIVE_SYSTEM when the device is lost.
  bool IsComplete();

 private:
  const std::shared_ptr<CudaDevice> device_;
  CudaEvent event_ = nullptr;
  bool complete_ = false;
};

}  // namespace state_handoff
