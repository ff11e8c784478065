// The NIXL transport of one engine rank: what it exports, the peers it reads from, and the transfers under way.
//
// Two threads. The transport's thread makes every NIXL call of transfers and answers peers; the setup thread makes and
// destroys agents, which blocks. The owner (JavaScript) calls everything here and never waits but in Close.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/completion_ring.h"
#include "../core/job_thread.h"
#include "nixl_region.h"
#include "nixl_transfer.h"

namespace state_handoff {

// Numbers that tests and `doctor` ask for.
struct NixlCounters {
  int64_t links = 0;
  int64_t prepared_lists = 0;
  int64_t packed_chunks = 0;  // gathered for peers
  int64_t pack_refusals = 0;  // transfers that went on without packing
};

class NixlEndpoint {
 public:
  struct Options {
    std::vector<std::string> candidates;  // where to look for NIXL
    std::string name;                     // unique for this incarnation
    bool exports = true;
    uint64_t slots = 0;
    uint64_t slot_bytes = 0;
    uint64_t gpu_slot_bytes = 0;  // of slots that lie in GPU memory
    std::string kernels;          // see CudaDevice::LoadKernels
    NixlTuning tuning;
    size_t transfers_max = 65536;
  };
  enum class Readiness : uint8_t { kStarting = 0, kReady = 1, kFailed = 2 };

  // `wake` may be called from any thread, and not after Close has returned.
  NixlEndpoint(Options options, std::function<void()> wake);
  ~NixlEndpoint();
  NixlEndpoint(const NixlEndpoint&) = delete;
  NixlEndpoint& operator=(const NixlEndpoint&) = delete;

  // Before Start.
  size_t AddRegion(NixlRegion region);
  // Loads the library and makes what is exported, on the setup thread. `probe`: where nothing is, makes an agent all
  // the same, so that what is wrong with the library shows now and not with the first peer. Once.
  void Start(bool probe);
  Readiness readiness() const { return readiness_.load(std::memory_order_acquire); }
  // Once it is kFailed.
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }
  // Once it is kReady. Without metadata when this side exports nothing.
  NixlGrant Grant();
  const std::string& library_path() const { return library_path_; }

  uint64_t Connect(NixlGrant grant);
  const NixlLink& Link(uint64_t link) const;
  // Ends when its transfers have.
  void Disconnect(uint64_t link);

  uint64_t Begin(uint64_t link, CopyProgram program, NixlShare share);
  const NixlTransfer& Find(uint64_t transfer) const;
  void Cancel(uint64_t transfer);
  void AttestPeerDead(uint64_t transfer);
  std::vector<uint64_t> TakeChanged() { return ring_->Take(); }
  // Lets go of a transfer that is final.
  void Forget(uint64_t transfer);
  NixlCounters Counters() const;

  // Cancels every transfer, destroys all agents and lets both threads leave. What is under way ends as failed and
  // quiet.
  void BeginClose();
  // Whether both threads have left, so that Close does not wait.
  bool quiet();
  void Close();

 private:
  struct Connected {
    std::shared_ptr<NixlLink> link;
    NixlHeaderWatch watch;
    bool leaving = false;
  };

  void CheckOpen() const;
  std::vector<NixlRange> Ranges() const;
  void Prepare(bool probe);
  void Nudge();
  void Run();
  // One look at everything; true when anything moved.
  bool Turn();
  void TakeArrivals();
  void StepTransfers();
  void Lose(Connected& connected, ErrorCode code, const std::string& message);

  // The owner's.
  const Options options_;
  std::vector<NixlRegion> regions_;
  std::unordered_map<uint64_t, std::shared_ptr<NixlLink>> links_;
  std::unordered_map<uint64_t, std::shared_ptr<NixlTransfer>> transfers_;
  uint64_t last_id_ = 0;
  bool started_ = false;
  bool granted_ = false;  // peers may read
  bool closed_ = false;

  // Written by the setup thread before readiness_.
  std::shared_ptr<const NixlApi> api_;
  std::string library_path_;
  std::shared_ptr<CudaDevice> device_;      // of the first GPU region; its context is current wherever NIXL is called
  std::unique_ptr<GpuChunkCopies> copies_;  // null without GPU regions or without kernels
  std::unique_ptr<NixlExporter> exporter_;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<Readiness> readiness_{Readiness::kStarting};

  // Under the mutex.
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<NixlLink>> new_links_;
  std::vector<uint64_t> leaving_links_;
  std::vector<std::shared_ptr<NixlTransfer>> new_transfers_;
  bool nudged_ = false;
  bool stopping_ = false;

  // The transport's thread.
  std::unordered_map<uint64_t, Connected> connected_;
  std::vector<std::shared_ptr<NixlTransfer>> active_;
  bool moved_ = false;

  std::atomic<int64_t> link_count_{0};
  std::atomic<int64_t> list_count_{0};
  std::atomic<int64_t> refusals_{0};
  std::shared_ptr<CompletionRing> ring_;
  JobThread setup_{"handoff-nixl-up"};
  ThreadPool thread_;
};

}  // namespace state_handoff
