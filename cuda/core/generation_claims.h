// The generations that a ticket claims, held against the live ones of its source: before a transfer reads, and again
// after it has read. What differs was given to somebody else, and nothing of it may be delivered.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace state_handoff {

// Generations of a source when it was pinned, as its ticket claims them.
struct ClaimedGenerations {
  std::vector<int32_t> ids;
  std::vector<uint64_t> expected;
};

// The live generations of a peer, mapped read-only.
struct GenerationTable {
  const std::atomic<uint64_t>* values = nullptr;  // null: the peer granted none
  size_t count = 0;
};

// Throws ARGUMENT_INVALID for an id that the table does not have.
void CheckClaimedIds(const ClaimedGenerations& claimed, const GenerationTable& table, const std::string& field);

// Loads with `order`; throws HANDOFF_EXPIRED at the first difference, which was noticed `when` ("before", "while") it
// was copied. The ids were checked.
void CompareClaimed(const ClaimedGenerations& claimed, const GenerationTable& table, const char* field,
                    std::memory_order order, const char* when);

}  // namespace state_handoff
