#include "copy_program.h"

#include <cmath>
#include <string>

#include "error_codes.h"

namespace state_handoff {

namespace {

constexpr double kSafeIntegerMax = 9007199254740991.0;

std::string ShowNumber(double value) {
  if (std::isfinite(value) && value == std::floor(value) && std::fabs(value) <= kSafeIntegerMax) {
    return std::to_string(static_cast<int64_t>(value));
  }
  return std::to_string(value);
}

// Where a value stands; made into words only when it is refused.
struct Path {
  const char* list;
  size_t index;
  int loop = -1;

  std::string Text(const char* field) const {
    std::string text = std::string(list) + "[" + std::to_string(index) + "].";
    if (loop >= 0) text += "loops[" + std::to_string(loop) + "].";
    return text + field;
  }
};

int64_t Whole(double value, double least, const Path& path, const char* field) {
  if (!(value >= least && value <= kSafeIntegerMax && value == std::floor(value))) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, path.Text(field) + ": expected an integer of at least " +
                                                        ShowNumber(least) + ", got " + ShowNumber(value));
  }
  return static_cast<int64_t>(value);
}

[[noreturn]] void ThrowLength(const std::string& what, const std::string& expected, size_t got) {
  throw NativeError(ErrorCode::kARGUMENT_INVALID, what + ": expected " + expected + ", got " + std::to_string(got));
}

Rectangle DecodeRectangle(const double* values, Path path) {
  Rectangle rectangle{};
  rectangle.source_region = Whole(values[0], 0, path, "sourceRegion");
  rectangle.target_region = Whole(values[1], 0, path, "targetRegion");
  rectangle.table = Whole(values[2], -1, path, "table");
  if (rectangle.table >= 0) {
    rectangle.table_from = Whole(values[3], 0, path, "tableFrom");
    rectangle.table_count = Whole(values[4], 1, path, "tableCount");
  }
  rectangle.source_offset = Whole(values[5], 0, path, "sourceOffset");
  rectangle.target_offset = Whole(values[6], 0, path, "targetOffset");
  rectangle.fragment_bytes = Whole(values[7], 1, path, "fragmentBytes");
  const int64_t loops = Whole(values[8], 0, path, "loops.length");
  if (loops > kLoopsMax) ThrowLength(path.Text("loops"), "at most 5 loops", static_cast<size_t>(loops));
  rectangle.loop_count = static_cast<int>(loops);
  for (int i = 0; i < rectangle.loop_count; ++i) {
    path.loop = i;
    rectangle.loops[i].count = Whole(values[9 + 3 * i], 1, path, "count");
    rectangle.loops[i].source_stride = Whole(values[10 + 3 * i], 0, path, "sourceStride");
    rectangle.loops[i].target_stride = Whole(values[11 + 3 * i], 0, path, "targetStride");
  }
  return rectangle;
}

}  // namespace

CopyProgram DecodeProgram(const EncodedProgram& encoded) {
  if (encoded.rectangle_values % kRectangleValues != 0 ||
      encoded.rectangle_values / kRectangleValues > kRectanglesMax) {
    ThrowLength("rectangles", "24 values for each of at most 65536 rectangles", encoded.rectangle_values);
  }
  if (encoded.table_values % kTableValues != 0 || encoded.table_values / kTableValues > kTablesMax) {
    ThrowLength("tables", "7 values for each of at most 65536 tables", encoded.table_values);
  }
  if (encoded.row_values > kRowsMax) ThrowLength("tables", "at most 67108864 values in all rows", encoded.row_values);

  CopyProgram program;
  program.tables.reserve(encoded.table_values / kTableValues);
  size_t at = 0;
  for (size_t i = 0; i < encoded.table_values / kTableValues; ++i) {
    const double* head = encoded.tables + i * kTableValues;
    const Path path{"tables", i};
    const auto rows = static_cast<size_t>(Whole(head[0], 0, path, "source.length"));
    const bool has_source_sub = Whole(head[1], 0, path, "sourceSub") != 0;
    const bool has_target_sub = Whole(head[2], 0, path, "targetSub") != 0;
    const size_t columns = size_t{2} + has_source_sub + has_target_sub;
    if (rows > (encoded.row_values - at) / columns) {
      ThrowLength(path.Text("source"), "as many rows as were passed", rows);
    }
    auto column = [&]() {
      std::vector<int32_t> values(encoded.rows + at, encoded.rows + at + rows);
      at += rows;
      return values;
    };
    Table table{};
    table.source = column();
    table.target = column();
    if (has_source_sub) table.source_sub = column();
    if (has_target_sub) table.target_sub = column();
    table.source_block = Whole(head[3], 0, path, "strides.sourceBlock");
    table.target_block = Whole(head[4], 0, path, "strides.targetBlock");
    table.source_sub_stride = Whole(head[5], 0, path, "strides.sourceSub");
    table.target_sub_stride = Whole(head[6], 0, path, "strides.targetSub");
    program.tables.push_back(std::move(table));
  }
  if (at != encoded.row_values) {
    ThrowLength("tables", std::to_string(at) + " values in all rows", encoded.row_values);
  }

  const size_t count = encoded.rectangle_values / kRectangleValues;
  program.rectangles.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    program.rectangles.push_back(DecodeRectangle(encoded.rectangles + i * kRectangleValues, Path{"rectangles", i}));
  }
  return program;
}

}  // namespace state_handoff
