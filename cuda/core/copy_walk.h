// One rectangle of a checked program, ready to be copied: its bytes in the one fixed order of its shape, any part of
// which can be copied on its own.
#pragma once

#include <array>
#include <cstdint>

#include "copy_program.h"
#include "walk_shape.h"

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
  // A walk of so many bytes or among them, in pieces shorter than so many, is written past the cache.
  static constexpr int64_t kStreamedBytesMin = 16 << 20;
  static constexpr int64_t kStreamedPieceMax = 4 << 10;

  // `program` outlives this object and has been checked against these very sizes. `among`: bytes of all that this walk
  // is a part of and that is copied without a pause, where it is a part.
  CopyWalk(const CopyProgram& program, const Rectangle& rectangle, const CopySource& source, const CopyTarget& target,
           int64_t among = 0);

  int64_t bytes() const { return bytes_; }
  // Whole fragments, or a part of one that is larger; at most kQuantumBytes.
  int64_t quantum_bytes() const { return quantum_bytes_; }

  bool streamed() const { return streamed_; }

  // Copies bytes [begin, end) of the walk's order. Any thread. They are there for whoever synchronises with it,
  // streamed or not.
  void Copy(int64_t begin, int64_t end) const;

 private:
  struct Place {
    int64_t source;
    int64_t target;
  };

  bool IsStreamed(int64_t among) const;
  void CopyBytes(int64_t begin, int64_t end) const;
  // Whole fragments along one axis.
  void CopyPieces(Place place, int64_t count, const WalkAxis& axis) const;
  Place At(const std::array<int64_t, kLoopsMax + 1>& digits) const;

  const WalkShape shape_;
  CopySource source_;
  CopyTarget target_;
  int64_t bytes_;
  int64_t quantum_bytes_;
  bool streamed_;
};

}  // namespace state_handoff
