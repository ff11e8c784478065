// Rectangles of one transfer that travel packed: asks the exporter to gather a chunk, reads the slot in which it lies,
// makes sure that the slot was still ours when it was read, and scatters it. Two chunks are under way at a time.
//
// An exporter that does not gather in time is asked no more; what is left is read as it lies. On the transport's
// thread.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "../core/packed_copy.h"
#include "nixl_direct_pull.h"

namespace state_handoff {

// The exporter's slot headers, read again and again while somebody waits for a change. One a link.
class NixlHeaderWatch {
 public:
  // Reads that were posted so far; what one of them brought was not older than its post.
  uint64_t posted() const { return posted_; }
  // The number of the read whose headers the link has now.
  uint64_t seen() const { return seen_; }
  // Wants a read that is posted after `posted`. `eager`: its end matters also when it shows what the last one showed.
  void Want(uint64_t posted, bool eager = false) {
    wanted_ = std::max(wanted_, posted + 1);
    eager_ = eager_ || eager;
  }
  // True when a read ended that matters: whoever waits for the exporter need not look again at once. Throws PEER_LOST.
  bool Step(NixlLink& link);
  bool active() const { return pending_.read != nullptr; }
  void Drop() { pending_.Drop(); }

 private:
  bool End(const NixlLink& link);

  NixlPending pending_;
  std::vector<PackTicket> tickets_;  // as they were seen
  bool eager_ = false;
  uint64_t posted_ = 0;
  uint64_t seen_ = 0;
  uint64_t wanted_ = 0;
};

class NixlPackedPull {
 public:
  using Clock = std::chrono::steady_clock;

  NixlPackedPull(const CopyProgram& program, const std::vector<size_t>& rectangles, int64_t chunk_bytes,
                 int64_t request_bytes, std::chrono::milliseconds patience, NixlShare share);

  bool over() const { return exhausted_ && jobs_.empty() && left_.empty(); }
  // Makes what progress there is; adds bytes that are in place. `start`: whether new chunks may be begun. True when
  // anything moved. Throws PEER_REFUSED, PEER_LOST.
  bool Step(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now, bool start, int64_t& bytes_done);
  // Whether a read or a copy is under way that may write memory of the link or the target.
  bool reading() const;
  // Whether a GPU scatters; `trusting`: one that was lost is taken to have stopped.
  bool scattering(bool trusting) const;
  // The link is being stopped: forgets its reads, but no copy of a GPU.
  void Drop();
  bool gave_up() const { return gave_up_; }

 private:
  enum class Stage : uint8_t { kAsked, kReading, kChecking };

  // What one slot holds: chunks one behind the other.
  struct Job {
    std::vector<PackedChunk> chunks;
    PackTicket ticket;
    Clock::time_point asked;
    uint64_t headers_after = 0;  // headers count that were posted after this many reads
    Stage stage = Stage::kAsked;
    bool over = false;
    // While the slot is read:
    int64_t at = 0;   // where in all staging
    size_t next = 0;  // which chunk
    std::optional<NixlRange> buffer;
    NixlPending pending;
    std::shared_ptr<GpuChunkCopies::Copy> scattering;  // of the chunk that was read last
  };

  bool Ask(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now);
  // Up to a slot's worth of this reader's chunks, and what the exporter is to do for them.
  std::vector<PackedChunk> TakeChunks(uint64_t slot_bytes, CopyProgram& pack);
  bool Advance(NixlLink& link, NixlHeaderWatch& watch, Job& job, bool start, int64_t& bytes_done);
  // Reads and scatters chunk by chunk, each while it is in this CPU's cache. True when anything moved.
  bool ReadSlot(NixlLink& link, NixlHeaderWatch& watch, Job& job, bool start);
  void Leave(Job& job);
  void End(NixlLink& link, Job& job);
  bool StepLeft(NixlLink& link, bool start, int64_t& bytes_done);

  // Slots asked for at a time, so that the exporter fills some while others are read here.
  static constexpr size_t kAsksMax = 4;

  const int64_t chunk_bytes_;
  PackedChunks chunks_;
  const int64_t request_bytes_;
  const std::chrono::milliseconds patience_;
  const NixlShare share_;
  int64_t turn_ = 0;
  bool exhausted_ = false;
  bool gave_up_ = false;
  std::deque<Job> jobs_;
  std::vector<std::shared_ptr<GpuChunkCopies::Copy>> dropped_;  // of jobs that are no more
  std::vector<PackTicket> finished_;                            // to be told with the next message
  std::deque<PackedChunk> left_;                                // to be read as they lie
  std::unique_ptr<NixlDirectPull> direct_;
  NixlPending direct_pending_;
};

}  // namespace state_handoff
