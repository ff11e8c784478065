#include "sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "error_codes.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace state_handoff {

namespace {

[[noreturn]] void ThrowSystem(const char* call, size_t bytes) {
  const int error = errno;
  throw NativeError(ErrorCode::kNATIVE_SYSTEM, std::string(call) + " of " + std::to_string(bytes) +
                                                   " bytes of host memory failed because " + std::strerror(error));
}

}  // namespace

std::shared_ptr<SealedMemory> SealedMemory::Create(size_t bytes, const std::string& name) {
  if (bytes == 0) throw NativeError(ErrorCode::kARGUMENT_INVALID, "bytes: expected at least 1, got 0");
  const int fd = memfd_create(name.c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) ThrowSystem("memfd_create", bytes);
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
    const int error = errno;
    close(fd);
    errno = error;
    ThrowSystem("ftruncate", bytes);
  }
  void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    const int error = errno;
    close(fd);
    errno = error;
    ThrowSystem("mmap", bytes);
  }
  std::shared_ptr<SealedMemory> memory(new SealedMemory(fd, static_cast<uint8_t*>(data), bytes));
  // After the writable mapping: later writable maps fail, here and in every peer, and no peer can cause a SIGBUS.
  if (fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL) != 0) {
    ThrowSystem("sealing", bytes);
  }
  return memory;
}

SealedMemory::~SealedMemory() {
  munmap(data_, bytes_);
  close(fd_);
}

}  // namespace state_handoff
