// How many bytes a rectangle in normal form writes below an address: counted digit by digit, never one by one.
#pragma once

#include <cstdint>
#include <vector>

#include "copy_program_shape.h"

namespace state_handoff {

class Coverage {
 public:
  explicit Coverage(const Shape& shape);

  // Bytes written at addresses below `address`.
  int64_t Below(int64_t address) const;

 private:
  const Shape& shape_;
  std::vector<int64_t> inner_bytes_;  // for each axis: bytes of one digit of it, for one row
  // The digits of each row in the order of the axes that are columns, sorted by the first, then the second.
  std::vector<std::vector<int64_t>> digits_;
  int64_t rows_;
};

}  // namespace state_handoff
