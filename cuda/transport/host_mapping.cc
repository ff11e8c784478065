#include "host_mapping.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#include <cerrno>
#include <cstring>

#include "../core/error_codes.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace state_handoff {

namespace {

[[noreturn]] void Refuse(const std::string& what) {
  throw NativeError(ErrorCode::kPEER_REFUSED, "the peer's memory was refused because " + what);
}

}  // namespace

std::atomic<int64_t> HostMapping::live_{0};

std::shared_ptr<HostMapping> HostMapping::Map(const Fd& fd, uint64_t bytes) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) Refuse("it is no memory that can be sealed");
  constexpr int kFixedSize = F_SEAL_SHRINK | F_SEAL_GROW;
  if ((seals & kFixedSize) != kFixedSize || (seals & (F_SEAL_FUTURE_WRITE | F_SEAL_WRITE)) == 0) {
    Refuse("its seals do not fix its size and forbid new writers (seals " + std::to_string(seals) + ")");
  }
  struct statfs system {};
  if (fstatfs(fd.get(), &system) != 0 || system.f_type != TMPFS_MAGIC) Refuse("it does not consist of ordinary pages");
  struct stat status {};
  if (fstat(fd.get(), &status) != 0 || static_cast<uint64_t>(status.st_size) != bytes || bytes == 0) {
    Refuse("it has " + std::to_string(status.st_size) + " bytes where " + std::to_string(bytes) + " were granted");
  }
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM,
                      "mapping " + std::to_string(bytes) + " bytes of a peer failed because " + std::strerror(errno));
  }
  return std::shared_ptr<HostMapping>(new HostMapping(static_cast<const uint8_t*>(data), bytes));
}

HostMapping::HostMapping(const uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {
  live_.fetch_add(1, std::memory_order_relaxed);
}

HostMapping::~HostMapping() {
  munmap(const_cast<uint8_t*>(data_), bytes_);
  live_.fetch_sub(1, std::memory_order_relaxed);
}

}  // namespace state_handoff
