// The target side of one rectangle in normal form, as the checks look at it: a base, and a nest of axes.
//
// Each loop of more than one turn is an axis; so are the block column and the sub column of a table, wherever their
// values differ. In a nest every stride is at least the extent of all that lies inside it, so that no two ways through
// it meet in one byte.
#pragma once

#include <cstdint>
#include <vector>

#include "copy_program.h"

namespace state_handoff {

enum class Column : int8_t { kNone, kBlock, kSub };

struct Axis {
  int64_t stride;
  int64_t count;  // digits run from 0 to count - 1
  Column column;  // kNone: a loop, which takes every digit
};

// Rows `from … from + count - 1` of a table, seen from the target side.
struct RowRange {
  const Table* table;
  int64_t from;
  int64_t count;
  int64_t block_min;
  int64_t block_max;
  int64_t sub_min;
  int64_t sub_max;

  int64_t Digit(Column column, int64_t row) const {
    return column == Column::kBlock ? table->target[from + row] - block_min
                                    : (table->target_sub.empty() ? 0 : table->target_sub[from + row] - sub_min);
  }
};

struct Shape {
  size_t rectangle;
  int64_t region;
  int64_t base;    // address of the byte with all digits 0
  int64_t extent;  // no byte lies at or beyond base + extent
  int64_t fragment_bytes;
  std::vector<Axis> axes;  // strides descending
  const RowRange* rows;    // null: no table
};

}  // namespace state_handoff
