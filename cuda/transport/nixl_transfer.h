// One pull over NIXL: what was asked for, how far it is, and its outcome.
//
// A read that was posted cannot be called back. So a transfer that has failed, was cancelled or is past its deadline
// stays in doubt until each of its reads has ended by itself or the agent that made them has been destroyed; no clock
// ever makes it quiet. The owner reads status and outcome; everything else happens on the transport's thread.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "nixl_packed_pull.h"
#include "nixl_region.h"

namespace state_handoff {

enum class NixlTransferStatus : uint8_t { kActive = 0, kDone = 1, kFailedQuiet = 2, kFailedActive = 3 };

// When to gather and when to read as it lies, how much at a time, and how long to be patient.
struct NixlTuning {
  int64_t direct_bytes_min = 16 << 10;     // fragments below travel packed, where the peer packs
  int64_t packed_bytes_min = 128 << 10;    // of all such fragments of a transfer; less is read as it lies
  int64_t request_bytes = 8 << 20;         // of one read, about
  int64_t patience_ms = 1000;              // for a packed chunk; then the rest is read as it lies
  int64_t deadline_ms = 0;                 // after which a transfer has failed and is watched; 0: none
  int64_t stop_after_ms = 0;               // after a failure: when the agent is destroyed under its reads; 0: never
  int64_t gpu_direct_bytes_min = 1 << 20;  // as direct_bytes_min, where GPUs gather and scatter
  int64_t gpu_request_bytes = 32 << 20;    // as request_bytes, for a read out of or into GPU memory
};

class NixlTransfer {
 public:
  using Clock = std::chrono::steady_clock;

  // `share`: of the program's reads; all of it is checked.
  NixlTransfer(uint64_t id, std::shared_ptr<NixlLink> link, CopyProgram program, NixlShare share,
               std::vector<NixlRegionUse> uses, const NixlTuning& tuning);

  uint64_t id() const { return id_; }
  NixlTransferStatus status() const { return status_.load(std::memory_order_acquire); }
  int64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  // Once it has failed.
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }

  // Any thread; the transport's thread heeds them.
  void Cancel() { cancelled_.store(true, std::memory_order_relaxed); }
  void AttestPeerDead() { attested_.store(true, std::memory_order_relaxed); }

  // All below: the transport's thread.
  NixlLink& link() const { return *link_; }
  // Makes what progress there is without waiting; true when anything moved.
  bool Step(NixlHeaderWatch& watch, Clock::time_point now);
  // Asks for the link's end: a read failed, so the peer is lost; or reads do not end and somebody may end them.
  const std::optional<std::pair<ErrorCode, std::string>>& link_fault() const { return link_fault_; }
  // The link is being stopped: forgets all reads, and is quiet once the link is.
  void Drop(ErrorCode code, const std::string& message);
  // The whole transport closes: a GPU that was lost is taken to have stopped.
  void BeginClose() { closing_ = true; }
  bool is_final() const;
  // Whether the peer was asked for packed chunks in vain.
  bool packed_in_vain() const { return packed_in_vain_; }

 private:
  void Prepare();
  void Work(NixlHeaderWatch& watch, Clock::time_point now, bool start, bool& moved);
  bool reading() const;
  void Fail(ErrorCode code, const std::string& message);
  void End(NixlTransferStatus status);

  // Reads of one transfer that are posted at a time.
  static constexpr size_t kPendingMax = 2;

  const uint64_t id_;
  const std::shared_ptr<NixlLink> link_;
  const CopyProgram program_;
  const NixlShare share_;
  std::vector<NixlRegionUse> uses_;  // of the regions that it writes
  const NixlTuning tuning_;
  const Clock::time_point begun_;

  bool prepared_ = false;
  bool dropped_ = false;
  bool closing_ = false;
  bool failed_ = false;
  bool packed_in_vain_ = false;
  Clock::time_point failed_at_;
  std::optional<NixlDirectPull> direct_;
  std::optional<NixlPackedPull> packed_;
  std::deque<NixlPending> pending_;
  std::optional<std::pair<ErrorCode, std::string>> link_fault_;

  std::atomic<bool> cancelled_{false};
  std::atomic<bool> attested_{false};
  std::atomic<int64_t> bytes_done_{0};
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<NixlTransferStatus> status_{NixlTransferStatus::kActive};
};

}  // namespace state_handoff
