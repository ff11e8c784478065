#include "generation_claims.h"

#include "error_codes.h"

namespace state_handoff {

void CheckClaimedIds(const ClaimedGenerations& claimed, const GenerationTable& table, const std::string& field) {
  if (!claimed.ids.empty() && table.values == nullptr) {
    throw NativeError(
        ErrorCode::kARGUMENT_INVALID,
        field + ": expected none for a peer that granted no generations, got " + std::to_string(claimed.ids.size()));
  }
  for (size_t i = 0; i < claimed.ids.size(); ++i) {
    if (static_cast<size_t>(claimed.ids[i]) < table.count) continue;  // a negative id is a huge size_t
    throw NativeError(ErrorCode::kARGUMENT_INVALID, field + "[" + std::to_string(i) + "]: expected an id below " +
                                                        std::to_string(table.count) + ", got " +
                                                        std::to_string(claimed.ids[i]));
  }
}

void CompareClaimed(const ClaimedGenerations& claimed, const GenerationTable& table, const char* field,
                    std::memory_order order, const char* when) {
  for (size_t i = 0; i < claimed.ids.size(); ++i) {
    const uint64_t now = table.values[claimed.ids[i]].load(order);
    if (now == claimed.expected[i]) continue;
    throw NativeError(ErrorCode::kHANDOFF_EXPIRED, std::string("the source let go of what this handoff reads ") + when +
                                                       " it was copied (" + field + "[" + std::to_string(i) + "], id " +
                                                       std::to_string(claimed.ids[i]) + ", generation " +
                                                       std::to_string(claimed.expected[i]) + ", now " +
                                                       std::to_string(now) + "); compute the prompt again");
  }
}

}  // namespace state_handoff
