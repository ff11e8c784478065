#include "page_prefault.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace state_handoff {

PagePrefault::PagePrefault(const uint8_t* data, size_t bytes)
    : data_(data),
      bytes_(bytes),
      filled_(static_cast<uint8_t*>(std::calloc(((bytes - 1) >> kPartShift) + 1, 1)), &std::free) {
  if (filled_ == nullptr) throw std::bad_alloc();
}

void PagePrefault::FillPart(size_t part) {
  const size_t offset = part << kPartShift;
  const size_t bytes = std::min(bytes_ - offset, size_t{1} << kPartShift);
  // Every failure leaves the pages to ordinary faults, which is slower and as right.
  (void)madvise(const_cast<uint8_t*>(data_) + offset, bytes, MADV_POPULATE_READ);
  std::atomic_ref(filled_.get()[part]).store(1, std::memory_order_relaxed);
}

}  // namespace state_handoff
