// The messages that are hashed, byte for byte, through a SHA-256 that only writes down what it is given. This program
// links no OpenSSL, so it also shows what happens without.
#include "../../cuda/core/block_hash.h"

#include <cstring>

#include "check.h"

namespace state_handoff::test {

namespace {

std::vector<std::vector<uint8_t>>& Messages() {
  static std::vector<std::vector<uint8_t>> messages;
  return messages;
}

// The digest is the number of the message in every byte.
const Sha256 kRecorder{
    [](void*) {
      Messages().emplace_back();
      return 1;
    },
    [](void*, const void* data, size_t bytes) {
      const auto* from = static_cast<const uint8_t*>(data);
      Messages().back().insert(Messages().back().end(), from, from + bytes);
      return 1;
    },
    [](unsigned char* digest, void*) {
      std::memset(digest, static_cast<int>(Messages().size()), kDigestBytes);
      return 1;
    },
};

template <typename Token>
void CheckMessages(TokenKind kind, size_t block_size, size_t count) {
  Messages().clear();
  std::vector<Token> tokens(count);
  for (size_t i = 0; i < count; ++i) tokens[i] = static_cast<Token>(static_cast<int64_t>(i) - 3);
  std::vector<int64_t> hashes(count / block_size);
  uint8_t parent[kDigestBytes];
  std::memset(parent, 0xAB, sizeof(parent));
  HashBlocks(kRecorder, {kind, tokens.data(), count}, block_size, parent, hashes.data());
  CHECK_EQUAL(Messages().size(), hashes.size());
  for (size_t block = 0; block < hashes.size(); ++block) {
    std::vector<uint8_t> expected(kDigestBytes, block == 0 ? 0xAB : static_cast<uint8_t>(block));
    for (size_t i = 0; i < block_size; ++i) {
      const int64_t token = static_cast<int64_t>(block * block_size + i) - 3;
      const auto* bytes = reinterpret_cast<const uint8_t*>(&token);
      expected.insert(expected.end(), bytes, bytes + sizeof(token));
    }
    CHECK(Messages()[block] == expected);
    uint64_t raw;
    std::memset(&raw, static_cast<int>(block + 1), sizeof(raw));
    CHECK_EQUAL(hashes[block], static_cast<int64_t>(raw % 0x7FFFFFFFFFFFFFFFu) + 1);
  }
  CHECK_EQUAL(static_cast<size_t>(parent[31]), hashes.empty() ? size_t{0xAB} : hashes.size());
}

}  // namespace

TEST(block_messages_are_the_parent_and_the_tokens) {
  for (const size_t block_size : {size_t{1}, size_t{4}, size_t{511}, size_t{512}, size_t{513}, size_t{1500}}) {
    for (const size_t count : {size_t{0}, block_size - 1, block_size, block_size * 3 + 1}) {
      CheckMessages<int32_t>(TokenKind::kInt32, block_size, count);
      CheckMessages<int64_t>(TokenKind::kInt64, block_size, count);
      CheckMessages<double>(TokenKind::kDouble, block_size, count);
    }
  }
}

TEST(a_hash_is_at_least_1_and_at_most_the_largest_signed_number) {
  static uint64_t raw;
  Sha256 fixed = kRecorder;
  fixed.final = [](unsigned char* digest, void*) {
    std::memcpy(digest, &raw, sizeof(raw));
    return 1;
  };
  const int32_t token = 1;
  const auto hash_of = [&](uint64_t first_bytes) {
    raw = first_bytes;
    uint8_t parent[kDigestBytes] = {};
    int64_t hash = 0;
    HashBlocks(fixed, {TokenKind::kInt32, &token, 1}, 1, parent, &hash);
    return hash;
  };
  CHECK_EQUAL(hash_of(0), 1);
  CHECK_EQUAL(hash_of(0x7FFFFFFFFFFFFFFEu), 0x7FFFFFFFFFFFFFFF);
  CHECK_EQUAL(hash_of(0x7FFFFFFFFFFFFFFFu), 1);
  CHECK_EQUAL(hash_of(0xFFFFFFFFFFFFFFFFu), 2);
}

TEST(a_digest_that_fails_is_an_error) {
  const int32_t token = 1;
  int64_t hash = 0;
  uint8_t parent[kDigestBytes] = {};
  const auto code = [&](const Sha256& sha256) {
    return CodeOf([&] { HashBlocks(sha256, {TokenKind::kInt32, &token, 1}, 1, parent, &hash); });
  };
  Sha256 broken = kRecorder;
  broken.init = [](void*) { return 0; };
  CHECK_EQUAL(code(broken), "NATIVE_SYSTEM");
  broken = kRecorder;
  broken.update = [](void*, const void*, size_t) { return 0; };
  CHECK_EQUAL(code(broken), "NATIVE_SYSTEM");
  broken = kRecorder;
  broken.final = [](unsigned char*, void*) { return 0; };
  CHECK_EQUAL(code(broken), "NATIVE_SYSTEM");
}

TEST(a_process_without_openssl_is_found_out) { CHECK(FindSha256() == nullptr); }

}  // namespace state_handoff::test
