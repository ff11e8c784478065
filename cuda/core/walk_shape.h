// One rectangle of a checked program as a nest: a fragment, and the axes over which it is repeated in the order of
// their target strides, with the rows of its table at their place among them.
//
// Loops that are dense on both sides have become part of the fragment, and loops that continue each other are one. Host
// threads and GPU kernels walk the same shape, so that both write in the same order.
#pragma once

#include <array>
#include <cstdint>

#include "copy_program.h"

namespace state_handoff {

struct WalkAxis {
  int64_t count;
  int64_t source_stride;  // 0 for rows
  int64_t target_stride;
  bool rows;
};

struct WalkShape {
  // The rectangle's own loops, merged.
  WalkShape(const CopyProgram& program, const Rectangle& rectangle);

  int64_t bytes() const;

  const Table* table = nullptr;  // null: copied once
  int64_t table_from = 0;
  int64_t source_offset;
  int64_t target_offset;
  int64_t fragment_bytes;
  int axis_count = 0;
  std::array<WalkAxis, kLoopsMax + 1> axes{};  // outermost first

 private:
  void MergeDense();
};

}  // namespace state_handoff
