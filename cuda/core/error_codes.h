// The codes native code may raise: exactly those marked `native` in lib/errors.ts (a test compares the two).
#pragma once

#define STATE_HANDOFF_ERROR_CODES(X) \
  X(ARGUMENT_INVALID)                \
  X(CLOSED)                          \
  X(HANDOFF_EXPIRED)                 \
  X(TRANSFER_FAILED)                 \
  X(TRANSFER_DEADLINE)               \
  X(TRANSFER_CANCELLED)              \
  X(PEER_UNREACHABLE)                \
  X(PEER_LOST)                       \
  X(PEER_REFUSED)                    \
  X(PROGRAM_NOT_NORMAL)              \
  X(PROGRAM_OUT_OF_RANGE)            \
  X(PROGRAM_OVERLAP)                 \
  X(PROGRAM_INCOMPLETE)              \
  X(PREFIX_CACHING_REQUIRED)         \
  X(BLOCK_OVER_RELEASED)             \
  X(BLOCK_HASH_CONFLICT)             \
  X(BLOCK_GRAPH_CYCLE)               \
  X(SLOT_OUT_OF_RANGE)               \
  X(SLOT_POOL_OVERFLOW)              \
  X(SLOT_NOT_BOUND)                  \
  X(TRANSPORT_UNAVAILABLE)           \
  X(NATIVE_SYSTEM)                   \
  X(NATIVE_LIMIT)                    \
  X(INVARIANT)

#include <stdexcept>
#include <string>

namespace state_handoff {

enum class ErrorCode {
#define STATE_HANDOFF_ENUMERATOR(name) k##name,
  STATE_HANDOFF_ERROR_CODES(STATE_HANDOFF_ENUMERATOR)
#undef STATE_HANDOFF_ENUMERATOR
};

inline const char* ErrorCodeName(ErrorCode code) {
  switch (code) {
#define STATE_HANDOFF_CASE(name) \
  case ErrorCode::k##name:       \
    return #name;
    STATE_HANDOFF_ERROR_CODES(STATE_HANDOFF_CASE)
#undef STATE_HANDOFF_CASE
  }
  return "INVARIANT";
}

// What core code throws; the binding turns it into a JavaScript error with `code` and `message`.
class NativeError : public std::runtime_error {
 public:
  NativeError(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace state_handoff
