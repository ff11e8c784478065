// Rectangles of one transfer that travel packed: asks the exporter to gather a chunk, reads the slot in which it lies,
// makes sure that the slot was still ours when it was read, and scatters it. Two chunks are under way at a time.
//
// An exporter that does not gather in time is asked no more; what is left is read as it lies. On the transport's
// thread.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
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
  // Wants a read that is posted after `posted`.
  void Want(uint64_t posted) { wanted_ = std::max(wanted_, posted + 1); }
  // True when a read ended. Throws PEER_LOST.
  bool Step(NixlLink& link);
  bool active() const { return pending_.read != nullptr; }
  void Drop() { pending_.Drop(); }

 private:
  NixlPending pending_;
  uint64_t posted_ = 0;
  uint64_t seen_ = 0;
  uint64_t wanted_ = 0;
};

class NixlPackedPull {
 public:
  using Clock = std::chrono::steady_clock;

  NixlPackedPull(const CopyProgram& program, const std::vector<size_t>& rectangles, int64_t slot_bytes,
                 int64_t request_bytes, std::chrono::milliseconds patience);

  bool over() const { return exhausted_ && jobs_.empty() && left_.empty(); }
  // Makes what progress there is; adds bytes that are in place. `start`: whether new chunks may be begun. True when
  // anything moved. Throws PEER_REFUSED, PEER_LOST.
  bool Step(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now, bool start, int64_t& bytes_done);
  // Whether a read is under way that may write memory of the link or the target.
  bool reading() const;
  // The link is being stopped: forgets its reads.
  void Drop();
  bool gave_up() const { return gave_up_; }

 private:
  enum class Stage : uint8_t { kAsked, kReading, kChecking };

  struct Job {
    PackedChunk chunk;
    PackTicket ticket;
    uint8_t* buffer;
    Stage stage;
    uint64_t headers_after;  // headers count that were posted after this many reads
    Clock::time_point asked;
    NixlPending pending;
  };

  bool Ask(NixlLink& link, NixlHeaderWatch& watch, Clock::time_point now);
  bool Advance(NixlLink& link, NixlHeaderWatch& watch, Job& job, int64_t& bytes_done);
  void Unpack(const NixlLink& link, const Job& job) const;
  void End(NixlLink& link, Job& job);
  bool StepLeft(NixlLink& link, bool start, int64_t& bytes_done);

  static constexpr size_t kJobs = 2;

  PackedChunks chunks_;
  const int64_t request_bytes_;
  const std::chrono::milliseconds patience_;
  bool exhausted_ = false;
  bool gave_up_ = false;
  std::deque<Job> jobs_;
  std::vector<PackTicket> finished_;  // to be told with the next message
  std::deque<PackedChunk> left_;      // to be read as they lie
  std::unique_ptr<NixlDirectPull> direct_;
  NixlPending direct_pending_;
};

}  // namespace state_handoff
