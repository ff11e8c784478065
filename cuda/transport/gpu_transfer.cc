#include "gpu_transfer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "../core/copy_program_check.h"

namespace state_handoff {

GpuTransfer::GpuTransfer(uint64_t id, CopyProgram program, std::vector<std::shared_ptr<CudaRegion>> targets,
                         ClaimedGenerations blocks, ClaimedGenerations slots)
    : id_(id),
      program_(std::move(program)),
      targets_(std::move(targets)),
      blocks_(std::move(blocks)),
      slots_(std::move(slots)) {
  std::vector<bool> used(targets_.size(), false);
  for (const Rectangle& rectangle : program_.rectangles) {
    const auto index = static_cast<size_t>(rectangle.target_region);
    if (index >= used.size() || used[index]) continue;  // the check refuses the first
    used[index] = true;
    uses_.emplace_back(targets_[index], "regions[" + std::to_string(index) + "]");
  }
}

void GpuTransfer::Prepare() {
  std::vector<int64_t> source_bytes;
  std::vector<int64_t> target_bytes;
  for (size_t i = 0; i < source_->region_count(); ++i) source_bytes.push_back(source_->region_bytes(i));
  for (const std::shared_ptr<CudaRegion>& target : targets_) {
    target_bytes.push_back(static_cast<int64_t>(target->bytes()));
  }
  CheckProgram(program_, source_bytes, target_bytes, {});
  CheckClaimedIds(blocks_, source_->blocks(), "generations.blocks");
  CheckClaimedIds(slots_, source_->slots(), "generations.slots");
  // Loads that acquire, before anything is launched.
  CompareClaimed(blocks_, source_->blocks(), "generations.blocks", std::memory_order_acquire, "before");
  CompareClaimed(slots_, source_->slots(), "generations.slots", std::memory_order_acquire, "before");

  std::map<CudaOrdinal, std::vector<Rectangle>> by_device;
  for (const Rectangle& rectangle : program_.rectangles) {
    by_device[targets_[static_cast<size_t>(rectangle.target_region)]->device()->ordinal()].push_back(rectangle);
  }
  parts_.resize(by_device.size());
  size_t at = 0;
  for (auto& [ordinal, rectangles] : by_device) {
    Part& part = parts_[at++];
    part.device = targets_[static_cast<size_t>(rectangles[0].target_region)]->device();
    part.program.rectangles = std::move(rectangles);
    // The last device takes the tables.
    part.program.tables = at == by_device.size() ? std::move(program_.tables) : program_.tables;
    std::vector<PlanRegion> sources(source_bytes.size());
    std::vector<PlanRegion> targets(target_bytes.size());
    for (const Rectangle& rectangle : part.program.rectangles) {
      const auto from = static_cast<size_t>(rectangle.source_region);
      const auto to = static_cast<size_t>(rectangle.target_region);
      if (sources[from].address == 0) sources[from] = {source_->Open(*part.device, from), source_bytes[from]};
      targets[to] = {targets_[to]->address(), target_bytes[to]};
    }
    part.plan.emplace(part.program, sources, targets);
  }
}

bool GpuTransfer::HasWork() const {
  return std::any_of(parts_.begin(), parts_.end(),
                     [](const Part& part) { return part.plan && part.next < part.plan->chunks().size(); });
}

void GpuTransfer::Fail(ErrorCode code, std::string message) {
  if (failed_) return;
  failed_ = true;
  error_code_ = code;
  error_message_ = std::move(message);
}

void GpuTransfer::End() {
  if (!failed_ && cut_short_) {
    Fail(ErrorCode::kTRANSFER_CANCELLED, "the transfer stopped because it was cancelled; its last launch is over");
  }
  if (!failed_ && source_ != nullptr) {
    // The launches are over, and this thread has seen their events.
    std::atomic_thread_fence(std::memory_order_acquire);
    try {
      CompareClaimed(blocks_, source_->blocks(), "generations.blocks", std::memory_order_relaxed, "while");
      CompareClaimed(slots_, source_->slots(), "generations.slots", std::memory_order_relaxed, "while");
    } catch (const NativeError& error) {
      Fail(error.code(), error.what());
    }
  }
  if (failed_ && error_code_ == ErrorCode::kHANDOFF_EXPIRED) bytes_done_.store(0, std::memory_order_relaxed);
  parts_.clear();
  uses_.clear();
  targets_.clear();
  source_.reset();
  blocks_ = slots_ = ClaimedGenerations{};
  program_ = CopyProgram{};
  status_.store(failed_ ? GpuStatus::kFailed : GpuStatus::kDone, std::memory_order_release);
}

void GpuTransfer::Doubt(const std::string& message) {
  failed_ = false;
  Fail(ErrorCode::kTRANSFER_FAILED, message);
  status_.store(GpuStatus::kInDoubt, std::memory_order_release);
}

}  // namespace state_handoff
