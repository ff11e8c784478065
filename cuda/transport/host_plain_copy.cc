#include "host_plain_copy.h"

#include <atomic>
#include <chrono>
#include <cstring>

#include "../core/thread_pool.h"

namespace state_handoff {

namespace {

constexpr uint64_t kChunkBytes = 512 << 10;

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
  std::atomic<size_t> next{0};
  const auto started = std::chrono::steady_clock::now();
  ThreadPool pool;
  pool.Start(threads, "handoff-plain", [&] {
    for (size_t chunk = next.fetch_add(1); chunk + 1 < chunks.size(); chunk = next.fetch_add(1)) {
      for (size_t i = chunks[chunk]; i < chunks[chunk + 1]; ++i) {
        std::memcpy(fragments[i].target, fragments[i].source, fragments[i].bytes);
      }
    }
  });
  pool.Join();
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - started).count();
}

}  // namespace state_handoff
