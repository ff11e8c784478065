// A peer's sealed memory, mapped read-only into this process after it proved to be what it has to be.
//
// What a descriptor is worth is asked of the kernel, never of the peer: its size, its seals, its file system. A memory
// that could shrink, that somebody could still map for writing, or whose pages may be refused, could kill this process
// with SIGBUS or change under the checks, and is turned away.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "host_wire.h"

namespace state_handoff {

class HostMapping {
 public:
  // Maps all of `fd`, which must be `bytes` long. Throws PEER_REFUSED when it is not a sealed memory of that size, and
  // NATIVE_SYSTEM when it cannot be mapped.
  static std::shared_ptr<HostMapping> Map(const Fd& fd, uint64_t bytes);
  ~HostMapping();

  HostMapping(const HostMapping&) = delete;
  HostMapping& operator=(const HostMapping&) = delete;

  const uint8_t* data() const { return data_; }
  size_t bytes() const { return bytes_; }

  static int64_t live() { return live_.load(std::memory_order_relaxed); }

 private:
  HostMapping(const uint8_t* data, size_t bytes);

  const uint8_t* data_;
  size_t bytes_;
  static std::atomic<int64_t> live_;
};

// All that one peer granted.
struct PeerMemory {
  std::vector<std::shared_ptr<HostMapping>> regions;
  std::shared_ptr<HostMapping> block_generations;  // null: none
  std::shared_ptr<HostMapping> slot_generations;
};

}  // namespace state_handoff
