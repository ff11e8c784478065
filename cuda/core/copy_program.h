// The copy program as native code holds it: rectangles over registered regions, and block tables.
//
// The same value as lib/transfer/copy-program.ts, decoded once from flat arrays. Decoding refuses numbers that are no
// counts or sizes; whether the program is normal and stays inside its regions is copy_program_check.h's question.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace state_handoff {

inline constexpr int kLoopsMax = 5;
inline constexpr size_t kRectanglesMax = 65536;
inline constexpr size_t kTablesMax = 65536;
inline constexpr size_t kRowsMax = size_t{1} << 26;
// Regions are at most this large, so that every sum and difference of addresses is exact in a double too.
inline constexpr int64_t kRegionBytesMax = int64_t{1} << 52;

struct Loop {
  int64_t count;
  int64_t source_stride;
  int64_t target_stride;
};

struct Rectangle {
  int64_t source_region;
  int64_t target_region;
  int64_t table;  // -1: copied once
  int64_t table_from;
  int64_t table_count;
  int64_t source_offset;
  int64_t target_offset;
  int64_t fragment_bytes;
  int loop_count;
  std::array<Loop, kLoopsMax> loops;  // outermost first
};

struct Table {
  std::vector<int32_t> source;
  std::vector<int32_t> target;
  std::vector<int32_t> source_sub;  // empty: absent
  std::vector<int32_t> target_sub;
  int64_t source_block;
  int64_t target_block;
  int64_t source_sub_stride;
  int64_t target_sub_stride;

  int64_t SourceOffset(size_t row) const {
    return source[row] * source_block + (source_sub.empty() ? 0 : source_sub[row] * source_sub_stride);
  }
  int64_t TargetOffset(size_t row) const {
    return target[row] * target_block + (target_sub.empty() ? 0 : target_sub[row] * target_sub_stride);
  }
};

struct CopyProgram {
  std::vector<Rectangle> rectangles;
  std::vector<Table> tables;
};

// Doubles a rectangle: region, region, table, from, count, offset, offset, fragment, loops used, then 5 x 3.
inline constexpr size_t kRectangleValues = 9 + 3 * kLoopsMax;
// Doubles a table: rows, has sourceSub, has targetSub, sourceBlock, targetBlock, sourceSub, targetSub. Its rows follow
// in the int32 array column after column: source, target, sourceSub if any, targetSub if any.
inline constexpr size_t kTableValues = 7;

// The flat form of one request's programs; borrowed from the caller for the length of the call.
struct EncodedProgram {
  const double* rectangles;
  size_t rectangle_values;
  const double* tables;
  size_t table_values;
  const int32_t* rows;
  size_t row_values;
};

// Throws ARGUMENT_INVALID naming the field.
CopyProgram DecodeProgram(const EncodedProgram& encoded);

}  // namespace state_handoff
