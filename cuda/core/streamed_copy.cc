#include "streamed_copy.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace state_handoff {

#if defined(__x86_64__)

bool CanStream() {
  static const bool can = __builtin_cpu_supports("avx2") != 0;
  return can;
}

__attribute__((target("avx2"))) void StreamPieces(uint8_t* target, const uint8_t* source, int64_t bytes, int64_t count,
                                                  int64_t target_stride, int64_t source_stride) {
  for (int64_t piece = 0; piece < count; ++piece, target += target_stride, source += source_stride) {
    for (int64_t at = 0; at < bytes; at += static_cast<int64_t>(kStreamedLine)) {
      // The next piece is out of the hardware's sight; a fetch beyond the last one's page does nothing.
      _mm_prefetch(reinterpret_cast<const char*>(source + source_stride + at), _MM_HINT_T0);
      const __m256i first = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at));
      const __m256i second = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(source + at + 32));
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at), first);
      _mm256_stream_si256(reinterpret_cast<__m256i*>(target + at + 32), second);
    }
  }
}

void FenceStreamed() { _mm_sfence(); }

#else

bool CanStream() { return false; }
void StreamPieces(uint8_t*, const uint8_t*, int64_t, int64_t, int64_t, int64_t) {}
void FenceStreamed() {}

#endif

}  // namespace state_handoff
