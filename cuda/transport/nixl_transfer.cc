#include "nixl_transfer.h"

#include <utility>

#include "../core/copy_program_check.h"

namespace state_handoff {

NixlTransfer::NixlTransfer(uint64_t id, std::shared_ptr<NixlLink> link, CopyProgram program, NixlShare share,
                           std::vector<NixlRegionUse> uses, const NixlTuning& tuning)
    : id_(id),
      link_(std::move(link)),
      program_(std::move(program)),
      share_(share),
      uses_(std::move(uses)),
      tuning_(tuning),
      begun_(Clock::now()) {}

bool NixlTransfer::is_final() const {
  const NixlTransferStatus now = status();
  return now == NixlTransferStatus::kDone || now == NixlTransferStatus::kFailedQuiet;
}

bool NixlTransfer::reading() const { return !pending_.empty() || (packed_ && packed_->reading()); }

void NixlTransfer::Prepare() {
  std::vector<int64_t> source_bytes;
  std::vector<int64_t> target_bytes;
  for (const NixlRange& region : link_->grant().regions) source_bytes.push_back(static_cast<int64_t>(region.bytes));
  for (const NixlRange& target : link_->targets()) target_bytes.push_back(static_cast<int64_t>(target.bytes));
  CheckProgram(program_, source_bytes, target_bytes, {});
  std::vector<size_t> small;
  std::vector<size_t> direct;
  int64_t small_bytes = 0;
  bool gpu = false;
  for (size_t i = 0; i < program_.rectangles.size(); ++i) {
    const Rectangle& rectangle = program_.rectangles[i];
    const bool of_gpu = link_->grant().regions[static_cast<size_t>(rectangle.source_region)].memory == kNixlVram ||
                        link_->targets()[static_cast<size_t>(rectangle.target_region)].memory == kNixlVram;
    gpu = gpu || of_gpu;
    const int64_t least = of_gpu ? tuning_.gpu_direct_bytes_min : tuning_.direct_bytes_min;
    if (rectangle.fragment_bytes >= least || !link_->CanPack(rectangle)) {
      direct.push_back(i);
      continue;
    }
    int64_t bytes = rectangle.fragment_bytes * (rectangle.table < 0 ? 1 : rectangle.table_count);
    for (int k = 0; k < rectangle.loop_count; ++k) bytes *= rectangle.loops[static_cast<size_t>(k)].count;
    small_bytes += bytes;
    small.push_back(i);
  }
  const int64_t request_bytes = gpu ? tuning_.gpu_request_bytes : tuning_.request_bytes;
  if (small_bytes >= tuning_.packed_bytes_min) {
    packed_.emplace(program_, small, link_->chunk_bytes(), request_bytes,
                    std::chrono::milliseconds(tuning_.patience_ms), share_);
  } else {
    direct.insert(direct.end(), small.begin(), small.end());
  }
  direct_.emplace(program_, std::move(direct), request_bytes, share_);
  prepared_ = true;
}

bool NixlTransfer::Step(NixlHeaderWatch& watch, Clock::time_point now) {
  if (is_final()) return false;
  if (dropped_) {
    // A GPU that scatters is not the agent's; one that was lost is waited for until the whole transport closes.
    if (!link_->stopped() || (packed_ && packed_->scattering(closing_))) return false;
    End(NixlTransferStatus::kFailedQuiet);
    return true;
  }
  const NixlLinkStatus link = link_->status();
  if (link == NixlLinkStatus::kFailed) {
    Drop(link_->error_code(), link_->error_message());
    return true;
  }
  if (cancelled_.load(std::memory_order_relaxed)) {
    Fail(ErrorCode::kTRANSFER_CANCELLED,
         "the transfer was cancelled; nothing more of it starts, and what was posted is watched until it ends");
  }
  if (tuning_.deadline_ms > 0 && now - begun_ > std::chrono::milliseconds(tuning_.deadline_ms)) {
    Fail(ErrorCode::kTRANSFER_DEADLINE, "the transfer did not end within " + std::to_string(tuning_.deadline_ms) +
                                            " ms; what was posted is watched until it ends");
  }
  bool moved = false;
  if (link == NixlLinkStatus::kReady) {
    try {
      if (!failed_ && !prepared_) Prepare();
      Work(watch, now, !failed_, moved);
    } catch (const NativeError& error) {
      moved = moved || !failed_;
      Fail(error.code(), error.what());
      // Whatever read failed, the agent's other reads are not to be trusted; its end is the proof.
      if (error.code() == ErrorCode::kPEER_LOST) link_fault_.emplace(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      Fail(ErrorCode::kNATIVE_SYSTEM, "the transfer stopped because memory ran out");
    }
  }
  if (!failed_) {
    if (prepared_ && direct_->over() && (!packed_ || packed_->over()) && !reading()) End(NixlTransferStatus::kDone);
    return moved || is_final();
  }
  if (!reading() && !link_fault_) {
    End(NixlTransferStatus::kFailedQuiet);
    return true;
  }
  if (status() == NixlTransferStatus::kActive) {
    status_.store(NixlTransferStatus::kFailedActive, std::memory_order_release);
    moved = true;
  }
  if (link_fault_) return true;
  if (attested_.load(std::memory_order_relaxed)) {
    link_fault_.emplace(ErrorCode::kPEER_LOST, "the peer was attested dead");
  } else if (tuning_.stop_after_ms > 0 && now - failed_at_ > std::chrono::milliseconds(tuning_.stop_after_ms)) {
    link_fault_.emplace(ErrorCode::kPEER_LOST, "the connection was ended because reads over it did not end within " +
                                                   std::to_string(tuning_.stop_after_ms) + " ms after a failure");
  }
  return moved || link_fault_.has_value();
}

void NixlTransfer::Work(NixlHeaderWatch& watch, Clock::time_point now, bool start, bool& moved) {
  const auto settle = [this](NixlStatus status) {
    if (status == kNixlInProgress) return false;
    if (status != kNixlSuccess) {
      throw NativeError(ErrorCode::kPEER_LOST,
                        "the peer is lost: NIXL ended a read of its memory with " + NixlStatusText(status));
    }
    bytes_done_.fetch_add(pending_.front().bytes, std::memory_order_relaxed);
    pending_.pop_front();
    return true;
  };
  while (!pending_.empty() && settle(pending_.front().read->Poll())) moved = true;
  // One read a step, since a post may do all of its copying: others have their turn in between.
  if (start && !direct_->over() && pending_.size() < kPendingMax) {
    pending_.push_back(direct_->Next(*link_));
    const NixlStatus status = pending_.back().read->Post();
    if (pending_.size() == 1 || (status != kNixlInProgress && status != kNixlSuccess)) {
      if (pending_.size() > 1) std::swap(pending_.front(), pending_.back());
      settle(status);
    }
    moved = true;
  }
  if (packed_) {
    int64_t bytes = 0;
    if (packed_->Step(*link_, watch, now, start, bytes)) moved = true;
    bytes_done_.fetch_add(bytes, std::memory_order_relaxed);
  }
}

void NixlTransfer::Fail(ErrorCode code, const std::string& message) {
  if (failed_) return;
  failed_ = true;
  failed_at_ = Clock::now();
  error_code_ = code;
  error_message_ = message;
}

void NixlTransfer::Drop(ErrorCode code, const std::string& message) {
  if (is_final() || dropped_) return;
  Fail(code, message);
  // Reads first, then every hold on a list: none may outlive the agent.
  pending_.clear();
  if (packed_) packed_->Drop();
  direct_.reset();
  dropped_ = true;
  if (status() == NixlTransferStatus::kActive) {
    status_.store(NixlTransferStatus::kFailedActive, std::memory_order_release);
  }
}

void NixlTransfer::End(NixlTransferStatus status) {
  packed_in_vain_ = packed_ && packed_->gave_up();
  direct_.reset();
  packed_.reset();
  uses_.clear();
  status_.store(status, std::memory_order_release);
}

}  // namespace state_handoff
