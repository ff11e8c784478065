#include "message_chunks.h"

#include <algorithm>
#include <string>

#include "error_codes.h"

namespace state_handoff {

namespace {

bool IsOnePiece(const Rectangle& rectangle) { return RowBytes(rectangle) == rectangle.fragment_bytes; }

int64_t Rows(const Rectangle& rectangle) { return rectangle.table < 0 ? 1 : rectangle.table_count; }

}  // namespace

MessageChunks::MessageChunks(const CopyProgram& program, int64_t staging_bytes)
    : program_(program), staging_bytes_(staging_bytes) {
  for (const Rectangle& rectangle : program.rectangles) {
    if (IsOnePiece(rectangle) || RowBytes(rectangle) <= staging_bytes) continue;
    throw NativeError(ErrorCode::kNATIVE_LIMIT, "a message of " + std::to_string(RowBytes(rectangle)) +
                                                    " bytes is gathered in one piece, and a chunk has " +
                                                    std::to_string(staging_bytes));
  }
}

bool MessageChunks::Next(MessageChunk& chunk) {
  chunk = MessageChunk{};
  while (rectangle_ < program_.rectangles.size() && chunk.messages.size() < kMessagesMax) {
    const Rectangle& rectangle = program_.rectangles[rectangle_];
    const int64_t bytes = RowBytes(rectangle);
    const bool staged = !IsOnePiece(rectangle);
    int64_t count = std::min(Rows(rectangle) - row_, static_cast<int64_t>(kMessagesMax - chunk.messages.size()));
    if (staged) count = std::min(count, (staging_bytes_ - chunk.staged.bytes) / bytes);
    if (count == 0 && row_ < Rows(rectangle)) break;
    for (int64_t i = 0; i < count; ++i) {
      Message message{staged, rectangle.source_region, rectangle.target_region, 0, 0, bytes};
      if (staged) {
        message.source_offset = message.target_offset = chunk.staged.bytes + i * bytes;
      } else {
        message.source_offset = rectangle.source_offset;
        message.target_offset = rectangle.target_offset;
        if (rectangle.table >= 0) {
          const Table& table = program_.tables[static_cast<size_t>(rectangle.table)];
          const auto row = static_cast<size_t>(rectangle.table_from + row_ + i);
          message.source_offset += table.SourceOffset(row);
          message.target_offset += table.TargetOffset(row);
        }
      }
      chunk.messages.push_back(message);
    }
    if (staged && count > 0) AppendPacked(chunk.staged, program_, rectangle, row_, count);
    chunk.bytes += count * bytes;
    row_ += count;
    if (row_ == Rows(rectangle)) {
      ++rectangle_;
      row_ = 0;
    }
  }
  return !chunk.messages.empty();
}

}  // namespace state_handoff
