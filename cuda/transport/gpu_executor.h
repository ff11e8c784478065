// The two native threads of a GPU transport. One prepares transfers (checks, mappings, plans, which it uploads); the
// other launches them, one launch a chunk and two in flight on each device, and asks their events for the end.
//
// A cancelled transfer launches nothing more and ends with its last event. A device that fails is lost for good: its
// transfers stay in doubt, and so does every later one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/thread_pool.h"
#include "gpu_transfer.h"

namespace state_handoff {

class GpuExecutor {
 public:
  // `kernels`: see CudaDevice::LoadKernels. `on_end` is called once for each transfer, after its status is final.
  GpuExecutor(std::string kernels, std::function<void(const GpuTransfer&)> on_end);
  ~GpuExecutor();

  // Any thread, all of these.
  // Starts the threads; throws NATIVE_SYSTEM when there are none to be had.
  void Start();
  void Submit(std::shared_ptr<GpuTransfer> transfer, std::shared_ptr<GpuSource> source);
  void Cancel(const std::shared_ptr<GpuTransfer>& transfer);
  // Ends a transfer that was never submitted.
  void Refuse(const std::shared_ptr<GpuTransfer>& transfer, ErrorCode code, const std::string& message);

  // Lets go of a source on the preparing thread: closing a mapping takes milliseconds.
  void LetGo(std::shared_ptr<GpuSource> source);

  // Cancels everything and lets the threads leave once the last launch is over. Does not wait.
  void BeginStop();
  bool quiet() const { return preparing_.idle() && launching_.idle(); }
  void Stop();

 private:
  static constexpr size_t kLanes = 2;

  // A place for one launch.
  struct Lane {
    CudaStream stream = nullptr;
    CudaEvent event = nullptr;
    std::shared_ptr<GpuTransfer> transfer;  // null: free
    int64_t bytes = 0;
  };
  struct Device {
    std::shared_ptr<CudaDevice> device;
    Lane lanes[kLanes];
    CudaStream uploads = nullptr;  // the preparing thread's
    std::vector<PlanMemory> free;  // under the lock
    std::string lost;              // why, once it is
    ~Device();
  };

  void Prepare();
  void Launch();
  Device& DeviceOf(const std::shared_ptr<CudaDevice>& device);
  PlanMemory TakeMemory(Device& device, size_t bytes);
  void PrepareOne(GpuTransfer& transfer);
  // The launching thread, without the lock. True when something changed.
  bool Advance(Device& device, std::vector<std::shared_ptr<GpuTransfer>>& active);
  CudaResult LaunchNext(Device& device, Lane& lane, GpuTransfer::Part& part);
  void Lose(Device& device, CudaResult result);
  void Finish(const std::shared_ptr<GpuTransfer>& transfer);

  const std::string kernels_;
  const std::function<void(const GpuTransfer&)> on_end_;
  mutable std::mutex mutex_;
  std::condition_variable to_prepare_;
  std::condition_variable to_launch_;
  std::deque<std::shared_ptr<GpuTransfer>> waiting_;  // for their preparation
  std::vector<std::shared_ptr<GpuTransfer>> ready_;   // for their first launch
  std::vector<std::shared_ptr<GpuSource>> let_go_;
  size_t preparing_now_ = 0;
  bool stopping_ = false;
  std::map<const CudaDevice*, std::unique_ptr<Device>> devices_;
  ThreadPool preparing_;  // last: their threads use all of the above
  ThreadPool launching_;
};

}  // namespace state_handoff
