// One transfer under way: its program, what it reads and writes, the generations it trusts, and its outcome.
//
// Filled by the owner's thread, prepared and copied by the executor's. Everything it holds on to (uses of regions, the
// peer's mapping) is let go before the outcome becomes visible.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "copy_program.h"
#include "copy_walk.h"
#include "error_codes.h"
#include "generation_claims.h"
#include "region.h"

namespace state_handoff {

enum class TransferStatus : uint8_t { kActive = 0, kDone = 1, kFailed = 2 };

// What a transfer writes: every region it could name, and its uses of those that it does name.
struct TransferTarget {
  std::vector<CopyTarget> regions;
  std::vector<RegionUse> uses;
};

// What a transfer reads. `keep` owns all of it.
struct TransferSource {
  std::vector<CopySource> regions;
  GenerationTable blocks;
  GenerationTable slots;
  std::shared_ptr<const void> keep;
};

// Both true, except in the test that shows that each is needed.
struct CopyRules {
  bool compare_before = true;
  bool compare_after = true;
};

class Transfer {
 public:
  Transfer(uint64_t id, CopyProgram program, TransferTarget target, ClaimedGenerations blocks, ClaimedGenerations slots,
           CopyRules rules = {});

  uint64_t id() const { return id_; }
  TransferStatus status() const { return status_.load(std::memory_order_acquire); }
  int64_t bytes_done() const { return bytes_done_.load(std::memory_order_relaxed); }
  // Once the status is kFailed.
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }

 private:
  friend class CopyExecutor;

  enum class Stage : uint8_t { kNew, kPreparing, kCopying, kEnding };

  // Checks program and generations and forms addresses; throws NativeError.
  void Prepare(size_t threads);
  // Throws HANDOFF_EXPIRED at the first difference.
  void CompareGenerations(std::memory_order order, const char* when) const;
  void Fail(ErrorCode code, std::string message);
  // Decides the outcome, lets go of everything, then shows it.
  void End();

  const uint64_t id_;
  CopyProgram program_;
  TransferTarget target_;
  ClaimedGenerations blocks_;
  ClaimedGenerations slots_;
  const CopyRules rules_;
  TransferSource source_;
  std::vector<CopyWalk> walks_;
  int64_t chunk_bytes_ = 0;

  // Under the executor's lock.
  Stage stage_ = Stage::kNew;
  size_t walk_ = 0;  // the next bytes to claim
  int64_t position_ = 0;
  size_t threads_inside_ = 0;
  bool cut_short_ = false;

  std::atomic<bool> cancelled_{false};
  std::atomic<int64_t> bytes_done_{0};
  bool failed_ = false;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<TransferStatus> status_{TransferStatus::kActive};
};

}  // namespace state_handoff
