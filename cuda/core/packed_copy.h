// A program cut into chunks that travel packed: gathered into one contiguous buffer at the source, moved as one piece,
// scattered at the target.
//
// Both ends of a transfer cut alike: the cut follows from fragment sizes, loop counts and numbers of rows, and from
// nothing that only one end knows. The program has been checked.
#pragma once

#include <cstdint>
#include <vector>

#include "copy_program.h"

namespace state_handoff {

// Three programs that do the same for one chunk. Staging is region 0 of the side that it stands on.
struct PackedChunk {
  CopyProgram pack;    // source regions to staging
  CopyProgram unpack;  // staging to target regions
  CopyProgram direct;  // source regions to target regions
  int64_t bytes = 0;
};

// Bytes of one row of a rectangle.
int64_t RowBytes(const Rectangle& rectangle);
// Adds rows `from` on of a rectangle of `program` to the programs of a chunk, in staging behind what the chunk has.
void AppendPacked(PackedChunk& chunk, const CopyProgram& program, const Rectangle& rectangle, int64_t from,
                  int64_t count);

class PackedChunks {
 public:
  // Rows of one chunk, at most: what describes a chunk stays small.
  static constexpr int64_t kRowsMax = 16384;

  // `program` outlives this object. `rectangles`: which of them, in this order.
  PackedChunks(const CopyProgram& program, const std::vector<size_t>& rectangles, int64_t chunk_bytes);

  // The next chunk, of at most `chunk_bytes`; false when there is none.
  bool Next(PackedChunk& chunk);

  int64_t bytes() const { return bytes_; }

 private:
  // A part of a rectangle of which each row fits into a chunk.
  struct Piece {
    Rectangle rectangle;  // offsets and loops of the part
    int64_t row_bytes;
    int64_t rows;
  };

  void Cut(Rectangle rectangle);

  const CopyProgram& program_;
  const int64_t chunk_bytes_;
  std::vector<Piece> pieces_;
  int64_t bytes_ = 0;
  size_t piece_ = 0;
  int64_t row_ = 0;
};

}  // namespace state_handoff
