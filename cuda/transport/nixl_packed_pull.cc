#include "nixl_packed_pull.h"

#include <algorithm>
#include <numeric>
#include <utility>

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
  if (pending_.read != nullptr) return IsOver(pending_.read->Poll()) && End(link);
  if (wanted_ <= posted_ || link.headers() == nullptr) return false;
  const NixlStaging& staging = link.grant().staging;
  const uint64_t bytes = staging.headers_bytes();
  pending_ = link.Read({NixlRange{reinterpret_cast<uint64_t>(link.headers()), bytes}},
                       {NixlRange{staging.address, bytes}}, static_cast<int64_t>(bytes));
  ++posted_;
  return IsOver(pending_.read->Post()) && End(link);
}

bool NixlHeaderWatch::End(const NixlLink& link) {
  pending_.Drop();
  seen_ = posted_;
  bool matters = std::exchange(eager_, false);
  tickets_.resize(link.grant().staging.slots);
  for (size_t slot = 0; slot < tickets_.size(); ++slot) {
    const SlotHeader& header = link.headers()[slot];
    const PackTicket now{header.high.load(std::memory_order_relaxed), header.low.load(std::memory_order_relaxed)};
    if (!(tickets_[slot] == now)) matters = true;
    tickets_[slot] = now;
  }
  return matters;
}

NixlPackedPull::NixlPackedPull(const CopyProgram& program, const std::vector<size_t>& rectangles, int64_t chunk_bytes,
                               int64_t request_bytes, std::chrono::milliseconds patience, NixlShare share)
    : chunk_bytes_(chunk_bytes),
      chunks_(program, rectangles, chunk_bytes_),
      request_bytes_(request_bytes),
      patience_(patience),
      share_(share) {}

bool NixlPackedPull::reading() const {
  return scattering(false) || direct_pending_.read != nullptr ||
         std::any_of(jobs_.begin(), jobs_.end(), [](const Job& job) { return job.pending.read != nullptr; });
}

bool NixlPackedPull::scattering(bool trusting) const {
  const auto under_way = [trusting](const std::shared_ptr<GpuChunkCopies::Copy>& copy) {
    if (copy == nullptr) return false;
    try {
      return !copy->IsOver() && !(trusting && copy->lost());
    } catch (const NativeError&) {
      return !trusting;
    }
  };
  return std::any_of(dropped_.begin(), dropped_.end(), under_way) ||
         std::any_of(jobs_.begin(), jobs_.end(), [&](const Job& job) { return under_way(job.scattering); });
}

void NixlPackedPull::Drop() {
  for (Job& job : jobs_) {
    job.pending.Drop();
    if (job.scattering != nullptr) dropped_.push_back(std::move(job.scattering));
  }
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
    if (Advance(link, watch, job, start, bytes_done)) {
      moved = true;
      if (job.over) {
        jobs_.erase(jobs_.begin() + static_cast<std::ptrdiff_t>(i));
        continue;
      }
    } else if (job.stage == Stage::kAsked && (!start || gave_up_ || now - job.asked > patience_)) {
      // Also one that was lost by a lease: whoever has waited for so long reads without packing from now on.
      gave_up_ = gave_up_ || start;
      End(link, job);
      if (start) Leave(job);
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
  const size_t asks = std::min<size_t>(kAsksMax, link.grant().staging.slots);
  while (start && !exhausted_ && !gave_up_ && jobs_.size() < asks && Ask(link, watch, now)) moved = true;
  if (start && gave_up_ && !exhausted_ && left_.empty()) {
    PackedChunk chunk;
    exhausted_ = !chunks_.Next(chunk);
    if (!exhausted_) left_.push_back(std::move(chunk));
  }
  if (StepLeft(link, start, bytes_done)) moved = true;
  if (!finished_.empty()) {
    // No request carries them. A hint: slots that nobody speaks of are free when their lease is over.
    (void)link.Notify(EncodePackMessage(PackMessage{std::move(finished_), {}, {}}));
    finished_.clear();
  }
  return moved;
}

std::vector<PackedChunk> NixlPackedPull::TakeChunks(uint64_t slot_bytes, CopyProgram& pack) {
  std::vector<PackedChunk> chunks;
  int64_t bytes = 0;
  size_t rows = 0;
  while (bytes + chunk_bytes_ <= static_cast<int64_t>(slot_bytes) && rows < PackedChunks::kRowsMax) {
    PackedChunk chunk;
    if (!chunks_.Next(chunk)) {
      exhausted_ = true;
      break;
    }
    const auto tables = static_cast<int64_t>(pack.tables.size());
    for (Rectangle rectangle : chunk.pack.rectangles) {
      rectangle.target_offset += bytes;
      if (rectangle.table >= 0) rectangle.table += tables;
      pack.rectangles.push_back(rectangle);
    }
    for (Table& table : chunk.pack.tables) {
      rows += table.source.size();
      pack.tables.push_back(std::move(table));
    }
    bytes += chunk.bytes;
    chunk.pack = CopyProgram{};
    chunks.push_back(std::move(chunk));
  }
  return chunks;
}

bool NixlPackedPull::Ask(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now) {
  link.MakeBuffers();
  CopyProgram pack;
  Job job;
  do {
    pack = CopyProgram{};
    job.chunks = TakeChunks(link.grant().staging.slot_bytes, pack);
    if (job.chunks.empty()) return false;
  } while (!share_.Has(turn_++));
  job.ticket = link.NextTicket();
  const std::string text = EncodePackMessage(PackMessage{std::move(finished_), job.ticket, std::move(pack)});
  finished_.clear();
  job.asked = now;
  job.headers_after = watch.posted();
  watch.Want(job.headers_after);
  jobs_.push_back(std::move(job));
  if (text.size() > kPackMessageBytesMax || !link.Notify(text)) gave_up_ = true;
  return true;
}

bool NixlPackedPull::Advance(NixlLink& link, NixlHeaderWatch& watch, Job& job, bool start, int64_t& bytes_done) {
  if (job.stage == Stage::kReading) return ReadSlot(link, watch, job, start);
  if (watch.seen() <= job.headers_after) return false;
  const int64_t slot = SlotOf(link, job.ticket);
  if (job.stage == Stage::kAsked) {
    if (slot < 0) {
      job.headers_after = watch.posted();
      watch.Want(job.headers_after);
      return false;
    }
    if (!start) return false;
    job.buffer = link.TakeBuffer();
    if (!job.buffer) return false;
    job.at = slot * static_cast<int64_t>(link.grant().staging.slot_bytes);
    job.stage = Stage::kReading;
    return ReadSlot(link, watch, job, start);
  }
  if (slot < 0) {
    // The slot went to somebody else while it was read: what was scattered may be anything, and is read again.
    gave_up_ = true;
    Leave(job);
  } else {
    for (const PackedChunk& chunk : job.chunks) bytes_done += chunk.bytes;
  }
  End(link, job);
  return true;
}

bool NixlPackedPull::ReadSlot(NixlLink& link, NixlHeaderWatch& watch, Job& job, bool start) {
  for (bool moved = false;; moved = true) {
    const PackedChunk& chunk = job.chunks[job.next];
    if (job.scattering != nullptr) {
      if (!job.scattering->IsOver()) return moved;
      job.scattering.reset();
    } else {
      if (job.pending.read == nullptr) {
        if (!start) {
          End(link, job);
          return true;
        }
        const auto bytes = static_cast<uint64_t>(chunk.bytes);
        const NixlRange from = link.grant().staging.data.Part(static_cast<uint64_t>(job.at), bytes);
        job.pending = link.Read({job.buffer->Part(0, bytes)}, {from}, chunk.bytes);
        if (!IsOver(job.pending.read->Post())) return true;
      } else if (!IsOver(job.pending.read->Poll())) {
        return moved;
      }
      job.pending.Drop();
      job.scattering = link.Scatter(chunk.unpack, *job.buffer, chunk.bytes, chunks_.bytes());
      if (job.scattering != nullptr) continue;
    }
    job.at += chunk.bytes;
    if (++job.next < job.chunks.size()) continue;
    link.ReturnBuffer(*job.buffer);
    job.buffer.reset();
    job.stage = Stage::kChecking;
    job.headers_after = watch.posted();
    watch.Want(job.headers_after, true);
    return true;
  }
}

void NixlPackedPull::Leave(Job& job) {
  for (PackedChunk& chunk : job.chunks) left_.push_back(std::move(chunk));
}

void NixlPackedPull::End(NixlLink& link, Job& job) {
  if (job.buffer) link.ReturnBuffer(*job.buffer);
  job.buffer.reset();
  job.over = true;
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
