#include "nixl_direct_pull.h"

#include <algorithm>
#include <utility>

namespace state_handoff {

namespace {

struct Place {
  int64_t source;
  int64_t target;
};

Place PlaceOf(const Rectangle& rectangle, int64_t plane) {
  Place place{rectangle.source_offset, rectangle.target_offset};
  for (int i = rectangle.loop_count - 1; i >= 0; --i) {
    const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
    place.source += plane % loop.count * loop.source_stride;
    place.target += plane % loop.count * loop.target_stride;
    plane /= loop.count;
  }
  return place;
}

// Appends, or grows the last entry where both sides go on without a gap.
void Append(std::vector<NixlRange>& local, std::vector<NixlRange>& remote, const NixlRange& to, const NixlRange& from) {
  if (!local.empty() && local.back().address + local.back().bytes == to.address &&
      remote.back().address + remote.back().bytes == from.address) {
    local.back().bytes += to.bytes;
    remote.back().bytes += from.bytes;
    return;
  }
  local.push_back(to);
  remote.push_back(from);
}

}  // namespace

NixlDirectPull::NixlDirectPull(const CopyProgram& program, std::vector<size_t> rectangles, int64_t request_bytes,
                               NixlShare share)
    : program_(program), rectangles_(std::move(rectangles)), request_bytes_(request_bytes), share_(share) {
  Skip();
}

const Table* NixlDirectPull::table() const {
  const Rectangle& rectangle = program_.rectangles[rectangles_[next_]];
  return rectangle.table < 0 ? nullptr : &program_.tables[static_cast<size_t>(rectangle.table)];
}

void NixlDirectPull::Enter() {
  const Rectangle& rectangle = program_.rectangles[rectangles_[next_]];
  plane_count_ = 1;
  for (int i = 0; i < rectangle.loop_count; ++i) plane_count_ *= rectangle.loops[static_cast<size_t>(i)].count;
  row_count_ = rectangle.table < 0 ? 1 : rectangle.table_count;
  // A fragment larger than a read is cut, so that a cancel need not wait for all of it.
  part_count_ = (rectangle.fragment_bytes + request_bytes_ - 1) / request_bytes_;
  plane_ = row_ = part_ = 0;
  entered_ = true;
  planned_ = false;
}

void NixlDirectPull::Advance() {
  if (++part_ < part_count_) return;
  part_ = 0;
  if (++row_ < row_count_) return;
  row_ = 0;
  if (++plane_ < plane_count_) return;
  ++next_;
  entered_ = false;
  planes_.reset();
}

template <typename Visit>
int64_t NixlDirectPull::Walk(const Visit& visit) {
  if (!entered_) Enter();
  const size_t index = next_;
  const int64_t fragment_bytes = program_.rectangles[rectangles_[next_]].fragment_bytes;
  int64_t bytes = 0;
  for (size_t entries = 0; next_ == index && bytes < request_bytes_ && entries < kEntriesMax; ++entries) {
    const int64_t part_bytes = std::min(request_bytes_, fragment_bytes - part_ * request_bytes_);
    visit(part_bytes);
    bytes += part_bytes;
    Advance();
  }
  ++turn_;
  return bytes;
}

void NixlDirectPull::Skip() {
  while (!over() && !share_.Has(turn_)) Walk([](int64_t) {});
}

NixlPending NixlDirectPull::Next(NixlLink& link) {
  if (!entered_) Enter();
  const Rectangle& rectangle = program_.rectangles[rectangles_[next_]];
  const Table* rows = table();
  if (!planned_) planes_ = part_count_ == 1 ? link.PlanesOf(rectangle, rows) : nullptr;
  planned_ = true;
  const std::shared_ptr<const NixlPlanes> planes = planes_;
  const NixlRange& source = link.grant().regions[static_cast<size_t>(rectangle.source_region)];
  const NixlRange& target = link.targets()[static_cast<size_t>(rectangle.target_region)];
  std::vector<int> local;
  std::vector<int> remote;
  std::vector<NixlRange> local_ranges;
  std::vector<NixlRange> remote_ranges;
  Place place{0, 0};
  int64_t placed = -1;
  const int64_t bytes = Walk([&](int64_t part_bytes) {
    const auto row = static_cast<size_t>(rectangle.table_from + row_);
    if (planes != nullptr) {
      const int64_t to = rows == nullptr || rows->target_block == 0 ? 0 : rows->target[row];
      const int64_t from = rows == nullptr || rows->source_block == 0 ? 0 : rows->source[row];
      local.push_back(static_cast<int>(plane_ * planes->local_blocks + to));
      remote.push_back(static_cast<int>(plane_ * planes->remote_blocks + from));
      return;
    }
    if (placed != plane_) place = PlaceOf(rectangle, plane_);
    placed = plane_;
    const int64_t to = place.target + (rows == nullptr ? 0 : rows->TargetOffset(row)) + part_ * request_bytes_;
    const int64_t from = place.source + (rows == nullptr ? 0 : rows->SourceOffset(row)) + part_ * request_bytes_;
    const auto length = static_cast<uint64_t>(part_bytes);
    Append(local_ranges, remote_ranges, target.Part(static_cast<uint64_t>(to), length),
           source.Part(static_cast<uint64_t>(from), length));
  });
  Skip();
  return planes != nullptr ? link.Read(planes, local, remote, bytes) : link.Read(local_ranges, remote_ranges, bytes);
}

}  // namespace state_handoff
