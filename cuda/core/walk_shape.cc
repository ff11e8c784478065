#include "walk_shape.h"

#include <algorithm>

namespace state_handoff {

WalkShape::WalkShape(const CopyProgram& program, const Rectangle& rectangle)
    : source_offset(rectangle.source_offset),
      target_offset(rectangle.target_offset),
      fragment_bytes(rectangle.fragment_bytes) {
  if (rectangle.table >= 0) {
    table = &program.tables[static_cast<size_t>(rectangle.table)];
    table_from = rectangle.table_from;
  }
  bool rows_placed = table == nullptr;
  auto place_rows = [&]() {
    axes[static_cast<size_t>(axis_count++)] = WalkAxis{rectangle.table_count, 0, 0, true};
    rows_placed = true;
  };
  for (int i = 0; i < rectangle.loop_count; ++i) {
    const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
    if (loop.count == 1) continue;
    if (!rows_placed && loop.target_stride < table->target_block) place_rows();
    axes[static_cast<size_t>(axis_count++)] = WalkAxis{loop.count, loop.source_stride, loop.target_stride, false};
  }
  if (!rows_placed) place_rows();
  MergeDense();
}

void WalkShape::MergeDense() {
  while (axis_count > 0) {
    const WalkAxis& inner = axes[static_cast<size_t>(axis_count - 1)];
    if (inner.rows || inner.source_stride != fragment_bytes || inner.target_stride != fragment_bytes) break;
    fragment_bytes *= inner.count;
    --axis_count;
  }
  for (int i = axis_count - 2; i >= 0; --i) {
    const WalkAxis& outer = axes[static_cast<size_t>(i)];
    WalkAxis& inner = axes[static_cast<size_t>(i + 1)];
    if (outer.rows || inner.rows || outer.source_stride != inner.source_stride * inner.count ||
        outer.target_stride != inner.target_stride * inner.count) {
      continue;
    }
    inner.count *= outer.count;
    std::copy(axes.begin() + i + 1, axes.begin() + axis_count, axes.begin() + i);
    --axis_count;
  }
}

int64_t WalkShape::bytes() const {
  int64_t bytes = fragment_bytes;
  for (int i = 0; i < axis_count; ++i) bytes *= axes[static_cast<size_t>(i)].count;
  return bytes;
}

}  // namespace state_handoff
