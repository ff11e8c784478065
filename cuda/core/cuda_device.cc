#include "cuda_device.h"

#include <map>
#include <utility>

#include "error_codes.h"
#include "kernel_image.h"

namespace state_handoff {

std::shared_ptr<CudaDevice> CudaDevice::Open(const CudaDriver& driver, CudaOrdinal ordinal) {
  if (ordinal < 0 || ordinal >= driver.device_count()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "device: expected an ordinal below " +
                                                        std::to_string(driver.device_count()) + ", got " +
                                                        std::to_string(ordinal));
  }
  static std::mutex mutex;
  static auto* known = new std::map<std::pair<const CudaDriver*, CudaOrdinal>, std::weak_ptr<CudaDevice>>();
  const std::lock_guard lock(mutex);
  std::weak_ptr<CudaDevice>& entry = (*known)[{&driver, ordinal}];
  std::shared_ptr<CudaDevice> device = entry.lock();
  if (device == nullptr) {
    device.reset(new CudaDevice(driver, ordinal));
    entry = device;
  }
  return device;
}

CudaDevice::CudaDevice(const CudaDriver& driver, CudaOrdinal ordinal) : driver_(driver), ordinal_(ordinal) {
  driver_.Check(driver_.DeviceGetUuid(&uuid_, ordinal_), "asking a GPU for its identity");
  driver_.Check(driver_.PrimaryContextRetain(&context_, ordinal_), "retaining a GPU's primary context");
  try {
    const CudaContextScope current(driver_, context_);
    stream_ = MakeStream();
  } catch (...) {
    driver_.PrimaryContextRelease(ordinal_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  if (driver_.ContextPush(context_) == kCudaSuccess) {
    if (module_ != nullptr) driver_.ModuleUnload(module_);
    driver_.StreamDestroy(stream_);
    CudaContext popped;
    driver_.ContextPop(&popped);
  }
  driver_.PrimaryContextRelease(ordinal_);
}

void CudaDevice::LoadKernels(const std::string& image) {
  const std::lock_guard lock(mutex_);
  if (copy_ != nullptr) return;
  std::string why;
  const void* code = image.empty() ? EmbeddedKernels(&why) : image.c_str();
  if (code == nullptr) {
    throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE,
                      "the copy kernels are missing because " + why +
                          "; install the CUDA toolkit and run `npm rebuild state-handoff`, or name compiled kernels");
  }
  const CudaContextScope current(driver_, context_);
  CudaResult result = driver_.ModuleLoadData(&module_, code);
  if (result == kCudaSuccess) result = driver_.ModuleGetFunction(&copy_, module_, "state_handoff_copy");
  if (result != kCudaSuccess) {
    throw NativeError(
        ErrorCode::kTRANSPORT_UNAVAILABLE,
        "the copy kernels do not load on GPU " + std::to_string(ordinal_) + " because of " + driver_.Describe(result));
  }
}

CudaResult CudaDevice::LaunchCopy(const CopyLaunch& launch, uint32_t tiles, CudaStream stream) const {
  CopyLaunch argument = launch;
  void* parameters[] = {&argument};
  return driver_.LaunchKernel(copy_, tiles, 1, 1, kTileThreads, 1, 1, 0, stream, parameters, nullptr);
}

CudaResult CudaDevice::LaunchCopyByFew(const CopyLaunch& launch, uint32_t tiles, uint32_t blocks,
                                       CudaStream stream) const {
  CudaFunction kernel = nullptr;
  const CudaResult result = driver_.ModuleGetFunction(&kernel, module_, "state_handoff_copy_by_few");
  if (result != kCudaSuccess) return result;
  CopyLaunch argument = launch;
  void* parameters[] = {&argument, &tiles};
  return driver_.LaunchKernel(kernel, blocks, 1, 1, kTileThreads, 1, 1, 0, stream, parameters, nullptr);
}

void CudaDevice::AllowReading(const CudaDevice& other) const {
  if (other.ordinal_ == ordinal_) return;
  const CudaContextScope current(driver_, context_);
  const CudaResult result = driver_.ContextEnablePeerAccess(other.context_, 0);
  if (result == kCudaSuccess || result == kCudaPeerAccessAlreadyEnabled) return;
  throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE, "GPU " + std::to_string(ordinal_) + " cannot read GPU " +
                                                           std::to_string(other.ordinal_) + " because of " +
                                                           driver_.Describe(result));
}

CudaStream CudaDevice::MakeStream() const {
  int least = 0;
  int greatest = 0;
  driver_.Check(driver_.StreamPriorityRange(&least, &greatest), "asking for stream priorities");
  CudaStream stream = nullptr;
  driver_.Check(driver_.StreamCreate(&stream, kCudaStreamNonBlocking, least), "making a CUDA stream");
  return stream;
}

template <typename Work>
void CudaDevice::RunAndWait(const char* what, Work&& work) {
  const std::lock_guard lock(mutex_);
  const CudaContextScope current(driver_, context_);
  driver_.Check(work(), what);
  driver_.Check(driver_.StreamSynchronize(stream_), what);
}

void CudaDevice::CopyToHost(void* target, CudaPointer source, size_t bytes) {
  RunAndWait("copying from a GPU", [&] { return driver_.CopyToHostAsync(target, source, bytes, stream_); });
}

void CudaDevice::CopyToDevice(CudaPointer target, const void* source, size_t bytes) {
  RunAndWait("copying to a GPU", [&] { return driver_.CopyToDeviceAsync(target, source, bytes, stream_); });
}

void CudaDevice::Fill(CudaPointer target, uint8_t value, size_t bytes) {
  RunAndWait("filling GPU memory", [&] { return driver_.FillAsync(target, value, bytes, stream_); });
}

CudaFence::CudaFence(std::shared_ptr<CudaDevice> device, CudaStream stream) : device_(std::move(device)) {
  const CudaDriver& driver = device_->driver();
  const CudaContextScope current(driver, device_->context());
  driver.Check(driver.EventCreate(&event_, kCudaEventDisableTiming), "making a CUDA event");
  const CudaResult result = driver.EventRecord(event_, stream);
  if (result != kCudaSuccess) driver.EventDestroy(event_);
  driver.Check(result, "recording a CUDA event on the engine's stream");
}

CudaFence::~CudaFence() {
  const CudaDriver& driver = device_->driver();
  if (driver.ContextPush(device_->context()) != kCudaSuccess) return;
  driver.EventDestroy(event_);
  CudaContext popped;
  driver.ContextPop(&popped);
}

bool CudaFence::IsComplete() {
  if (complete_) return true;
  const CudaResult result = device_->driver().EventQuery(event_);
  if (result == kCudaNotReady) return false;
  device_->driver().Check(result, "asking a CUDA event");
  complete_ = true;
  return true;
}

}  // namespace state_handoff
