#include "copy_program_check.h"

#include <algorithm>
#include <bit>
#include <map>
#include <memory>
#include <string>
#include <tuple>

#include "copy_program_coverage.h"
#include "copy_program_overlap.h"
#include "error_codes.h"

namespace state_handoff {

namespace {

// Places that the rows of a table span, for each of them, up to which a bit a place is kept.
constexpr int64_t kDenseRows = 64;

using Wide = __int128;  // sums of products of two numbers below 2^53

std::string Name(size_t rectangle) { return "rectangles[" + std::to_string(rectangle) + "]"; }

struct Rows {
  RowRange range;
  Wide source_reach;  // the largest offset a row adds
  Wide target_reach;
  bool distinct_checked = false;
};

class Checker {
 public:
  Checker(const CopyProgram& program, std::span<const int64_t> source_bytes, std::span<const int64_t> target_bytes)
      : program_(program), source_bytes_(source_bytes), target_bytes_(target_bytes) {}

  void Run(std::span<const WantedRange> wanted) {
    CheckSizes(source_bytes_, "sourceBytes");
    CheckSizes(target_bytes_, "targetBytes");
    shapes_.reserve(program_.rectangles.size());
    for (size_t i = 0; i < program_.rectangles.size(); ++i) CheckRectangle(i);
    CheckPairs();
    CheckCoverage(wanted);
  }

 private:
  static void CheckSizes(std::span<const int64_t> sizes, const char* field) {
    for (size_t i = 0; i < sizes.size(); ++i) {
      if (sizes[i] < 0 || sizes[i] > kRegionBytesMax) {
        throw NativeError(ErrorCode::kARGUMENT_INVALID, std::string(field) + "[" + std::to_string(i) +
                                                            "]: expected a size of at most 2^52 bytes, got " +
                                                            std::to_string(sizes[i]));
      }
    }
  }

  void CheckRectangle(size_t index) {
    const Rectangle& rectangle = program_.rectangles[index];
    Rows* rows = rectangle.table < 0 ? nullptr : &FindRows(index);
    const std::string name = Name(index);
    CheckRange(name + ".sourceRegion", rectangle.source_region, source_bytes_, Reach(rectangle, rows, true));
    CheckRange(name + ".targetRegion", rectangle.target_region, target_bytes_, Reach(rectangle, rows, false));
    shapes_.push_back(Nest(index, rows));
    if (rows != nullptr && !rows->distinct_checked) {
      CheckDistinct(index, rows->range);
      rows->distinct_checked = true;
    }
  }

  Rows& FindRows(size_t index) {
    const Rectangle& rectangle = program_.rectangles[index];
    const auto key = std::make_tuple(rectangle.table, rectangle.table_from, rectangle.table_count);
    std::unique_ptr<Rows>& found = rows_[key];
    if (found == nullptr) found = std::make_unique<Rows>(MakeRows(index));
    return *found;
  }

  Rows MakeRows(size_t index) const {
    const Rectangle& rectangle = program_.rectangles[index];
    if (rectangle.table >= static_cast<int64_t>(program_.tables.size())) {
      throw NativeError(ErrorCode::kPROGRAM_OUT_OF_RANGE, Name(index) + ".table: expected an index below " +
                                                              std::to_string(program_.tables.size()) + ", got " +
                                                              std::to_string(rectangle.table));
    }
    const Table& table = program_.tables[static_cast<size_t>(rectangle.table)];
    const auto length = static_cast<int64_t>(table.source.size());
    if (rectangle.table_from > length || rectangle.table_count > length - rectangle.table_from) {
      throw NativeError(ErrorCode::kPROGRAM_OUT_OF_RANGE,
                        Name(index) + ".tableFrom: expected rows inside the table's " + std::to_string(length) +
                            ", got " + std::to_string(rectangle.table_count) + " from row " +
                            std::to_string(rectangle.table_from));
    }
    Rows rows{};
    RowRange& range = rows.range;
    range = RowRange{&table, rectangle.table_from, rectangle.table_count, INT32_MAX, 0, INT32_MAX, 0};
    // Columns one after the other: these loops are what a large program's check costs.
    const Extremes source = ExtremesOf(table.source, rectangle);
    const Extremes target = ExtremesOf(table.target, rectangle);
    const Extremes source_sub = ExtremesOf(table.source_sub, rectangle);
    const Extremes target_sub = ExtremesOf(table.target_sub, rectangle);
    if (source.least < 0 || target.least < 0 || source_sub.least < 0 || target_sub.least < 0) {
      RefuseNegative(rectangle, table);
    }
    range.block_min = target.least;
    range.block_max = target.most;
    range.sub_min = target_sub.least;
    range.sub_max = target_sub.most;
    rows.source_reach =
        RowReach(rectangle, table.source, source, table.source_block, table.source_sub, table.source_sub_stride);
    rows.target_reach =
        RowReach(rectangle, table.target, target, table.target_block, table.target_sub, table.target_sub_stride);
    return rows;
  }

  struct Extremes {
    int32_t least;
    int32_t most;
  };

  // Of the rectangle's rows; all 0 for a column that is absent.
  static Extremes ExtremesOf(const std::vector<int32_t>& column, const Rectangle& rectangle) {
    if (column.empty()) return Extremes{0, 0};
    const int32_t* from = column.data() + rectangle.table_from;
    Extremes found{INT32_MAX, INT32_MIN};
    for (int64_t i = 0; i < rectangle.table_count; ++i) {
      found.least = std::min(found.least, from[i]);
      found.most = std::max(found.most, from[i]);
    }
    return found;
  }

  // The largest offset that a row adds; no id is negative.
  static Wide RowReach(const Rectangle& rectangle, const std::vector<int32_t>& blocks, const Extremes& extremes,
                       int64_t block_stride, const std::vector<int32_t>& subs, int64_t sub_stride) {
    if (subs.empty()) return Wide{extremes.most} * block_stride;
    Wide reach = 0;
    for (int64_t row = rectangle.table_from; row < rectangle.table_from + rectangle.table_count; ++row) {
      const auto at = static_cast<size_t>(row);
      reach = std::max(reach, Wide{blocks[at]} * block_stride + Wide{subs[at]} * sub_stride);
    }
    return reach;
  }

  [[noreturn]] static void RefuseNegative(const Rectangle& rectangle, const Table& table) {
    int64_t row = rectangle.table_from;
    const auto has_negative = [&](size_t at) {
      return table.source[at] < 0 || table.target[at] < 0 || (!table.source_sub.empty() && table.source_sub[at] < 0) ||
             (!table.target_sub.empty() && table.target_sub[at] < 0);
    };
    while (!has_negative(static_cast<size_t>(row))) ++row;
    throw NativeError(ErrorCode::kPROGRAM_OUT_OF_RANGE, "tables[" + std::to_string(rectangle.table) +
                                                            "]: expected ids of at least 0, got a negative " +
                                                            "one in row " + std::to_string(row));
  }

  // One past the last byte the rectangle touches in its region.
  static Wide Reach(const Rectangle& rectangle, const Rows* rows, bool source) {
    Wide reach = Wide{source ? rectangle.source_offset : rectangle.target_offset} + rectangle.fragment_bytes;
    for (int i = 0; i < rectangle.loop_count; ++i) {
      const Loop& loop = rectangle.loops[i];
      reach += Wide{loop.count - 1} * (source ? loop.source_stride : loop.target_stride);
    }
    if (rows != nullptr) reach += source ? rows->source_reach : rows->target_reach;
    return reach;
  }

  static void CheckRange(const std::string& field, int64_t region, std::span<const int64_t> sizes, Wide reach) {
    if (region >= static_cast<int64_t>(sizes.size())) {
      throw NativeError(
          ErrorCode::kPROGRAM_OUT_OF_RANGE,
          field + ": expected an index below " + std::to_string(sizes.size()) + ", got " + std::to_string(region));
    }
    if (reach > sizes[static_cast<size_t>(region)]) {
      const int64_t shown = reach > kRegionBytesMax ? kRegionBytesMax : static_cast<int64_t>(reach);
      throw NativeError(ErrorCode::kPROGRAM_OUT_OF_RANGE, field + ": expected bytes inside the region's " +
                                                              std::to_string(sizes[static_cast<size_t>(region)]) +
                                                              ", got an end at " + std::to_string(shown) +
                                                              (reach > kRegionBytesMax ? " or beyond" : ""));
    }
  }

  // The rectangle's axes in order, if they are a nest. Its bytes lie inside the region by now, so sums are small.
  Shape Nest(size_t index, const Rows* rows) const {
    const Rectangle& rectangle = program_.rectangles[index];
    Shape shape{index, rectangle.target_region, rectangle.target_offset, 0, rectangle.fragment_bytes, {}, nullptr};
    for (int i = 0; i < rectangle.loop_count; ++i) {
      const Loop& loop = rectangle.loops[i];
      if (loop.count == 1) continue;
      if (!shape.axes.empty() && loop.target_stride > shape.axes.back().stride) {
        throw NativeError(ErrorCode::kPROGRAM_NOT_NORMAL,
                          Name(index) + ".loops[" + std::to_string(i) +
                              "]: expected target strides from the largest to the smallest, got " +
                              std::to_string(loop.target_stride) + " after " +
                              std::to_string(shape.axes.back().stride));
      }
      shape.axes.push_back(Axis{loop.target_stride, loop.count, Column::kNone});
    }
    if (rows != nullptr) {
      const RowRange& range = rows->range;
      shape.rows = &range;
      shape.base += range.block_min * range.table->target_block + range.sub_min * range.table->target_sub_stride;
      if (range.block_max > range.block_min) {
        shape.axes.push_back(Axis{range.table->target_block, range.block_max - range.block_min + 1, Column::kBlock});
      }
      if (range.sub_max > range.sub_min) {
        shape.axes.push_back(Axis{range.table->target_sub_stride, range.sub_max - range.sub_min + 1, Column::kSub});
      }
      std::stable_sort(shape.axes.begin(), shape.axes.end(),
                       [](const Axis& left, const Axis& right) { return left.stride > right.stride; });
    }
    // The axes' ranges together can reach beyond the region, where no single row does.
    Wide extent = rectangle.fragment_bytes;
    for (size_t i = shape.axes.size(); i-- > 0;) {
      if (shape.axes[i].stride < extent) {
        throw NativeError(
            ErrorCode::kPROGRAM_NOT_NORMAL,
            Name(index) + ": expected every target stride to be at least the extent of what lies inside " +
                "it, got a stride of " + std::to_string(shape.axes[i].stride) + " around " +
                (extent > kRegionBytesMax ? "more" : std::to_string(static_cast<int64_t>(extent))) + " bytes");
      }
      extent += Wide{shape.axes[i].count - 1} * shape.axes[i].stride;
    }
    if (extent > kRegionBytesMax) {
      throw NativeError(ErrorCode::kPROGRAM_NOT_NORMAL, Name(index) + ": expected an extent of at most 2^52 bytes");
    }
    shape.extent = static_cast<int64_t>(extent);
    return shape;
  }

  void CheckDistinct(size_t index, const RowRange& range) const {
    const int64_t subs = range.sub_max - range.sub_min + 1;
    const int64_t span = (range.block_max - range.block_min + 1) * subs;
    const auto key_of = [&](int64_t row) {
      return range.Digit(Column::kBlock, row) * subs + range.Digit(Column::kSub, row);
    };
    if (span <= range.count * kDenseRows) {  // a bit for each place is cheaper than sorting
      if (CountPlaces(range, span, key_of) == range.count) return;
      std::vector<bool> seen(static_cast<size_t>(span));
      for (int64_t row = 0; row < range.count; ++row) {
        const int64_t key = key_of(row);
        if (seen[static_cast<size_t>(key)]) RefuseTwice(index, range, key / subs);
        seen[static_cast<size_t>(key)] = true;
      }
      return;
    }
    std::vector<int64_t> keys;
    keys.reserve(static_cast<size_t>(range.count));
    for (int64_t row = 0; row < range.count; ++row) keys.push_back(key_of(row));
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end()) RefuseTwice(index, range, *twice / subs);
  }

  // How many different places the rows write to.
  template <typename KeyOf>
  static int64_t CountPlaces(const RowRange& range, int64_t span, const KeyOf& key_of) {
    std::vector<uint64_t> places(static_cast<size_t>(span / 64 + 1));
    const auto mark = [&places](auto key) {
      places[static_cast<size_t>(key) / 64] |= uint64_t{1} << (static_cast<size_t>(key) % 64);
    };
    if (range.table->target_sub.empty()) {
      const int32_t* target = range.table->target.data() + range.from;
      for (int64_t row = 0; row < range.count; ++row) mark(target[row] - range.block_min);
    } else {
      for (int64_t row = 0; row < range.count; ++row) mark(key_of(row));
    }
    int64_t count = 0;
    for (const uint64_t word : places) count += std::popcount(word);
    return count;
  }

  [[noreturn]] void RefuseTwice(size_t index, const RowRange& range, int64_t digit) const {
    throw NativeError(ErrorCode::kPROGRAM_OVERLAP, "tables[" + std::to_string(program_.rectangles[index].table) +
                                                       "]: expected each target once in " + "the rows of " +
                                                       Name(index) + ", got block " +
                                                       std::to_string(digit + range.block_min) + " twice");
  }

  void CheckPairs() {
    std::vector<const Shape*> order;
    order.reserve(shapes_.size());
    for (const Shape& shape : shapes_) order.push_back(&shape);
    std::stable_sort(order.begin(), order.end(), [](const Shape* left, const Shape* right) {
      return std::tie(left->region, left->base) < std::tie(right->region, right->base);
    });
    int64_t budget = kProgramStepsMax;
    for (size_t i = 0; i < order.size(); ++i) {
      const Shape& a = *order[i];
      for (size_t j = i + 1; j < order.size(); ++j) {
        const Shape& b = *order[j];
        if (b.region != a.region || b.base >= a.base + a.extent) break;
        const Meeting meeting = DecideMeeting(a, b, budget);
        if (meeting == Meeting::kApart) continue;
        const size_t first = std::min(a.rectangle, b.rectangle);
        const size_t second = std::max(a.rectangle, b.rectangle);
        if (meeting == Meeting::kMeet) {
          throw NativeError(ErrorCode::kPROGRAM_OVERLAP, Name(second) + " writes target bytes that " + Name(first) +
                                                             " writes too; every byte may be written once");
        }
        throw NativeError(ErrorCode::kPROGRAM_NOT_NORMAL, Name(second) + " and " + Name(first) +
                                                              " interleave in a way that cannot be decided in " +
                                                              "bounded steps; give both the strides of one layout");
      }
    }
  }

  void CheckCoverage(std::span<const WantedRange> wanted) const {
    std::vector<Coverage> coverages;
    if (!wanted.empty()) {
      coverages.reserve(shapes_.size());
      for (const Shape& shape : shapes_) coverages.emplace_back(shape);
    }
    for (size_t i = 0; i < wanted.size(); ++i) {
      const WantedRange& range = wanted[i];
      const std::string name = "wanted[" + std::to_string(i) + "]";
      if (range.region < 0 || range.region >= static_cast<int64_t>(target_bytes_.size()) || range.offset < 0 ||
          range.bytes < 0 || range.offset > target_bytes_[static_cast<size_t>(range.region)] ||
          range.bytes > target_bytes_[static_cast<size_t>(range.region)] - range.offset) {
        throw NativeError(ErrorCode::kARGUMENT_INVALID,
                          name + ": expected bytes inside a target region, got " + std::to_string(range.bytes) +
                              " at " + std::to_string(range.offset) + " of region " + std::to_string(range.region));
      }
      int64_t written = 0;
      for (size_t k = 0; k < shapes_.size(); ++k) {
        if (shapes_[k].region != range.region) continue;
        written += coverages[k].Below(range.offset + range.bytes) - coverages[k].Below(range.offset);
      }
      if (written != range.bytes) {
        throw NativeError(ErrorCode::kPROGRAM_INCOMPLETE, name + ": expected all " + std::to_string(range.bytes) +
                                                              " bytes to be written, got " + std::to_string(written));
      }
    }
  }

  const CopyProgram& program_;
  std::span<const int64_t> source_bytes_;
  std::span<const int64_t> target_bytes_;
  std::map<std::tuple<int64_t, int64_t, int64_t>, std::unique_ptr<Rows>> rows_;
  std::vector<Shape> shapes_;
};

}  // namespace

void CheckProgram(const CopyProgram& program, std::span<const int64_t> source_bytes,
                  std::span<const int64_t> target_bytes, std::span<const WantedRange> wanted) {
  Checker(program, source_bytes, target_bytes).Run(wanted);
}

int64_t ProgramBytes(const CopyProgram& program) {
  int64_t bytes = 0;
  for (const Rectangle& rectangle : program.rectangles) {
    int64_t part = rectangle.fragment_bytes * (rectangle.table < 0 ? 1 : rectangle.table_count);
    for (int i = 0; i < rectangle.loop_count; ++i) part *= rectangle.loops[i].count;
    bytes += part;
  }
  return bytes;
}

}  // namespace state_handoff
