// A fixed array of zeroed memory straight from the system: pages are touched on first use, large arrays ask for huge
// pages, and nothing grows afterwards, so that no operation of a pool can run out of memory half way.
#pragma once

#include <sys/mman.h>

#include <cerrno>
#include <cstddef>
#include <cstring>
#include <string>
#include <type_traits>

#include "error_codes.h"

namespace state_handoff {

template <typename T>
class PageArray {
 public:
  static_assert(std::is_trivially_copyable_v<T> && std::is_trivially_destructible_v<T>, "all-zero bytes are a value");

  // Throws NATIVE_SYSTEM when memory is not to be had.
  explicit PageArray(size_t count) : count_(count), bytes_(count * sizeof(T)) {
    if (bytes_ == 0) return;
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
      throw NativeError(ErrorCode::kNATIVE_SYSTEM, "memory for a pool was refused because " +
                                                       std::string(std::strerror(errno)) + " (" +
                                                       std::to_string(bytes_) + " bytes)");
    }
    if (bytes_ >= kHugePagesFrom) madvise(memory, bytes_, MADV_HUGEPAGE);  // a wish; plain pages work as well
    data_ = static_cast<T*>(memory);
  }
  ~PageArray() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  PageArray(const PageArray&) = delete;
  PageArray& operator=(const PageArray&) = delete;

  T& operator[](size_t index) { return data_[index]; }
  const T& operator[](size_t index) const { return data_[index]; }
  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t count() const { return count_; }
  size_t bytes() const { return bytes_; }
  // Back to zeroes.
  void Clear() {
    if (data_ != nullptr) std::memset(static_cast<void*>(data_), 0, bytes_);
  }

 private:
  static constexpr size_t kHugePagesFrom = 4u << 20;

  size_t count_;
  size_t bytes_;
  T* data_ = nullptr;
};

}  // namespace state_handoff
