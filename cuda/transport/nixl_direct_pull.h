// Rectangles of one transfer, read as they lie: cut into reads of bounded size in plane-major order, over prepared
// lists wherever a geometry allows some. On the transport's thread.
#pragma once

#include <vector>

#include "nixl_link.h"

namespace state_handoff {

// Which of a transfer's reads one of its readers makes: every `count`th, from `index` on.
struct NixlShare {
  int64_t index = 0;
  int64_t count = 1;
  bool Has(int64_t turn) const { return turn % count == index; }
};

class NixlDirectPull {
 public:
  // `program` has been checked against the link's regions and outlives this object.
  NixlDirectPull(const CopyProgram& program, std::vector<size_t> rectangles, int64_t request_bytes,
                 NixlShare share = {});

  bool over() const { return next_ == rectangles_.size(); }
  // The next read, not yet posted. Throws PEER_REFUSED, PEER_LOST.
  NixlPending Next(NixlLink& link);

 private:
  // Entries of one read: post and poll stay short, and memory for their indices small.
  static constexpr size_t kEntriesMax = 8192;

  // Walks over the reads of others, so that what comes next is this one's, or nothing.
  void Skip();
  // Calls `visit(part_bytes)` for every entry of the next read.
  template <typename Visit>
  int64_t Walk(const Visit& visit);
  void Enter();
  void Advance();
  const Table* table() const;

  const CopyProgram& program_;
  const std::vector<size_t> rectangles_;
  const int64_t request_bytes_;
  const NixlShare share_;
  int64_t turn_ = 0;  // which of all readers' reads comes next
  size_t next_ = 0;
  bool entered_ = false;
  bool planned_ = false;
  std::shared_ptr<const NixlPlanes> planes_;
  int64_t plane_count_ = 0;
  int64_t row_count_ = 0;
  int64_t part_count_ = 0;
  int64_t plane_ = 0;
  int64_t row_ = 0;
  int64_t part_ = 0;
};

}  // namespace state_handoff
