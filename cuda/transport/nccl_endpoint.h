// The NCCL transport of one engine rank on one GPU: its communicators, one a peer, and what passes over them. One
// thread makes every NCCL call, since communicators of one device may not be used at once.
//
// The owner (JavaScript) agrees with the peer on who sends what and when; this only does it.
#pragma once

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/completion_ring.h"
#include "../core/thread_pool.h"
#include "nccl_comm.h"

namespace state_handoff {

class NcclEndpoint {
 public:
  struct Options {
    std::vector<std::string> candidates;  // where to look for NCCL
    std::string kernels;                  // see CudaDevice::LoadKernels
    NcclCut cut{int64_t{32} << 20, true};
    size_t transfers_max = 65536;
  };
  enum class Readiness : uint8_t { kStarting = 0, kReady = 1, kFailed = 2 };

  // `wake` may be called from any thread, and not after Close has returned.
  NcclEndpoint(Options options, std::function<void()> wake);
  ~NcclEndpoint();
  NcclEndpoint(const NcclEndpoint&) = delete;
  NcclEndpoint& operator=(const NcclEndpoint&) = delete;

  // Before Start; all of one device.
  size_t AddRegion(std::shared_ptr<CudaRegion> region);
  // Loads the library and the kernels, on the thread. Once.
  void Start();
  Readiness readiness() const { return readiness_.load(std::memory_order_acquire); }
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }
  const NcclApi& api() const { return *api_; }

  // An id for one pair; whoever gets one ends it in a communicator. Throws NATIVE_SYSTEM.
  NcclUniqueId MakeUniqueId() const;
  uint64_t Join(const NcclUniqueId& unique, int rank);
  const NcclCommLink& Comm(uint64_t comm) const;
  // Ends it; what is under way on it fails and becomes quiet.
  void Abort(uint64_t comm, bool lost, const std::string& why);

  // Posts one end of a transfer. `peer_bytes`: sizes of the peer's regions.
  uint64_t Begin(uint64_t comm, bool sends, CopyProgram program, std::vector<int64_t> peer_bytes);
  const NcclTransfer& Find(uint64_t transfer) const;
  std::vector<uint64_t> TakeChanged() { return ring_->Take(); }
  void Forget(uint64_t transfer);

  void BeginClose();
  bool quiet() const { return closed_ && thread_.idle(); }
  void Close();

 private:
  struct Order {
    enum class Kind : uint8_t { kAbort, kBegin } kind;
    uint64_t comm;
    ErrorCode code;
    std::string why;
    std::shared_ptr<NcclTransfer> transfer;
  };

  void CheckOpen() const;
  void Run();
  bool Turn();
  bool IsBusy() const;

  const Options options_;
  std::vector<std::shared_ptr<CudaRegion>> regions_;
  std::unordered_map<uint64_t, std::shared_ptr<NcclCommLink>> comms_;
  std::unordered_map<uint64_t, std::shared_ptr<NcclTransfer>> transfers_;
  uint64_t last_id_ = 0;
  bool started_ = false;
  bool closed_ = false;

  // Written by the thread before readiness_.
  std::shared_ptr<const NcclApi> api_;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<Readiness> readiness_{Readiness::kStarting};

  // Under the mutex.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NcclCommLink>> new_comms_;
  std::vector<Order> orders_;
  bool stopping_ = false;

  // The thread's.
  struct Running {
    std::shared_ptr<NcclCommLink> link;
    std::vector<std::shared_ptr<NcclTransfer>> waiting;  // for the communicator to come up
    std::shared_ptr<NcclTransfer> active;
  };
  std::unordered_map<uint64_t, Running> running_;

  std::shared_ptr<CompletionRing> ring_;
  ThreadPool thread_;
};

}  // namespace state_handoff
