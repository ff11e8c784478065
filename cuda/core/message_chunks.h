// A program cut into messages as the reference's NCCL backend has them (spec 7.4): one for each row of each rectangle,
// in that order, and groups of them that are posted together.
//
// A row of one contiguous piece is a message where it lies; any other is gathered into staging before and scattered
// from there after. Both ends cut alike. The program has been checked.
#pragma once

#include <cstdint>
#include <vector>

#include "packed_copy.h"

namespace state_handoff {

// One piece of one message each way.
struct Message {
  bool staged;
  int64_t source_region;  // these two for a message that lies in a region
  int64_t target_region;
  int64_t source_offset;  // in the region, or both in staging
  int64_t target_offset;
  int64_t bytes;
};

struct MessageChunk {
  PackedChunk staged;
  std::vector<Message> messages;
  int64_t bytes = 0;
};

class MessageChunks {
 public:
  // Messages posted together, at most: NCCL makes one launch of them, and its queues are finite.
  static constexpr size_t kMessagesMax = 256;

  // `program` outlives this object. Throws NATIVE_LIMIT for a row that is scattered and larger than staging.
  MessageChunks(const CopyProgram& program, int64_t staging_bytes);

  // False when there is none left.
  bool Next(MessageChunk& chunk);

 private:
  const CopyProgram& program_;
  const int64_t staging_bytes_;
  size_t rectangle_ = 0;
  int64_t row_ = 0;
};

}  // namespace state_handoff
