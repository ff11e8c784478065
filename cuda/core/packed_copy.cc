#include "packed_copy.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace state_handoff {

namespace {

// The loops with the strides of a buffer in which all turns lie one behind the other.
std::array<int64_t, kLoopsMax> DenseStrides(const Rectangle& rectangle) {
  std::array<int64_t, kLoopsMax> strides{};
  int64_t extent = rectangle.fragment_bytes;
  for (int i = rectangle.loop_count - 1; i >= 0; --i) {
    strides[static_cast<size_t>(i)] = extent;
    extent *= rectangle.loops[static_cast<size_t>(i)].count;
  }
  return strides;
}

std::vector<int32_t> Part(const std::vector<int32_t>& column, int64_t from, int64_t count) {
  if (column.empty()) return {};
  return std::vector<int32_t>(column.begin() + from, column.begin() + from + count);
}

}  // namespace

int64_t RowBytes(const Rectangle& rectangle) {
  int64_t bytes = rectangle.fragment_bytes;
  for (int i = 0; i < rectangle.loop_count; ++i) bytes *= rectangle.loops[static_cast<size_t>(i)].count;
  return bytes;
}

PackedChunks::PackedChunks(const CopyProgram& program, const std::vector<size_t>& rectangles, int64_t chunk_bytes)
    : program_(program), chunk_bytes_(chunk_bytes) {
  for (const size_t index : rectangles) Cut(program.rectangles[index]);
}

void PackedChunks::Cut(Rectangle rectangle) {
  const int64_t row_bytes = RowBytes(rectangle);
  if (row_bytes <= chunk_bytes_) {
    const int64_t rows = rectangle.table < 0 ? 1 : rectangle.table_count;
    bytes_ += row_bytes * rows;
    pieces_.push_back(Piece{rectangle, row_bytes, rows});
    return;
  }
  if (rectangle.loop_count == 0) {
    const int64_t whole = rectangle.fragment_bytes;
    for (int64_t at = 0; at < whole; at += chunk_bytes_) {
      Rectangle part = rectangle;
      part.fragment_bytes = std::min(chunk_bytes_, whole - at);
      part.source_offset += at;
      part.target_offset += at;
      Cut(part);
    }
    return;
  }
  const Loop outer = rectangle.loops[0];
  const int64_t inner_bytes = row_bytes / outer.count;
  const int64_t turns = std::max<int64_t>(1, chunk_bytes_ / inner_bytes);
  for (int64_t at = 0; at < outer.count; at += turns) {
    Rectangle part = rectangle;
    part.source_offset += at * outer.source_stride;
    part.target_offset += at * outer.target_stride;
    part.loops[0].count = std::min(turns, outer.count - at);
    if (part.loops[0].count == 1) {
      std::copy(part.loops.begin() + 1, part.loops.end(), part.loops.begin());
      --part.loop_count;
    }
    Cut(part);
  }
}

bool PackedChunks::Next(PackedChunk& chunk) {
  chunk = PackedChunk{};
  int64_t rows = 0;
  while (piece_ < pieces_.size() && rows < kRowsMax) {
    const Piece& piece = pieces_[piece_];
    const int64_t fit = (chunk_bytes_ - chunk.bytes) / piece.row_bytes;
    const int64_t count = std::min({fit, piece.rows - row_, kRowsMax - rows});
    if (count == 0) break;
    AppendPacked(chunk, program_, piece.rectangle, row_, count);
    rows += count;
    row_ += count;
    if (row_ == piece.rows) {
      ++piece_;
      row_ = 0;
    }
  }
  return chunk.bytes > 0;
}

void AppendPacked(PackedChunk& chunk, const CopyProgram& program, const Rectangle& rectangle, int64_t from,
                  int64_t count) {
  Rectangle part = rectangle;
  const int64_t row_bytes = RowBytes(rectangle);
  const std::array<int64_t, kLoopsMax> dense = DenseStrides(part);
  if (part.table >= 0) {
    const Table& table = program.tables[static_cast<size_t>(part.table)];
    const int64_t first = part.table_from + from;
    part.table = static_cast<int64_t>(chunk.direct.tables.size());
    part.table_from = 0;
    part.table_count = count;
    std::vector<int32_t> places(static_cast<size_t>(count));
    std::iota(places.begin(), places.end(), 0);
    Table direct{Part(table.source, first, count),
                 Part(table.target, first, count),
                 Part(table.source_sub, first, count),
                 Part(table.target_sub, first, count),
                 table.source_block,
                 table.target_block,
                 table.source_sub_stride,
                 table.target_sub_stride};
    Table pack = direct;
    pack.target = places;
    pack.target_sub.clear();
    pack.target_block = row_bytes;
    pack.target_sub_stride = 0;
    Table unpack = direct;
    unpack.source = std::move(places);
    unpack.source_sub.clear();
    unpack.source_block = row_bytes;
    unpack.source_sub_stride = 0;
    chunk.direct.tables.push_back(std::move(direct));
    chunk.pack.tables.push_back(std::move(pack));
    chunk.unpack.tables.push_back(std::move(unpack));
  }
  chunk.direct.rectangles.push_back(part);
  Rectangle pack = part;
  pack.target_region = 0;
  pack.target_offset = chunk.bytes;
  Rectangle unpack = part;
  unpack.source_region = 0;
  unpack.source_offset = chunk.bytes;
  for (size_t i = 0; i < static_cast<size_t>(part.loop_count); ++i) {
    pack.loops[i].target_stride = dense[i];
    unpack.loops[i].source_stride = dense[i];
  }
  chunk.pack.rectangles.push_back(pack);
  chunk.unpack.rectangles.push_back(unpack);
  chunk.bytes += count * row_bytes;
}

}  // namespace state_handoff
