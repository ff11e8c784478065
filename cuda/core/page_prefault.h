// Which parts of a read-only mapping have had their page tables filled.
//
// The first touch of a mapped page costs more than copying it, so a copying thread fills the tables of a part with one
// system call before it reads there. Kernels without MADV_POPULATE_READ (before 5.14) take the faults instead.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>

namespace state_handoff {

class PagePrefault {
 public:
  static constexpr int kPartShift = 16;  // 64 KiB: what a cancelled copy may still have to wait for

  PagePrefault(const uint8_t* data, size_t bytes);

  // Any thread. `first` and `last` are parts, that is byte offsets >> kPartShift.
  void Fill(size_t first, size_t last) {
    for (size_t part = first; part <= last; ++part) {
      if (std::atomic_ref(filled_.get()[part]).load(std::memory_order_relaxed) == 0) FillPart(part);
    }
  }

 private:
  void FillPart(size_t part);

  const uint8_t* data_;
  size_t bytes_;
  // From calloc: of a huge and sparse memory only the parts that are read cost anything.
  std::unique_ptr<uint8_t, decltype(&std::free)> filled_;
};

}  // namespace state_handoff
