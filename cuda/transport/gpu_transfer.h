// One transfer that GPUs run: its program, what it reads and writes, the generations it trusts, the launches it is cut
// into, and its outcome.
//
// Filled by the owner's thread, prepared by one thread and launched by another. Everything it holds on to is let go
// before the outcome becomes visible; unless the device was lost, when nothing proves its memory quiet and all of it is
// kept.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "../core/copy_plan.h"
#include "../core/cuda_region.h"
#include "../core/error_codes.h"
#include "../core/generation_claims.h"

namespace state_handoff {

enum class GpuStatus : uint8_t { kActive = 0, kDone = 1, kFailed = 2, kInDoubt = 3 };

// What a transfer reads: a peer's regions as one device can address them, and its generations.
class GpuSource {
 public:
  virtual ~GpuSource() = default;
  virtual size_t region_count() const = 0;
  virtual int64_t region_bytes(size_t index) const = 0;
  // Maps the region for `device`. Throws PEER_LOST, PEER_UNREACHABLE, TRANSPORT_UNAVAILABLE. The preparing thread only.
  virtual CudaPointer Open(const CudaDevice& device, size_t index) = 0;
  virtual GenerationTable blocks() const = 0;
  virtual GenerationTable slots() const = 0;
};

// Memory for one plan, on the host (pinned) and on the device; used again by later transfers.
struct PlanMemory {
  void* host = nullptr;
  CudaPointer device = 0;
  size_t bytes = 0;
  CudaEvent uploaded = nullptr;
};

class GpuTransfer {
 public:
  GpuTransfer(uint64_t id, CopyProgram program, std::vector<std::shared_ptr<CudaRegion>> targets,
              ClaimedGenerations blocks, ClaimedGenerations slots);

  uint64_t id() const { return id_; }
  GpuStatus status() const { return status_.load(std::memory_order_acquire); }
  int64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  // Once the status is kFailed or kInDoubt.
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }

 private:
  friend class GpuExecutor;

  // The launches of one device.
  struct Part {
    std::shared_ptr<CudaDevice> device;
    CopyProgram program;  // the plan's
    std::optional<CopyPlan> plan;
    PlanMemory memory;
    size_t next = 0;  // chunk to launch
  };

  // Checks program and generations, maps the source and makes the plans; throws NativeError.
  void Prepare();
  bool HasWork() const;
  void Fail(ErrorCode code, std::string message);
  // Decides the outcome, lets go of everything, then shows it.
  void End();
  // The device was lost: keeps everything.
  void Doubt(const std::string& message);

  const uint64_t id_;
  CopyProgram program_;
  std::vector<std::shared_ptr<CudaRegion>> targets_;
  std::vector<CudaRegionUse> uses_;
  ClaimedGenerations blocks_;
  ClaimedGenerations slots_;
  std::shared_ptr<GpuSource> source_;
  std::vector<Part> parts_;
  int in_flight_ = 0;       // launches; the launching thread only
  bool cut_short_ = false;  // under the executor's lock
  bool submitted_ = false;
  bool over_ = false;
  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> bytes_done_{0};
  bool failed_ = false;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<GpuStatus> status_{GpuStatus::kActive};
};

}  // namespace state_handoff
