// One rectangle of a checked program, ready to be copied: its bytes in one fixed order, any part of which can be copied
// on its own.
//
// Loops that are dense on both sides have become part of the fragment; the others are walked in the order of their
// target strides, with the rows of the table at their place among them.
#pragma once

#include <array>
#include <cstdint>

#include "copy_program.h"

namespace state_handoff {

struct CopySource {
  const uint8_t* data;
  size_t bytes;
};

struct CopyTarget {
  uint8_t* data;
  size_t bytes;
};

class CopyWalk {
 public:
  // Bytes a thread copies before it looks at the cancel flag again. As much as the kernel maps with one fault: filling
  // page tables ahead of a copy was measured and gains nothing on memory that is there already.
  static constexpr int64_t kQuantumBytes = 64 << 10;

  // `program` outlives this object and has been checked against these very sizes.
  CopyWalk(const CopyProgram& program, const Rectangle& rectangle, const CopySource& source, const CopyTarget& target);

  int64_t bytes() const { return bytes_; }
  // Whole fragments, or a part of one that is larger; at most kQuantumBytes.
  int64_t quantum_bytes() const { return quantum_bytes_; }

  // Copies bytes [begin, end) of the walk's order. Any thread.
  void Copy(int64_t begin, int64_t end) const;

 private:
  struct Axis {
    int64_t count;
    int64_t source_stride;
    int64_t target_stride;
    bool rows;
  };
  struct Place {
    int64_t source;
    int64_t target;
  };

  void MergeDense();
  Place At(const std::array<int64_t, kLoopsMax + 1>& digits) const;

  const Table* table_ = nullptr;
  int64_t table_from_ = 0;
  CopySource source_;
  CopyTarget target_;
  int64_t source_offset_;
  int64_t target_offset_;
  int64_t fragment_bytes_;
  int axis_count_ = 0;
  std::array<Axis, kLoopsMax + 1> axes_;  // outermost first
  int64_t bytes_;
  int64_t quantum_bytes_;
};

}  // namespace state_handoff
