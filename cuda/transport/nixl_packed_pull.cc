#include "nixl_packed_pull.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "../core/copy_walk.h"

namespace state_handoff {

namespace {

// Whether the read is over. Throws PEER_LOST when it failed.
bool IsOver(NixlStatus status) {
  if (status == kNixlInProgress) return false;
  if (status == kNixlSuccess) return true;
  throw NativeError(ErrorCode::kPEER_LOST,
                    "the peer is lost: NIXL ended a read of its memory with " + NixlStatusText(status));
}

// The slot whose header shows `ticket`, or -1.
int64_t SlotOf(const NixlLink& link, const PackTicket& ticket) {
  for (uint64_t slot = 0; slot < link.grant().staging.slots; ++slot) {
    const SlotHeader& header = link.headers()[slot];
    if (header.low.load(std::memory_order_relaxed) == ticket.low &&
        header.high.load(std::memory_order_relaxed) == ticket.high) {
      return static_cast<int64_t>(slot);
    }
  }
  return -1;
}

}  // namespace

bool NixlHeaderWatch::Step(NixlLink& link) {
  if (pending_.read != nullptr) {
    if (!IsOver(pending_.read->Poll())) return false;
    pending_.Drop();
    seen_ = posted_;
    return true;
  }
  if (wanted_ <= posted_ || link.headers() == nullptr) return false;
  const NixlStaging& staging = link.grant().staging;
  const uint64_t bytes = staging.headers_bytes();
  pending_ = link.Read({NixlRange{reinterpret_cast<uint64_t>(link.headers()), bytes}},
                       {NixlRange{staging.address, bytes}}, static_cast<int64_t>(bytes));
  ++posted_;
  if (!IsOver(pending_.read->Post())) return false;
  pending_.Drop();
  seen_ = posted_;
  return true;
}

NixlPackedPull::NixlPackedPull(const CopyProgram& program, const std::vector<size_t>& rectangles, int64_t slot_bytes,
                               int64_t request_bytes, std::chrono::milliseconds patience)
    : chunks_(program, rectangles, slot_bytes), request_bytes_(request_bytes), patience_(patience) {}

bool NixlPackedPull::reading() const {
  return direct_pending_.read != nullptr ||
         std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.pending.read != nullptr; });
}

void NixlPackedPull::Drop() {
  for (Job& job : jobs_) job.pending.Drop();
  direct_pending_.Drop();
  jobs_.clear();
  direct_.reset();
  left_.clear();
  exhausted_ = true;
}

bool NixlPackedPull::Step(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now, bool start,
                          int64_t& bytes_done) {
  bool moved = false;
  for (size_t i = 0; i < jobs_.size();) {
    Job& job = jobs_[i];
    if (Advance(link, watch, job, bytes_done)) {
      moved = true;
      if (job.buffer == nullptr) {
        jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
    } else if (job.stage == Stage::kAsked && (!start || gave_up_ || now - job.asked > patience_)) {
      // Also one that was lost by a lease: whoever has waited for so long reads without packing from now on.
      gave_up_ = gave_up_ || start;
      End(link, job);
      if (start) left_.push_back(std::move(job.chunk));
      jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
      moved = true;
      continue;
    }
    ++i;
  }
  if (!start) {
    exhausted_ = true;
    left_.clear();
    direct_.reset();
  }
  while (start && !exhausted_ && !gave_up_ && jobs_.size() < kJobs && Ask(link, watch, now)) moved = true;
  if (start && gave_up_ && !exhausted_ && left_.empty()) {
    PackedChunk chunk;
    exhausted_ = !chunks_.Next(chunk);
    if (!exhausted_) left_.push_back(std::move(chunk));
  }
  if (StepLeft(link, start, bytes_done)) moved = true;
  if (over() && !finished_.empty()) {
    // A hint: slots that nobody speaks of are free when their lease is over.
    (void)link.Notify(EncodePackMessage(PackMessage{std::move(finished_), {}, {}}));
    finished_.clear();
  }
  return moved;
}

bool NixlPackedPull::Ask(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now) {
  uint8_t* buffer = link.TakeBuffer();
  if (buffer == nullptr) return false;
  PackedChunk chunk;
  if (!chunks_.Next(chunk)) {
    link.ReturnBuffer(buffer);
    exhausted_ = true;
    return false;
  }
  const PackTicket ticket = link.NextTicket();
  const std::string text = EncodePackMessage(PackMessage{std::move(finished_), ticket, chunk.pack});
  finished_.clear();
  watch.Want(watch.posted());
  jobs_.push_back(Job{std::move(chunk), ticket, buffer, Stage::kAsked, watch.posted(), now, {}});
  if (text.size() > kPackMessageBytesMax || !link.Notify(text)) gave_up_ = true;
  return true;
}

bool NixlPackedPull::Advance(NixlLink& link, NixlHeaderWatch& watch, Job& job, int64_t& bytes_done) {
  if (job.stage == Stage::kReading) {
    if (!IsOver(job.pending.read->Poll())) return false;
    job.pending.Drop();
    job.stage = Stage::kChecking;
    job.headers_after = watch.posted();
    watch.Want(job.headers_after);
    return true;
  }
  if (watch.seen() <= job.headers_after) return false;
  const int64_t slot = SlotOf(link, job.ticket);
  if (job.stage == Stage::kAsked) {
    if (slot < 0) {
      job.headers_after = watch.posted();
      watch.Want(job.headers_after);
      return false;
    }
    const NixlStaging& staging = link.grant().staging;
    const auto bytes = static_cast<uint64_t>(job.chunk.bytes);
    job.pending = link.Read({NixlRange{reinterpret_cast<uint64_t>(job.buffer), bytes}},
                            {NixlRange{staging.address + staging.SlotOffset(static_cast<uint64_t>(slot)), bytes}},
                            job.chunk.bytes);
    job.stage = Stage::kReading;
    if (IsOver(job.pending.read->Post())) {
      job.pending.Drop();
      job.stage = Stage::kChecking;
      job.headers_after = watch.posted();
      watch.Want(job.headers_after);
    }
    return true;
  }
  if (slot < 0) {
    // The slot went to somebody else while it was read.
    gave_up_ = true;
    left_.push_back(std::move(job.chunk));
  } else {
    Unpack(link, job);
    bytes_done += job.chunk.bytes;
  }
  End(link, job);
  return true;
}

void NixlPackedPull::Unpack(const NixlLink& link, const Job& job) const {
  const CopyProgram& unpack = job.chunk.unpack;
  const CopySource source{job.buffer, static_cast<size_t>(job.chunk.bytes)};
  for (const Rectangle& rectangle : unpack.rectangles) {
    const CopyWalk walk(unpack, rectangle, source, link.targets()[static_cast<size_t>(rectangle.target_region)]);
    walk.Copy(0, walk.bytes());
  }
}

void NixlPackedPull::End(NixlLink& link, Job& job) {
  link.ReturnBuffer(job.buffer);
  job.buffer = nullptr;
  finished_.push_back(job.ticket);
}

bool NixlPackedPull::StepLeft(NixlLink& link, bool start, int64_t& bytes_done) {
  if (direct_pending_.read != nullptr) {
    if (!IsOver(direct_pending_.read->Poll())) return false;
    bytes_done += direct_pending_.bytes;
    direct_pending_.Drop();
  } else if (!start || left_.empty()) {
    return false;
  }
  if (direct_ != nullptr && direct_->over()) {
    direct_.reset();
    left_.pop_front();
  }
  if (!start || left_.empty()) return true;
  if (direct_ == nullptr) {
    std::vector<size_t> all(left_.front().direct.rectangles.size());
    std::iota(all.begin(), all.end(), size_t{0});
    direct_ = std::make_unique<NixlDirectPull>(left_.front().direct, std::move(all), request_bytes_);
  }
  direct_pending_ = direct_->Next(link);
  if (IsOver(direct_pending_.read->Post())) {
    bytes_done += direct_pending_.bytes;
    direct_pending_.Drop();
    if (direct_->over()) {
      direct_.reset();
      left_.pop_front();
    }
  }
  return true;
}

}  // namespace state_handoff
