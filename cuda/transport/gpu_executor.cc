#include "gpu_executor.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <new>
#include <utility>

namespace state_handoff {

namespace {

constexpr size_t kPlanBytesLeast = 64 << 10;
// How long the launching thread asks events without a pause; a transfer that takes longer is asked less often.
constexpr auto kEagerFor = std::chrono::milliseconds(2);
constexpr auto kPause = std::chrono::microseconds(20);

}  // namespace

GpuExecutor::Device::~Device() {
  const CudaDriver& driver = device->driver();
  if (driver.ContextPush(device->context()) != kCudaSuccess) return;
  for (const PlanMemory& memory : free) {
    driver.EventDestroy(memory.uploaded);
    driver.MemFree(memory.device);
    driver.MemFreeHost(memory.host);
  }
  for (const Lane& lane : lanes) {
    if (lane.event != nullptr) driver.EventDestroy(lane.event);
    if (lane.stream != nullptr) driver.StreamDestroy(lane.stream);
  }
  if (uploads != nullptr) driver.StreamDestroy(uploads);
  CudaContext popped;
  driver.ContextPop(&popped);
}

GpuExecutor::GpuExecutor(std::string kernels, std::function<void(const GpuTransfer&)> on_end)
    : kernels_(std::move(kernels)), on_end_(std::move(on_end)) {}

GpuExecutor::~GpuExecutor() { Stop(); }

void GpuExecutor::Start() {
  const std::lock_guard lock(mutex_);
  if (launching_.started()) return;
  preparing_.Start(1, "handoff-gpu-pre", [this] { Prepare(); });
  launching_.Start(1, "handoff-gpu", [this] { Launch(); });
}

void GpuExecutor::Submit(std::shared_ptr<GpuTransfer> transfer, std::shared_ptr<GpuSource> source) {
  {
    const std::lock_guard lock(mutex_);
    if (transfer->over_) return;
    if (!stopping_) {
      transfer->submitted_ = true;
      transfer->source_ = std::move(source);
      waiting_.push_back(std::move(transfer));
      to_prepare_.notify_one();
      return;
    }
  }
  Cancel(transfer);
}

void GpuExecutor::Cancel(const std::shared_ptr<GpuTransfer>& transfer) {
  {
    const std::lock_guard lock(mutex_);
    if (transfer->over_) return;
    transfer->cancelled_.store(true, std::memory_order_relaxed);
    to_launch_.notify_one();
    if (transfer->submitted_) return;
    transfer->over_ = true;
    transfer->cut_short_ = true;
  }
  transfer->End();
  on_end_(*transfer);
}

void GpuExecutor::Refuse(const std::shared_ptr<GpuTransfer>& transfer, ErrorCode code, const std::string& message) {
  {
    const std::lock_guard lock(mutex_);
    if (transfer->over_ || transfer->submitted_) return;
    transfer->over_ = true;
    transfer->Fail(code, message);
  }
  transfer->End();
  on_end_(*transfer);
}

void GpuExecutor::LetGo(std::shared_ptr<GpuSource> source) {
  const std::lock_guard lock(mutex_);
  if (stopping_ || !preparing_.started()) return;
  let_go_.push_back(std::move(source));
  to_prepare_.notify_one();
}

void GpuExecutor::BeginStop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  to_prepare_.notify_all();
  to_launch_.notify_all();
}

void GpuExecutor::Stop() {
  BeginStop();
  preparing_.Join();
  launching_.Join();
  devices_.clear();
}

void GpuExecutor::Prepare() {
  std::unique_lock lock(mutex_);
  for (;;) {
    to_prepare_.wait(lock, [this] { return stopping_ || !waiting_.empty() || !let_go_.empty(); });
    if (!let_go_.empty()) {
      std::vector<std::shared_ptr<GpuSource>> let_go;
      let_go.swap(let_go_);
      lock.unlock();
      let_go.clear();
      lock.lock();
      continue;
    }
    if (waiting_.empty()) {
      to_launch_.notify_all();
      return;
    }
    const std::shared_ptr<GpuTransfer> transfer = std::move(waiting_.front());
    waiting_.pop_front();
    ++preparing_now_;
    if (stopping_) transfer->cancelled_.store(true, std::memory_order_relaxed);
    lock.unlock();
    try {
      if (!transfer->cancelled_.load(std::memory_order_relaxed)) PrepareOne(*transfer);
    } catch (const NativeError& error) {
      transfer->Fail(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      transfer->Fail(ErrorCode::kNATIVE_SYSTEM, "the transfer did not begin because memory for its program ran out");
    }
    lock.lock();
    --preparing_now_;
    ready_.push_back(transfer);
    to_launch_.notify_one();
  }
}

void GpuExecutor::PrepareOne(GpuTransfer& transfer) {
  transfer.Prepare();
  for (GpuTransfer::Part& part : transfer.parts_) {
    part.device->LoadKernels(kernels_);
    const CudaContextScope current(part.device->driver(), part.device->context());
    Device& device = DeviceOf(part.device);
    part.memory = TakeMemory(device, part.plan->image_bytes());
    part.plan->WriteImage(static_cast<uint8_t*>(part.memory.host));
    // Ahead of the launches, so that no lane stands still for it.
    const CudaDriver& driver = part.device->driver();
    driver.Check(
        driver.CopyToDeviceAsync(part.memory.device, part.memory.host, part.plan->image_bytes(), device.uploads),
        "uploading a plan");
    driver.Check(driver.EventRecord(part.memory.uploaded, device.uploads), "recording a CUDA event");
  }
}

GpuExecutor::Device& GpuExecutor::DeviceOf(const std::shared_ptr<CudaDevice>& device) {
  {
    const std::lock_guard lock(mutex_);
    const auto found = devices_.find(device.get());
    if (found != devices_.end()) return *found->second;
  }
  auto added = std::make_unique<Device>();
  added->device = device;
  for (Lane& lane : added->lanes) {
    lane.stream = device->MakeStream();
    device->driver().Check(device->driver().EventCreate(&lane.event, kCudaEventDisableTiming), "making a CUDA event");
  }
  added->uploads = device->MakeStream();
  const std::lock_guard lock(mutex_);
  return *devices_.emplace(device.get(), std::move(added)).first->second;
}

PlanMemory GpuExecutor::TakeMemory(Device& device, size_t bytes) {
  const CudaDriver& driver = device.device->driver();
  {
    const std::lock_guard lock(mutex_);
    for (PlanMemory& memory : device.free) {
      // That of a transfer which was cancelled may still be read by its upload.
      if (memory.bytes < bytes || driver.EventQuery(memory.uploaded) != kCudaSuccess) continue;
      std::swap(memory, device.free.back());
      const PlanMemory taken = device.free.back();
      device.free.pop_back();
      return taken;
    }
  }
  PlanMemory memory;
  memory.bytes = std::bit_ceil(std::max(bytes, kPlanBytesLeast));
  driver.Check(driver.MemHostAlloc(&memory.host, memory.bytes, kCudaHostAllocPortable), "allocating pinned memory");
  CudaResult result = driver.MemAlloc(&memory.device, memory.bytes);
  if (result == kCudaSuccess) {
    result = driver.EventCreate(&memory.uploaded, kCudaEventDisableTiming);
    if (result != kCudaSuccess) driver.MemFree(memory.device);
  }
  if (result != kCudaSuccess) driver.MemFreeHost(memory.host);
  driver.Check(result, "allocating GPU memory for a plan");
  return memory;
}

void GpuExecutor::Launch() {
  std::vector<std::shared_ptr<GpuTransfer>> active;
  auto changed_at = std::chrono::steady_clock::now();
  for (;;) {
    std::vector<Device*> devices;
    {
      std::unique_lock lock(mutex_);
      if (active.empty()) {
        to_launch_.wait(lock,
                        [this] { return !ready_.empty() || (stopping_ && waiting_.empty() && preparing_now_ == 0); });
        if (ready_.empty()) return;
        changed_at = std::chrono::steady_clock::now();
      }
      for (std::shared_ptr<GpuTransfer>& transfer : ready_) active.push_back(std::move(transfer));
      ready_.clear();
      for (const std::shared_ptr<GpuTransfer>& transfer : active) {
        if (stopping_) transfer->cancelled_.store(true, std::memory_order_relaxed);
        if (transfer->cancelled_.load(std::memory_order_relaxed) && (transfer->parts_.empty() || transfer->HasWork())) {
          transfer->cut_short_ = true;
        }
      }
      for (const auto& [key, device] : devices_) devices.push_back(device.get());
    }
    bool changed = false;
    for (Device* device : devices) changed = Advance(*device, active) || changed;
    const auto over = std::stable_partition(active.begin(), active.end(), [](const auto& transfer) {
      if (transfer->status() == GpuStatus::kInDoubt) return false;
      return transfer->in_flight_ > 0 || (!transfer->failed_ && !transfer->cut_short_ && transfer->HasWork());
    });
    for (auto each = over; each != active.end(); ++each) Finish(*each);
    changed = changed || over != active.end();
    active.erase(over, active.end());
    const auto now = std::chrono::steady_clock::now();
    if (changed) changed_at = now;
    if (!active.empty() && now - changed_at > kEagerFor) std::this_thread::sleep_for(kPause);
  }
}

bool GpuExecutor::Advance(Device& device, std::vector<std::shared_ptr<GpuTransfer>>& active) {
  const CudaDriver& driver = device.device->driver();
  bool changed = false;
  for (Lane& lane : device.lanes) {
    if (lane.transfer != nullptr && device.lost.empty()) {
      const CudaResult result = driver.EventQuery(lane.event);
      if (result == kCudaNotReady) continue;
      if (result != kCudaSuccess) {
        Lose(device, result);
        return true;
      }
      lane.transfer->bytes_done_.fetch_add(lane.bytes, std::memory_order_relaxed);
      --lane.transfer->in_flight_;
      lane.transfer = nullptr;
      changed = true;
    }
    if (lane.transfer != nullptr) continue;
    // The first that has something for this device; one that was served goes to the end, so that all get their turn.
    for (size_t i = 0; i < active.size(); ++i) {
      const std::shared_ptr<GpuTransfer> transfer = active[i];
      if (transfer->failed_ || transfer->cut_short_) continue;
      const auto part = std::find_if(transfer->parts_.begin(), transfer->parts_.end(), [&](const auto& each) {
        return each.device == device.device && each.next < each.plan->chunks().size();
      });
      if (part == transfer->parts_.end()) continue;
      if (!device.lost.empty()) {
        transfer->Doubt(device.lost);
        changed = true;
        continue;
      }
      lane.transfer = transfer;
      ++transfer->in_flight_;
      const CudaResult result = LaunchNext(device, lane, *part);
      changed = true;
      if (result != kCudaSuccess) {
        Lose(device, result);
        return true;
      }
      std::rotate(active.begin() + static_cast<std::ptrdiff_t>(i), active.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                  active.end());
      break;
    }
  }
  return changed;
}

CudaResult GpuExecutor::LaunchNext(Device& device, Lane& lane, GpuTransfer::Part& part) {
  const CudaDriver& driver = device.device->driver();
  CudaResult result = driver.ContextPush(device.device->context());
  if (result != kCudaSuccess) return result;
  result = driver.StreamWaitEvent(lane.stream, part.memory.uploaded, 0);
  const PlanChunk& chunk = part.plan->chunks()[part.next++];
  lane.bytes = chunk.bytes;
  if (result == kCudaSuccess) {
    result = device.device->LaunchCopy(part.plan->Launch(part.memory.device, chunk), chunk.tiles, lane.stream);
  }
  if (result == kCudaSuccess) result = driver.EventRecord(lane.event, lane.stream);
  CudaContext popped;
  driver.ContextPop(&popped);
  return result;
}

void GpuExecutor::Lose(Device& device, CudaResult result) {
  device.lost = "GPU " + std::to_string(device.device->ordinal()) + " was lost because of " +
                device.device->driver().Describe(result) +
                "; whether its memory is still written is not known: restart the engine";
  for (Lane& lane : device.lanes) {
    if (lane.transfer != nullptr) lane.transfer->Doubt(device.lost);
  }
}

void GpuExecutor::Finish(const std::shared_ptr<GpuTransfer>& transfer) {
  const bool in_doubt = transfer->status() == GpuStatus::kInDoubt;
  {
    const std::lock_guard lock(mutex_);
    transfer->over_ = true;
    if (!in_doubt) {
      for (GpuTransfer::Part& part : transfer->parts_) {
        if (part.memory.host != nullptr) devices_.at(part.device.get())->free.push_back(part.memory);
      }
    }
  }
  if (!in_doubt) transfer->End();
  on_end_(*transfer);
}

}  // namespace state_handoff
