#include "host_plain_copy.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>

#include "../core/thread_pool.h"

namespace state_handoff {

namespace {

constexpr int64_t kChunkBytes = 512 << 10;

// Lets threads take chunks 0 ... count - 1 and returns the nanoseconds until the last is done.
template <typename Copy>
int64_t TimeChunks(size_t count, size_t threads, const Copy& copy) {
  std::atomic<size_t> next{0};
  const auto started = std::chrono::steady_clock::now();
  ThreadPool pool;
  pool.Start(threads, "handoff-plain", [&] {
    for (size_t chunk = next.fetch_add(1); chunk < count; chunk = next.fetch_add(1)) copy(chunk);
  });
  pool.Join();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - started).count();
}

template <int64_t kBytes>
int64_t TimeHalfHeads(const HalfHeads& heads, size_t threads) {
  constexpr int64_t kChunkTokens = kChunkBytes / kBytes;
  const int64_t tokens = static_cast<int64_t>(heads.source_blocks.size()) * HalfHeads::kTokens;
  const auto chunks = static_cast<size_t>((tokens + kChunkTokens - 1) / kChunkTokens);
  return TimeChunks(chunks, threads, [&](size_t chunk) {
    int64_t at = static_cast<int64_t>(chunk) * kChunkTokens;
    const int64_t end = std::min(at + kChunkTokens, tokens);
    while (at < end) {
      const auto row = static_cast<size_t>(at / HalfHeads::kTokens);
      const int64_t token = at % HalfHeads::kTokens;
      const int64_t count = std::min(HalfHeads::kTokens - token, end - at);
      const uint8_t* source = heads.source + (heads.source_blocks[row] * HalfHeads::kTokens + token) * 2 * kBytes;
      uint8_t* target = heads.target + (heads.target_blocks[row] * HalfHeads::kTokens + token) * kBytes;
      for (int64_t i = 0; i < count; ++i) std::memcpy(target + i * kBytes, source + i * 2 * kBytes, kBytes);
      at += count;
    }
  });
}

using HalfHeadsLoop = int64_t (*)(const HalfHeads&, size_t);

HalfHeadsLoop LoopFor(int64_t bytes) {
  switch (bytes) {
    case 64:
      return TimeHalfHeads<64>;
    case 256:
      return TimeHalfHeads<256>;
    case 1 << 10:
      return TimeHalfHeads<1 << 10>;
    case 4 << 10:
      return TimeHalfHeads<4 << 10>;
    case 16 << 10:
      return TimeHalfHeads<16 << 10>;
    case 64 << 10:
      return TimeHalfHeads<64 << 10>;
    default:
      return nullptr;
  }
}

}  // namespace

int64_t CopyPlainFragments(const std::vector<PlainFragment>& fragments, size_t threads) {
  std::vector<size_t> chunks{0};
  uint64_t bytes = 0;
  for (size_t i = 0; i < fragments.size(); ++i) {
    if (bytes > 0 && bytes + fragments[i].bytes > kChunkBytes) {
      chunks.push_back(i);
      bytes = 0;
    }
    bytes += fragments[i].bytes;
  }
  chunks.push_back(fragments.size());
  return TimeChunks(chunks.size() - 1, threads, [&](size_t chunk) {
    for (size_t i = chunks[chunk]; i < chunks[chunk + 1]; ++i) {
      std::memcpy(fragments[i].target, fragments[i].source, fragments[i].bytes);
    }
  });
}

bool HasHalfHeadsLoop(int64_t bytes) { return LoopFor(bytes) != nullptr; }

int64_t CopyHalfHeads(const HalfHeads& heads, int64_t bytes, size_t threads) { return LoopFor(bytes)(heads, threads); }

}  // namespace state_handoff
