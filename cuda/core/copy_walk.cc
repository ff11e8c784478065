#include "copy_walk.h"

#include <algorithm>
#include <cstring>

namespace state_handoff {

CopyWalk::CopyWalk(const CopyProgram& program, const Rectangle& rectangle, const CopySource& source,
                   const CopyTarget& target)
    : source_(source),
      target_(target),
      source_offset_(rectangle.source_offset),
      target_offset_(rectangle.target_offset),
      fragment_bytes_(rectangle.fragment_bytes) {
  if (rectangle.table >= 0) {
    table_ = &program.tables[static_cast<size_t>(rectangle.table)];
    table_from_ = rectangle.table_from;
  }
  bool rows_placed = table_ == nullptr;
  auto place_rows = [&]() {
    axes_[static_cast<size_t>(axis_count_++)] = Axis{rectangle.table_count, 0, 0, true};
    rows_placed = true;
  };
  for (int i = 0; i < rectangle.loop_count; ++i) {
    const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
    if (loop.count == 1) continue;
    if (!rows_placed && loop.target_stride < table_->target_block) place_rows();
    axes_[static_cast<size_t>(axis_count_++)] = Axis{loop.count, loop.source_stride, loop.target_stride, false};
  }
  if (!rows_placed) place_rows();
  MergeDense();

  bytes_ = fragment_bytes_;
  for (int i = 0; i < axis_count_; ++i) bytes_ *= axes_[static_cast<size_t>(i)].count;
  quantum_bytes_ = fragment_bytes_ > kQuantumBytes ? kQuantumBytes : kQuantumBytes / fragment_bytes_ * fragment_bytes_;
}

void CopyWalk::MergeDense() {
  while (axis_count_ > 0) {
    const Axis& inner = axes_[static_cast<size_t>(axis_count_ - 1)];
    if (inner.rows || inner.source_stride != fragment_bytes_ || inner.target_stride != fragment_bytes_) break;
    fragment_bytes_ *= inner.count;
    --axis_count_;
  }
  for (int i = axis_count_ - 2; i >= 0; --i) {
    const Axis& outer = axes_[static_cast<size_t>(i)];
    Axis& inner = axes_[static_cast<size_t>(i + 1)];
    if (outer.rows || inner.rows || outer.source_stride != inner.source_stride * inner.count ||
        outer.target_stride != inner.target_stride * inner.count) {
      continue;
    }
    inner.count *= outer.count;
    std::copy(axes_.begin() + i + 1, axes_.begin() + axis_count_, axes_.begin() + i);
    --axis_count_;
  }
}

CopyWalk::Place CopyWalk::At(const std::array<int64_t, kLoopsMax + 1>& digits) const {
  Place place{source_offset_, target_offset_};
  for (int i = 0; i < axis_count_; ++i) {
    const Axis& axis = axes_[static_cast<size_t>(i)];
    const int64_t digit = digits[static_cast<size_t>(i)];
    if (axis.rows) {
      place.source += table_->SourceOffset(static_cast<size_t>(table_from_ + digit));
      place.target += table_->TargetOffset(static_cast<size_t>(table_from_ + digit));
    } else {
      place.source += digit * axis.source_stride;
      place.target += digit * axis.target_stride;
    }
  }
  return place;
}

void CopyWalk::Copy(int64_t begin, int64_t end) const {
  std::array<int64_t, kLoopsMax + 1> digits{};
  int64_t index = begin / fragment_bytes_;
  int64_t within = begin - index * fragment_bytes_;
  for (int i = axis_count_ - 1; i >= 0; --i) {
    const int64_t count = axes_[static_cast<size_t>(i)].count;
    digits[static_cast<size_t>(i)] = index % count;
    index /= count;
  }
  const auto copy = [this](int64_t source, int64_t target, int64_t bytes) {
    std::memcpy(target_.data + target, source_.data + source, static_cast<size_t>(bytes));
  };
  const int inner = axis_count_ - 1;
  for (int64_t left = end - begin; left > 0;) {
    Place place = At(digits);
    if (within > 0 || left < fragment_bytes_ || inner < 0) {  // a part of one fragment, or the only one
      const int64_t bytes = std::min(fragment_bytes_ - within, left);
      copy(place.source + within, place.target + within, bytes);
      left -= bytes;
      within = 0;
      if (inner < 0) return;
      ++digits[static_cast<size_t>(inner)];
    } else {
      const Axis& axis = axes_[static_cast<size_t>(inner)];
      int64_t& digit = digits[static_cast<size_t>(inner)];
      const int64_t run = std::min(axis.count - digit, left / fragment_bytes_);
      left -= run * fragment_bytes_;
      if (axis.rows) {
        for (const int64_t stop = digit + run; digit < stop; ++digit) {
          place = At(digits);
          copy(place.source, place.target, fragment_bytes_);
        }
      } else {
        for (int64_t i = 0; i < run; ++i) {
          copy(place.source, place.target, fragment_bytes_);
          place.source += axis.source_stride;
          place.target += axis.target_stride;
        }
        digit += run;
      }
    }
    for (int i = inner; i > 0 && digits[static_cast<size_t>(i)] == axes_[static_cast<size_t>(i)].count; --i) {
      digits[static_cast<size_t>(i)] = 0;
      ++digits[static_cast<size_t>(i - 1)];
    }
  }
}

}  // namespace state_handoff
