// Widening of tokens and the chain of digests; block_hash.h says what it promises.
#include "block_hash.h"

#include <dlfcn.h>

#include <bit>
#include <cstring>
#include <string>

#include "error_codes.h"
#include "number_text.h"

namespace state_handoff {

static_assert(std::endian::native == std::endian::little, "tokens are hashed as little-endian integers");

namespace {

// OpenSSL's SHA256_CTX has 112 bytes, BoringSSL's the same.
struct alignas(64) Context {
  unsigned char bytes[512];
};

// One piece of a message: as long as a usual block, short enough for the first-level cache.
constexpr size_t kPieceTokens = 512;

const Sha256* Load() {
  static Sha256 found;
  found.init = reinterpret_cast<decltype(found.init)>(dlsym(RTLD_DEFAULT, "SHA256_Init"));
  found.update = reinterpret_cast<decltype(found.update)>(dlsym(RTLD_DEFAULT, "SHA256_Update"));
  found.final = reinterpret_cast<decltype(found.final)>(dlsym(RTLD_DEFAULT, "SHA256_Final"));
  if (found.init == nullptr || found.update == nullptr || found.final == nullptr) return nullptr;
  // A stranger's function of the same name shows here.
  static constexpr unsigned char kDigestOfAbc[kDigestBytes] = {
      0xba, 0x78, 0x16, 0xbf, 0x8f, 0x01, 0xcf, 0xea, 0x41, 0x41, 0x40, 0xde, 0x5d, 0xae, 0x22, 0x23,
      0xb0, 0x03, 0x61, 0xa3, 0x96, 0x17, 0x7a, 0x9c, 0xb4, 0x10, 0xff, 0x61, 0xf2, 0x00, 0x15, 0xad};
  Context context;
  unsigned char digest[kDigestBytes];
  if (found.init(&context) != 1 || found.update(&context, "abc", 3) != 1 || found.final(digest, &context) != 1) {
    return nullptr;
  }
  return std::memcmp(digest, kDigestOfAbc, kDigestBytes) == 0 ? &found : nullptr;
}

void Require(int ok) {
  if (ok != 1) throw NativeError(ErrorCode::kNATIVE_SYSTEM, "hashing failed because SHA-256 refused the message");
}

// Groups of a fixed size, which the compiler turns into vector instructions at its usual level.
constexpr size_t kGroup = 8;

template <typename Token>
void Widen(const Token* tokens, size_t count, int64_t* out, size_t) {
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    for (size_t j = 0; j < kGroup; ++j) out[i + j] = tokens[i + j];
  }
  for (; i < count; ++i) out[i] = tokens[i];
}

// One token that may be anything.
int64_t WidenChecked(double token, size_t index) {
  constexpr double kSafe = 9007199254740991.0;
  // The range goes first: converting what does not fit is undefined.
  if (token >= -kSafe && token <= kSafe) {
    const auto whole = static_cast<int64_t>(token);
    if (static_cast<double>(whole) == token) return whole;
  }
  throw NativeError(ErrorCode::kARGUMENT_INVALID,
                    "tokens[" + std::to_string(index) + "]: expected a safe integer, got " + NumberText(token));
}

// Two lanes: every 64-bit processor has these, and the compiler uses wider ones where it may.
using Doubles = double __attribute__((vector_size(16)));
using Wholes = uint64_t __attribute__((vector_size(16)));  // wraps where the tokens are none

void Widen(const double* tokens, size_t count, int64_t* out, size_t first_index) {
  // Added to this, a whole number of at most 51 bits stands in the low bits of the sum, and comes out again unchanged.
  constexpr double kShift = 6755399441055744.0;  // 1.5 * 2^52
  constexpr auto kShiftBits = std::bit_cast<uint64_t>(kShift);
  constexpr uint64_t kSignAndExponent = ~((uint64_t{1} << 52) - 1);
  constexpr size_t kLanes = 2;
  size_t i = 0;
  for (; i + kGroup <= count; i += kGroup) {
    Wholes odd = {};
    for (size_t j = 0; j < kGroup; j += kLanes) {
      Doubles token;
      std::memcpy(&token, tokens + i + j, sizeof(token));
      const Doubles shifted = token + kShift;
      const Wholes bits = reinterpret_cast<Wholes>(shifted);
      const Wholes whole = bits - kShiftBits;
      std::memcpy(out + i + j, &whole, sizeof(whole));
      odd |= reinterpret_cast<Wholes>((shifted - kShift) - token);  // what was lost: not zero for a fraction or NaN
      odd |= (bits ^ kShiftBits) & kSignAndExponent;                // not zero for more bits than these
    }
    if ((odd[0] | odd[1]) == 0) continue;
    for (size_t j = 0; j < kGroup; ++j) out[i + j] = WidenChecked(tokens[i + j], first_index + i + j);
  }
  for (; i < count; ++i) out[i] = WidenChecked(tokens[i], first_index + i);
}

template <typename Token>
void HashChain(const Sha256& sha256, const Token* tokens, size_t count, size_t block_size, uint8_t* parent,
               int64_t* hashes, size_t first_index) {
  struct alignas(64) {
    uint8_t padding[32];  // so that the tokens, not the digest, start a cache line
    uint8_t parent[kDigestBytes];
    int64_t tokens[kPieceTokens];
  } message;
  Context context;
  std::memcpy(message.parent, parent, kDigestBytes);
  for (size_t block = 0; block < count / block_size; ++block) {
    const size_t start = block * block_size;
    Require(sha256.init(&context));
    for (size_t done = 0; done < block_size;) {
      const size_t piece = block_size - done < kPieceTokens ? block_size - done : kPieceTokens;
      Widen(tokens + start + done, piece, message.tokens, first_index + start + done);
      // The digest goes along with the first tokens, in one message without a copy.
      if (done == 0) {
        Require(sha256.update(&context, message.parent, kDigestBytes + piece * sizeof(int64_t)));
      } else {
        Require(sha256.update(&context, message.tokens, piece * sizeof(int64_t)));
      }
      done += piece;
    }
    Require(sha256.final(message.parent, &context));
    uint64_t raw;
    std::memcpy(&raw, message.parent, sizeof(raw));
    hashes[block] = static_cast<int64_t>(raw % 0x7FFFFFFFFFFFFFFFu) + 1;
  }
  std::memcpy(parent, message.parent, kDigestBytes);
}

}  // namespace

const Sha256* FindSha256() {
  static const Sha256* const functions = Load();
  return functions;
}

void HashBlocks(const Sha256& sha256, const TokenList& tokens, size_t block_size, uint8_t parent[kDigestBytes],
                int64_t* hashes, size_t first_index) {
  const auto hash = [&](const auto* data) {
    HashChain(sha256, data, tokens.count, block_size, parent, hashes, first_index);
  };
  switch (tokens.kind) {
    case TokenKind::kInt32:
      return hash(static_cast<const int32_t*>(tokens.data));
    case TokenKind::kInt64:
      return hash(static_cast<const int64_t*>(tokens.data));
    case TokenKind::kDouble:
      return hash(static_cast<const double*>(tokens.data));
  }
}

void HashMessages(const Sha256& sha256, uint8_t* messages, size_t bytes, size_t message_bytes) {
  Context context;
  for (size_t from = 0; from + message_bytes <= bytes; from += message_bytes) {
    Require(sha256.init(&context));
    Require(sha256.update(&context, messages + from, message_bytes));
    uint8_t digest[kDigestBytes];
    Require(sha256.final(digest, &context));
    if (from + message_bytes * 2 <= bytes) std::memcpy(messages + from + message_bytes, digest, kDigestBytes);
  }
}

}  // namespace state_handoff
