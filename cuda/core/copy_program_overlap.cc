#include "copy_program_overlap.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <unordered_set>

namespace state_handoff {

namespace {

int64_t FloorDivide(int64_t value, int64_t by) {
  const int64_t quotient = value / by;
  return quotient * by > value ? quotient - 1 : quotient;
}

int64_t CeilDivide(int64_t value, int64_t by) {
  const int64_t quotient = value / by;
  return quotient * by < value ? quotient + 1 : quotient;
}

// One rectangle's digits of a stride; count 1 when it has no axis of that stride.
struct Side {
  int64_t count = 1;
  Column column = Column::kNone;
};

struct Joint {
  int64_t stride;
  Side a;
  Side b;
  // Differences the walk has settled on.
  int64_t low = 0;
  int64_t high = 0;

  int64_t Least() const { return -(b.count - 1); }
  int64_t Most() const { return a.count - 1; }
  bool HasColumn() const { return a.column != Column::kNone || b.column != Column::kNone; }
};

class Walk {
 public:
  Walk(const Shape& a, const Shape& b, int64_t& budget)
      : a_(a), b_(b), budget_(budget), fragment_low_(-(b.fragment_bytes - 1)), fragment_high_(a.fragment_bytes - 1) {
    Merge();
    Fold();
    const size_t count = joints_.size();
    low_.assign(count + 1, fragment_low_);
    high_.assign(count + 1, fragment_high_);
    divisor_.assign(count + 1, 0);
    for (size_t i = count; i-- > 0;) {
      low_[i] = low_[i + 1] + joints_[i].Least() * joints_[i].stride;
      high_[i] = high_[i + 1] + joints_[i].Most() * joints_[i].stride;
      divisor_[i] = std::gcd(divisor_[i + 1], joints_[i].stride);
    }
  }

  Meeting Run() {
    const bool met = Visit(0, b_.base - a_.base);
    return exhausted_ ? Meeting::kUnproven : met ? Meeting::kMeet : Meeting::kApart;
  }

 private:
  // One joint for each stride of either side, the largest first.
  void Merge() {
    size_t i = 0;
    size_t j = 0;
    while (i < a_.axes.size() || j < b_.axes.size()) {
      Joint joint{};
      joint.stride = std::max(i < a_.axes.size() ? a_.axes[i].stride : 0, j < b_.axes.size() ? b_.axes[j].stride : 0);
      if (i < a_.axes.size() && a_.axes[i].stride == joint.stride) {
        joint.a = Side{a_.axes[i].count, a_.axes[i].column};
        ++i;
      }
      if (j < b_.axes.size() && b_.axes[j].stride == joint.stride) {
        joint.b = Side{b_.axes[j].count, b_.axes[j].column};
        ++j;
      }
      joints_.push_back(joint);
    }
  }

  // A loop whose stride is no longer than the run of differences reached inside it only makes that run longer.
  void Fold() {
    for (size_t i = joints_.size(); i-- > 0;) {
      const Joint& joint = joints_[i];
      if (joint.HasColumn() || joint.stride > fragment_high_ - fragment_low_ + 1) continue;
      fragment_low_ += joint.Least() * joint.stride;
      fragment_high_ += joint.Most() * joint.stride;
      joints_.erase(joints_.begin() + static_cast<std::ptrdiff_t>(i));
    }
  }

  bool Spend(int64_t steps) {
    budget_ -= steps;
    exhausted_ = exhausted_ || nodes_ > kPairStepsMax || budget_ < 0;
    return !exhausted_;
  }

  // Whether the joints from `level` on can make up `distance`.
  bool Visit(size_t level, int64_t distance) {
    ++nodes_;
    if (!Spend(1)) return false;
    if (distance < low_[level] || distance > high_[level]) return false;
    if (level == joints_.size()) return RowsExist();
    const int64_t divisor = divisor_[level];
    if (FloorDivide(distance - fragment_low_, divisor) * divisor < distance - fragment_high_) return false;

    Joint& joint = joints_[level];
    const int64_t first = std::max(joint.Least(), CeilDivide(distance - high_[level + 1], joint.stride));
    const int64_t last = std::min(joint.Most(), FloorDivide(distance - low_[level + 1], joint.stride));
    if (first > last) return false;
    const bool both_columns = joint.a.column != Column::kNone && joint.b.column != Column::kNone;
    if (level + 1 == joints_.size() && !both_columns) {  // inside is one unbroken run: all of these succeed
      joint.low = first;
      joint.high = last;
      return RowsExist();
    }
    for (int64_t difference = first; difference <= last; ++difference) {
      joint.low = joint.high = difference;
      if (Visit(level + 1, distance - difference * joint.stride)) return true;
      if (exhausted_) return false;
    }
    return false;
  }

  // Whether a row of each side has the digits that the settled differences ask for.
  bool RowsExist() {
    std::array<const Joint*, 2> shared{};
    size_t shared_count = 0;
    bool same_rows = a_.rows == b_.rows;
    for (const Joint& joint : joints_) {
      if (!joint.HasColumn()) continue;
      if (joint.a.column != Column::kNone && joint.b.column != Column::kNone) shared[shared_count++] = &joint;
      same_rows = same_rows && joint.a.column == joint.b.column && joint.low <= 0 && joint.high >= 0;
    }
    if (same_rows) return true;

    if (shared_count == 0) return AnyRow(a_, true) && AnyRow(b_, false);
    // Keys of the rows of b; a second shared column is folded in, as digits of it are below its count.
    const Joint& one = *shared[0];
    const Joint* two = shared_count == 2 ? shared[1] : nullptr;
    const int64_t base = two == nullptr ? 1 : two->b.count;
    std::unordered_set<int64_t> keys;
    if (!Spend(a_.rows->count + b_.rows->count)) return false;
    for (int64_t row = 0; row < b_.rows->count; ++row) {
      if (!Fits(b_, row, false)) continue;
      const int64_t high = b_.rows->Digit(one.b.column, row);
      keys.insert(high * base + (two == nullptr ? 0 : b_.rows->Digit(two->b.column, row)));
    }
    for (int64_t row = 0; row < a_.rows->count; ++row) {
      if (!Fits(a_, row, true)) continue;
      const int64_t high = a_.rows->Digit(one.a.column, row) - one.low;
      const int64_t low = two == nullptr ? 0 : a_.rows->Digit(two->a.column, row) - two->low;
      if (high < 0 || high >= one.b.count || low < 0 || low >= base) continue;
      if (keys.count(high * base + low) != 0) return true;
    }
    return false;
  }

  bool AnyRow(const Shape& shape, bool is_a) {
    if (shape.rows == nullptr) return true;
    if (!Spend(shape.rows->count)) return false;
    for (int64_t row = 0; row < shape.rows->count; ++row) {
      if (Fits(shape, row, is_a)) return true;
    }
    return false;
  }

  // Whether this row can keep to the differences of the columns that only its own side has.
  bool Fits(const Shape& shape, int64_t row, bool is_a) const {
    for (const Joint& joint : joints_) {
      const Side& own = is_a ? joint.a : joint.b;
      const Side& other = is_a ? joint.b : joint.a;
      if (own.column == Column::kNone || other.column != Column::kNone) continue;
      const int64_t digit = shape.rows->Digit(own.column, row);
      // The other side's digit runs over 0 … count - 1.
      const bool fits = is_a ? digit >= joint.low && digit - (other.count - 1) <= joint.high
                             : other.count - 1 - digit >= joint.low && -digit <= joint.high;
      if (!fits) return false;
    }
    return true;
  }

  const Shape& a_;
  const Shape& b_;
  int64_t& budget_;
  int64_t nodes_ = 0;
  bool exhausted_ = false;
  int64_t fragment_low_;
  int64_t fragment_high_;
  std::vector<Joint> joints_;
  std::vector<int64_t> low_;
  std::vector<int64_t> high_;
  std::vector<int64_t> divisor_;
};

}  // namespace

Meeting DecideMeeting(const Shape& a, const Shape& b, int64_t& budget) { return Walk(a, b, budget).Run(); }

}  // namespace state_handoff
