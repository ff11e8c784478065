// Anonymous memory that another process on this machine may map read-only and can neither shrink, grow nor write.
//
// Owned by the process that creates it, through its one writable mapping, made before the seals are set. The memory
// lives until the last mapping and descriptor, here or in a peer, is gone.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace state_handoff {

class SealedMemory {
 public:
  // Throws NATIVE_SYSTEM with the system's own words when memory is not to be had.
  static std::shared_ptr<SealedMemory> Create(size_t bytes, const std::string& name);
  ~SealedMemory();

  SealedMemory(const SealedMemory&) = delete;
  SealedMemory& operator=(const SealedMemory&) = delete;

  uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  // For SCM_RIGHTS; stays owned by this object.
  int fd() const { return fd_; }

 private:
  SealedMemory(int fd, uint8_t* data, size_t bytes) : fd_(fd), data_(data), bytes_(bytes) {}

  int fd_;
  uint8_t* data_;
  size_t bytes_;
};

}  // namespace state_handoff
