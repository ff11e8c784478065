// What an importer asks an exporter for over NIXL notifications: to gather scattered bytes into a slot of its staging,
// and to let go of slots that were read. And the header by which a slot says what it holds.
//
// Messages are hints from anybody who was granted the exporter's metadata: they are bounded and checked here, and the
// program in one again before an address is formed.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "../core/copy_program.h"

namespace state_handoff {

// Made by the importer, never twice; tells its slot from all others.
struct PackTicket {
  uint64_t high = 0;
  uint64_t low = 0;
  bool operator==(const PackTicket&) const = default;
};

// At the front of the exporter's staging, one a slot. The exporter clears `low` before it writes the slot anew and sets
// it last: a reader that finds its ticket before and after it read the slot has read what it asked for.
struct alignas(64) SlotHeader {
  std::atomic<uint64_t> low;
  std::atomic<uint64_t> high;
};
static_assert(sizeof(SlotHeader) == 64);

struct PackMessage {
  std::vector<PackTicket> read;  // slots that may be used again
  PackTicket ticket;             // of `program`
  std::optional<CopyProgram> program;
};

inline constexpr size_t kPackMessageBytesMax = 1 << 20;

std::string EncodePackMessage(const PackMessage& message);
// Nothing for a text that is none.
std::optional<PackMessage> DecodePackMessage(const std::string& text);

}  // namespace state_handoff
