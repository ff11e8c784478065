#include "transfer.h"

#include <algorithm>
#include <utility>

#include "copy_program_check.h"

namespace state_handoff {

namespace {

constexpr int64_t kChunkBytesMax = 512 << 10;

}  // namespace

Transfer::Transfer(uint64_t id, CopyProgram program, TransferTarget target, ClaimedGenerations blocks,
                   ClaimedGenerations slots, CopyRules rules)
    : id_(id),
      program_(std::move(program)),
      target_(std::move(target)),
      blocks_(std::move(blocks)),
      slots_(std::move(slots)),
      rules_(rules) {}

void Transfer::Prepare(size_t threads) {
  std::vector<int64_t> source_bytes;
  std::vector<int64_t> target_bytes;
  for (const CopySource& source : source_.regions) source_bytes.push_back(static_cast<int64_t>(source.bytes));
  for (const CopyTarget& target : target_.regions) target_bytes.push_back(static_cast<int64_t>(target.bytes));
  CheckProgram(program_, source_bytes, target_bytes, {});

  CheckClaimedIds(blocks_, source_.blocks, "generations.blocks");
  CheckClaimedIds(slots_, source_.slots, "generations.slots");
  // Loads that acquire: nothing is read from the source before them, by this thread or by those it now lets in.
  if (rules_.compare_before) CompareGenerations(std::memory_order_acquire, "before");

  walks_.reserve(program_.rectangles.size());
  int64_t bytes = 0;
  for (const Rectangle& rectangle : program_.rectangles) {
    walks_.emplace_back(program_, rectangle, source_.regions[static_cast<size_t>(rectangle.source_region)],
                        target_.regions[static_cast<size_t>(rectangle.target_region)]);
    bytes += walks_.back().bytes();
  }
  const auto shares = static_cast<int64_t>(threads) * 4;
  chunk_bytes_ = std::clamp(bytes / shares, CopyWalk::kQuantumBytes, kChunkBytesMax);
}

void Transfer::CompareGenerations(std::memory_order order, const char* when) const {
  CompareClaimed(blocks_, source_.blocks, "generations.blocks", order, when);
  CompareClaimed(slots_, source_.slots, "generations.slots", order, when);
}

void Transfer::Fail(ErrorCode code, std::string message) {
  if (failed_) return;
  failed_ = true;
  error_code_ = code;
  error_message_ = std::move(message);
}

void Transfer::End() {
  if (!failed_ && cut_short_) {
    Fail(ErrorCode::kTRANSFER_CANCELLED, "the transfer stopped because it was cancelled; no thread touches its memory");
  }
  if (!failed_ && rules_.compare_after) {
    // Each copying thread has fenced (acquire) after its last byte; see CopyExecutor::Run.
    try {
      CompareGenerations(std::memory_order_relaxed, "while");
    } catch (const NativeError& error) {
      Fail(error.code(), error.what());
    }
  }
  if (failed_ && error_code_ == ErrorCode::kHANDOFF_EXPIRED) bytes_done_.store(0, std::memory_order_relaxed);
  walks_.clear();
  target_ = TransferTarget{};
  source_ = TransferSource{};
  blocks_ = slots_ = ClaimedGenerations{};
  program_ = CopyProgram{};
  status_.store(failed_ ? TransferStatus::kFailed : TransferStatus::kDone, std::memory_order_release);
}

}  // namespace state_handoff
