#include "copy_plan.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>

#include "error_codes.h"
#include "walk_shape.h"

namespace state_handoff {

namespace {

constexpr int kWidthLog2Max = 4;

// A shape whose axes may be cut: `row_from` counts from the start of its table's rows.
struct Piece {
  WalkShape shape;
  int64_t row_from;
};

// The largest width, as a power of two, that everything added up to an address is a multiple of.
int WidthLog2(const WalkShape& shape, uint64_t source, uint64_t target) {
  uint64_t all = source | target | static_cast<uint64_t>(shape.fragment_bytes);
  for (int i = 0; i < shape.axis_count; ++i) {
    const WalkAxis& axis = shape.axes[static_cast<size_t>(i)];
    all |= static_cast<uint64_t>(axis.source_stride) | static_cast<uint64_t>(axis.target_stride);
    if (!axis.rows) continue;
    const Table& table = *shape.table;
    all |= static_cast<uint64_t>(table.source_block) | static_cast<uint64_t>(table.target_block);
    if (!table.source_sub.empty()) all |= static_cast<uint64_t>(table.source_sub_stride);
    if (!table.target_sub.empty()) all |= static_cast<uint64_t>(table.target_sub_stride);
  }
  return std::min(kWidthLog2Max, std::countr_zero(all));
}

// Two pieces that together copy what `piece` does, cut at its outermost axis, or inside its fragment when it has none.
Piece CutInTwo(Piece& piece) {
  Piece rest = piece;
  for (int i = 0; i < piece.shape.axis_count; ++i) {
    WalkAxis& axis = piece.shape.axes[static_cast<size_t>(i)];
    if (axis.count == 1) continue;
    const int64_t kept = axis.count / 2;
    rest.shape.axes[static_cast<size_t>(i)].count = axis.count - kept;
    axis.count = kept;
    if (axis.rows) {
      rest.row_from += kept;
    } else {
      rest.shape.source_offset += kept * axis.source_stride;
      rest.shape.target_offset += kept * axis.target_stride;
    }
    return rest;
  }
  const int64_t kept = std::max<int64_t>(piece.shape.fragment_bytes / 2 / 16 * 16, 1);
  rest.shape.fragment_bytes -= kept;
  rest.shape.source_offset += kept;
  rest.shape.target_offset += kept;
  piece.shape.fragment_bytes = kept;
  return rest;
}

DeviceWalk MakeWalk(const Piece& piece, uint64_t source, uint64_t target, int width_log2, uint32_t row_from) {
  const WalkShape& shape = piece.shape;
  DeviceWalk walk{};
  walk.source = source;
  walk.target = target;
  walk.vectors = static_cast<uint32_t>(shape.bytes() >> width_log2);
  walk.width_log2 = static_cast<uint32_t>(width_log2);
  walk.row_from = row_from;
  walk.axis_count = static_cast<uint32_t>(shape.axis_count);
  walk.fragment = MakeFastDivisor(static_cast<uint32_t>(shape.fragment_bytes >> width_log2));
  for (int i = 0; i < shape.axis_count; ++i) {
    const WalkAxis& axis = shape.axes[static_cast<size_t>(i)];
    walk.axes[i] = DeviceAxis{MakeFastDivisor(static_cast<uint32_t>(axis.count)), axis.rows ? 1u : 0u,
                              axis.source_stride, axis.target_stride};
  }
  return walk;
}

size_t Aligned(size_t bytes) { return (bytes + 15) / 16 * 16; }

}  // namespace

CopyPlan::CopyPlan(const CopyProgram& program, const std::vector<PlanRegion>& sources,
                   const std::vector<PlanRegion>& targets, const PlanLimits& limits)
    : program_(program) {
  static_assert(kWalkAxesMax == kLoopsMax + 1);
  std::vector<uint32_t> table_starts;
  for (const Table& table : program.tables) {
    table_starts.push_back(row_count_);
    row_count_ += static_cast<uint32_t>(table.source.size());
  }
  for (const Rectangle& rectangle : program.rectangles) {
    const uint64_t source_base = sources[static_cast<size_t>(rectangle.source_region)].address;
    const uint64_t target_base = targets[static_cast<size_t>(rectangle.target_region)].address;
    const uint32_t table_start = rectangle.table < 0 ? 0 : table_starts[static_cast<size_t>(rectangle.table)];
    std::deque<Piece> pieces{Piece{WalkShape(program, rectangle), rectangle.table < 0 ? 0 : rectangle.table_from}};
    while (!pieces.empty()) {
      Piece& piece = pieces.front();
      const uint64_t source = source_base + static_cast<uint64_t>(piece.shape.source_offset);
      const uint64_t target = target_base + static_cast<uint64_t>(piece.shape.target_offset);
      const auto row_from = static_cast<uint32_t>(table_start + piece.row_from);
      const int width_log2 = WidthLog2(piece.shape, source, target);
      if ((piece.shape.bytes() >> width_log2) > limits.walk_vectors) {
        Piece rest = CutInTwo(piece);
        pieces.insert(pieces.begin() + 1, std::move(rest));
        continue;
      }
      walks_.push_back(MakeWalk(piece, source, target, width_log2, row_from));
      first_tiles_.push_back(tiles_);
      const uint32_t tiles = (walks_.back().vectors + kTileVectors - 1) / kTileVectors;
      if (tiles > kWalkVectorsMax - tiles_) {
        throw NativeError(ErrorCode::kNATIVE_LIMIT,
                          "the program has more than 2^31 tiles of a GPU copy; begin it in several transfers");
      }
      tiles_ += tiles;
      bytes_ += piece.shape.bytes();
      pieces.pop_front();
    }
  }
  CutChunks(limits.chunk_bytes);
}

void CopyPlan::CutChunks(int64_t chunk_bytes) {
  PlanChunk chunk{0, 0, 0};
  for (const DeviceWalk& walk : walks_) {
    const int64_t width = int64_t{1} << walk.width_log2;
    const int64_t tile_bytes = kTileVectors * width;
    int64_t left = walk.vectors * width;
    while (left > 0) {
      const int64_t room = chunk_bytes - chunk.bytes;
      const int64_t fits = left <= room ? left : room / tile_bytes * tile_bytes;
      if (fits == 0 && chunk.tiles > 0) {
        chunks_.push_back(chunk);
        chunk = PlanChunk{chunk.first_tile + chunk.tiles, 0, 0};
        continue;
      }
      const int64_t taken = std::max(fits, std::min(left, tile_bytes));  // a chunk holds one tile at the least
      chunk.tiles += static_cast<uint32_t>((taken + tile_bytes - 1) / tile_bytes);
      chunk.bytes += taken;
      left -= taken;
    }
  }
  if (chunk.tiles > 0) chunks_.push_back(chunk);
}

size_t CopyPlan::image_bytes() const {
  return walks_.size() * sizeof(DeviceWalk) + Aligned(first_tiles_.size() * sizeof(uint32_t)) +
         row_count_ * sizeof(DeviceRow);
}

void CopyPlan::WriteImage(uint8_t* image) const {
  const auto put = [&image](const void* data, size_t bytes) {
    if (bytes > 0) std::memcpy(image, data, bytes);
    image += Aligned(bytes);
  };
  put(walks_.data(), walks_.size() * sizeof(DeviceWalk));
  put(first_tiles_.data(), first_tiles_.size() * sizeof(uint32_t));
  auto* row = reinterpret_cast<DeviceRow*>(image);
  for (const Table& table : program_.tables) {
    const size_t count = table.source.size();
    if (table.source_sub.empty() && table.target_sub.empty()) {
      const int32_t* source = table.source.data();
      const int32_t* target = table.target.data();
      const int64_t source_block = table.source_block;
      const int64_t target_block = table.target_block;
      for (size_t i = 0; i < count; ++i) row[i] = DeviceRow{source[i] * source_block, target[i] * target_block};
    } else {
      for (size_t i = 0; i < count; ++i) row[i] = DeviceRow{table.SourceOffset(i), table.TargetOffset(i)};
    }
    row += count;
  }
}

CopyLaunch CopyPlan::Launch(uint64_t address, const PlanChunk& chunk) const {
  const uint64_t first_tiles = address + walks_.size() * sizeof(DeviceWalk);
  const uint64_t rows = first_tiles + Aligned(first_tiles_.size() * sizeof(uint32_t));
  return CopyLaunch{reinterpret_cast<const DeviceWalk*>(address), reinterpret_cast<const uint32_t*>(first_tiles),
                    reinterpret_cast<const DeviceRow*>(rows), static_cast<uint32_t>(walks_.size()), chunk.first_tile};
}

}  // namespace state_handoff
