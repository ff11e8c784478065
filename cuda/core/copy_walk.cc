#include "copy_walk.h"

#include <algorithm>
#include <cstring>

#include "streamed_copy.h"

namespace state_handoff {

CopyWalk::CopyWalk(const CopyProgram& program, const Rectangle& rectangle, const CopySource& source,
                   const CopyTarget& target, int64_t among)
    : shape_(program, rectangle),
      source_(source),
      target_(target),
      bytes_(shape_.bytes()),
      quantum_bytes_(shape_.fragment_bytes > kQuantumBytes
                         ? kQuantumBytes
                         : kQuantumBytes / shape_.fragment_bytes * shape_.fragment_bytes),
      streamed_(IsStreamed(among)) {}

bool CopyWalk::IsStreamed(int64_t among) const {
  if (std::max(bytes_, among) < kStreamedBytesMin || shape_.fragment_bytes >= kStreamedPieceMax || !CanStream())
    return false;
  uint64_t all = reinterpret_cast<uintptr_t>(target_.data) | static_cast<uint64_t>(shape_.target_offset) |
                 static_cast<uint64_t>(shape_.fragment_bytes);
  for (int i = 0; i < shape_.axis_count; ++i) {
    const WalkAxis& axis = shape_.axes[static_cast<size_t>(i)];
    all |= static_cast<uint64_t>(axis.target_stride);
    if (!axis.rows) continue;
    all |= static_cast<uint64_t>(shape_.table->target_block);
    if (!shape_.table->target_sub.empty()) all |= static_cast<uint64_t>(shape_.table->target_sub_stride);
  }
  return all % kStreamedLine == 0;
}

CopyWalk::Place CopyWalk::At(const std::array<int64_t, kLoopsMax + 1>& digits) const {
  Place place{shape_.source_offset, shape_.target_offset};
  for (int i = 0; i < shape_.axis_count; ++i) {
    const WalkAxis& axis = shape_.axes[static_cast<size_t>(i)];
    const int64_t digit = digits[static_cast<size_t>(i)];
    if (axis.rows) {
      place.source += shape_.table->SourceOffset(static_cast<size_t>(shape_.table_from + digit));
      place.target += shape_.table->TargetOffset(static_cast<size_t>(shape_.table_from + digit));
    } else {
      place.source += digit * axis.source_stride;
      place.target += digit * axis.target_stride;
    }
  }
  return place;
}

void CopyWalk::Copy(int64_t begin, int64_t end) const {
  CopyBytes(begin, end);
  if (streamed_) FenceStreamed();
}

void CopyWalk::CopyPieces(Place place, int64_t count, const WalkAxis& axis) const {
  if (streamed_) {
    StreamPieces(target_.data + place.target, source_.data + place.source, shape_.fragment_bytes, count,
                 axis.target_stride, axis.source_stride);
    return;
  }
  for (int64_t i = 0; i < count; ++i) {
    std::memcpy(target_.data + place.target, source_.data + place.source, static_cast<size_t>(shape_.fragment_bytes));
    place.source += axis.source_stride;
    place.target += axis.target_stride;
  }
}

void CopyWalk::CopyBytes(int64_t begin, int64_t end) const {
  std::array<int64_t, kLoopsMax + 1> digits{};
  int64_t index = begin / shape_.fragment_bytes;
  int64_t within = begin - index * shape_.fragment_bytes;
  for (int i = shape_.axis_count - 1; i >= 0; --i) {
    const int64_t count = shape_.axes[static_cast<size_t>(i)].count;
    digits[static_cast<size_t>(i)] = index % count;
    index /= count;
  }
  const int inner = shape_.axis_count - 1;
  for (int64_t left = end - begin; left > 0;) {
    const Place place = At(digits);
    if (within > 0 || left < shape_.fragment_bytes || inner < 0) {  // a part of one fragment, or the only one
      const int64_t bytes = std::min(shape_.fragment_bytes - within, left);
      std::memcpy(target_.data + place.target + within, source_.data + place.source + within,
                  static_cast<size_t>(bytes));
      left -= bytes;
      within = 0;
      if (inner < 0) return;
      ++digits[static_cast<size_t>(inner)];
    } else {
      const WalkAxis& axis = shape_.axes[static_cast<size_t>(inner)];
      int64_t& digit = digits[static_cast<size_t>(inner)];
      const int64_t run = std::min(axis.count - digit, left / shape_.fragment_bytes);
      left -= run * shape_.fragment_bytes;
      if (axis.rows) {
        for (const int64_t stop = digit + run; digit < stop; ++digit) {
          CopyPieces(At(digits), 1, axis);
        }
      } else {
        CopyPieces(place, run, axis);
        digit += run;
      }
    }
    for (int i = inner; i > 0 && digits[static_cast<size_t>(i)] == shape_.axes[static_cast<size_t>(i)].count; --i) {
      digits[static_cast<size_t>(i)] = 0;
      ++digits[static_cast<size_t>(i - 1)];
    }
  }
}

}  // namespace state_handoff
