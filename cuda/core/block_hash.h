// Prefix-chained block hashes (spec 3) with the SHA-256 of the OpenSSL that is already in the process.
//
// Any thread; nothing is shared but the functions found once. Tokens are checked here while they are widened, since a
// second pass over a long prompt would cost a tenth of the hashing.
#pragma once

#include <cstddef>
#include <cstdint>

namespace state_handoff {

constexpr size_t kDigestBytes = 32;

// OpenSSL's streaming interface; the context is opaque to us.
struct Sha256 {
  int (*init)(void* context);
  int (*update)(void* context, const void* data, size_t bytes);
  int (*final)(unsigned char* digest, void* context);
};

// The functions that the process exports, once they have given the right answer to a known message; null without.
const Sha256* FindSha256();

enum class TokenKind { kInt32, kInt64, kDouble };

struct TokenList {
  TokenKind kind;
  const void* data;
  size_t count;
};

// Hashes each complete block of `tokens` into `hashes` (count / block_size of them). `parent` is the digest before the
// first block, and afterwards that of the last. Throws ARGUMENT_INVALID naming `tokens[first_index + i]` for a double
// that is no safe integer; `parent` and `hashes` are then undefined.
void HashBlocks(const Sha256& sha256, const TokenList& tokens, size_t block_size, uint8_t parent[kDigestBytes],
                int64_t* hashes, size_t first_index = 0);

// What the chain costs at the least: hashes messages of `message_bytes` that lie ready one after another and start with
// room for the digest of the one before. For benchmarks.
void HashMessages(const Sha256& sha256, uint8_t* messages, size_t bytes, size_t message_bytes);

}  // namespace state_handoff
