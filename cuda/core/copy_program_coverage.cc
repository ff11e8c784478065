#include "copy_program_coverage.h"

#include <algorithm>
#include <numeric>

namespace state_handoff {

Coverage::Coverage(const Shape& shape) : shape_(shape), rows_(shape.rows == nullptr ? 1 : shape.rows->count) {
  int64_t bytes = shape.fragment_bytes;
  inner_bytes_.resize(shape.axes.size());
  for (size_t i = shape.axes.size(); i-- > 0;) {
    inner_bytes_[i] = bytes;
    if (shape.axes[i].column == Column::kNone) bytes *= shape.axes[i].count;
  }
  std::vector<Column> columns;
  for (const Axis& axis : shape.axes) {
    if (axis.column != Column::kNone) columns.push_back(axis.column);
  }
  std::vector<int64_t> order(static_cast<size_t>(columns.empty() ? 0 : rows_));
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](int64_t left, int64_t right) {
    for (const Column column : columns) {
      const int64_t a = shape.rows->Digit(column, left);
      const int64_t b = shape.rows->Digit(column, right);
      if (a != b) return a < b;
    }
    return false;
  });
  for (const Column column : columns) {
    std::vector<int64_t>& digits = digits_.emplace_back();
    digits.reserve(order.size());
    for (const int64_t row : order) digits.push_back(shape.rows->Digit(column, row));
  }
}

int64_t Coverage::Below(int64_t address) const {
  int64_t left = address - shape_.base;  // how far into the part not yet settled
  int64_t first = 0;                     // rows whose columns so far are those of `left`
  int64_t last = rows_;
  int64_t count = 0;
  size_t column = 0;
  for (size_t i = 0; i < shape_.axes.size(); ++i) {
    if (left <= 0 || first == last) return count;
    const Axis& axis = shape_.axes[i];
    const int64_t digit = left / axis.stride;
    if (axis.column == Column::kNone) {
      const int64_t whole = std::min(digit, axis.count);
      count += whole * inner_bytes_[i] * (last - first);
      if (whole == axis.count) return count;
    } else {
      const std::vector<int64_t>& digits = digits_[column++];
      const auto begin = digits.begin() + first;
      const auto end = digits.begin() + last;
      const auto lower = std::lower_bound(begin, end, digit);
      const auto upper = std::upper_bound(lower, end, digit);
      count += (lower - begin) * inner_bytes_[i];
      last = first + (upper - begin);
      first += lower - begin;
    }
    left -= digit * axis.stride;
  }
  return count + std::clamp<int64_t>(left, 0, shape_.fragment_bytes) * (last - first);
}

}  // namespace state_handoff
