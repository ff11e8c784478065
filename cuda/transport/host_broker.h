// The exporter's end: listens on a Unix socket and hands the sealed memories of its regions to importers of its own
// user that know the token of the grant. Refuses everybody else, in bounded time and with bounded memory.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/generations.h"
#include "../core/region.h"
#include "host_loop.h"

namespace state_handoff {

// What the exporter grants. Written by the owner's thread, read by the loop's.
class HostExports {
 public:
  HostExports(std::shared_ptr<Generations> blocks, std::shared_ptr<Generations> slots)
      : blocks_(std::move(blocks)), slots_(std::move(slots)) {}

  using Regions = std::vector<std::shared_ptr<HostRegion>>;

  size_t AddRegion(std::shared_ptr<HostRegion> region);
  // As they are now; later registrations make a new list.
  std::shared_ptr<const Regions> regions() const;
  const std::shared_ptr<Generations>& blocks() const { return blocks_; }
  const std::shared_ptr<Generations>& slots() const { return slots_; }
  // The first `count` regions' memories, then those of the generations; empty when a region is missing or closed.
  std::vector<std::shared_ptr<SealedMemory>> Memories(size_t count) const;

  // Connections of importers, those included that have not said hello.
  std::atomic<int>& importers() const { return importers_; }

 private:
  mutable std::atomic<int> importers_{0};
  mutable std::mutex mutex_;
  std::shared_ptr<const Regions> regions_ = std::make_shared<Regions>();
  const std::shared_ptr<Generations> blocks_;
  const std::shared_ptr<Generations> slots_;
};

// The listening socket, and the folder it made if it has a path. Gone with this object.
class HostListener {
 public:
  // With `abstract`, tries an abstract address first; else, or if that is not to be had, a path that only this user can
  // reach, in a new folder in `directory`. Throws NATIVE_SYSTEM.
  HostListener(bool abstract, const std::string& directory, const std::string& name);
  ~HostListener();

  HostListener(const HostListener&) = delete;
  HostListener& operator=(const HostListener&) = delete;

  int fd() const { return socket_.get(); }
  const SocketAddress& address() const { return address_; }

 private:
  Fd socket_;
  SocketAddress address_;
  std::string folder_;
};

// The channel that accepts importers. Adds one channel an importer to `loop`.
std::shared_ptr<HostChannel> MakeBroker(HostLoop& loop, std::unique_ptr<HostListener> listener,
                                        std::shared_ptr<const HostExports> exports, const Token& token);

}  // namespace state_handoff
