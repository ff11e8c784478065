#include "gpu_chunk_copy.h"

#include <algorithm>
#include <bit>

#include "../core/error_codes.h"

namespace state_handoff {

namespace {

constexpr size_t kPlanBytesLeast = 64 << 10;

}  // namespace

GpuChunkCopies::Copy::~Copy() {
  if (event_ != nullptr) driver_.EventDestroy(event_);
  if (device_ != 0) driver_.MemFree(device_);
  if (host_ != nullptr) driver_.MemFreeHost(host_);
}

bool GpuChunkCopies::Copy::IsOver() {
  if (!started_) return true;
  if (result_ == kCudaNotReady) result_ = driver_.EventQuery(event_);
  if (result_ == kCudaNotReady) return false;
  if (result_ == kCudaSuccess) return true;
  throw NativeError(ErrorCode::kNATIVE_SYSTEM, "the GPU was lost because of " + driver_.Describe(result_) +
                                                   "; whether its memory is still written is not known: restart the "
                                                   "engine");
}

GpuChunkCopies::GpuChunkCopies(std::shared_ptr<CudaDevice> device, const std::string& kernels)
    : device_(std::move(device)) {
  device_->LoadKernels(kernels);
  const CudaContextScope current(device_->driver(), device_->context());
  stream_ = device_->MakeStream();
}

GpuChunkCopies::~GpuChunkCopies() {
  const CudaDriver& driver = device_->driver();
  if (driver.ContextPush(device_->context()) != kCudaSuccess) return;
  driver.StreamSynchronize(stream_);
  all_.clear();
  driver.StreamDestroy(stream_);
  CudaContext popped;
  driver.ContextPop(&popped);
}

std::shared_ptr<GpuChunkCopies::Copy> GpuChunkCopies::Start(const CopyProgram& program,
                                                            const std::vector<PlanRegion>& sources,
                                                            const std::vector<PlanRegion>& targets) {
  const CudaDriver& driver = device_->driver();
  const CudaContextScope current(driver, device_->context());
  const CopyPlan plan(program, sources, targets);
  const std::shared_ptr<Copy> copy = TakeFree(plan.image_bytes());
  plan.WriteImage(static_cast<uint8_t*>(copy->host_));
  CudaResult result = driver.CopyToDeviceAsync(copy->device_, copy->host_, plan.image_bytes(), stream_);
  for (const PlanChunk& chunk : plan.chunks()) {
    if (result != kCudaSuccess) break;
    result = device_->LaunchCopy(plan.Launch(copy->device_, chunk), chunk.tiles, stream_);
  }
  if (result == kCudaSuccess) result = driver.EventRecord(copy->event_, stream_);
  // What was launched before the failure has no event of its own.
  if (result != kCudaSuccess) driver.StreamSynchronize(stream_);
  driver.Check(result, "launching a copy");
  copy->started_ = true;
  copy->result_ = kCudaNotReady;
  return copy;
}

std::shared_ptr<GpuChunkCopies::Copy> GpuChunkCopies::TakeFree(size_t bytes) {
  for (const std::shared_ptr<Copy>& each : all_) {
    if (each.use_count() == 1 && each->bytes_ >= bytes && !each->lost() && each->IsOver()) return each;
  }
  const CudaDriver& driver = device_->driver();
  auto copy = std::make_shared<Copy>(driver);
  copy->bytes_ = std::bit_ceil(std::max(bytes, kPlanBytesLeast));
  driver.Check(driver.MemHostAlloc(&copy->host_, copy->bytes_, kCudaHostAllocPortable), "allocating pinned memory");
  driver.Check(driver.MemAlloc(&copy->device_, copy->bytes_), "allocating GPU memory for a plan");
  driver.Check(driver.EventCreate(&copy->event_, kCudaEventDisableTiming), "making a CUDA event");
  all_.push_back(copy);
  return copy;
}

}  // namespace state_handoff
