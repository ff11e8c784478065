// The importer's end of one peer: connects, says the token, checks and maps what comes, then waits for the peer's
// death.
//
// Every step has the one deadline of the handshake. What a broker sends is compared with the grant and with the
// kernel's own word; the first thing that does not fit ends the link.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "../core/error_codes.h"
#include "host_loop.h"
#include "host_mapping.h"

namespace state_handoff {

// What the grant says about the peer.
struct HostGrant {
  SocketAddress address;
  Token token;
  std::vector<uint64_t> region_bytes;
  uint64_t block_generations;  // 0: none
  uint64_t slot_generations;
  std::chrono::milliseconds patience;
};

enum class LinkStatus : uint8_t { kConnecting = 0, kReady = 1, kFailed = 2 };

// What the owner's thread and the loop's thread both know of a peer.
class PeerLink {
 public:
  explicit PeerLink(std::function<void()> on_change) : on_change_(std::move(on_change)) {}

  LinkStatus status() const { return status_.load(std::memory_order_acquire); }
  // Null unless ready. A holder may read it for ever, whatever happens to the peer.
  std::shared_ptr<PeerMemory> memory() const;
  ErrorCode error_code() const;
  std::string error_message() const;

  void Ready(std::shared_ptr<PeerMemory> memory);
  // The first failure stays; lets go of the memory.
  void Fail(ErrorCode code, const std::string& message);
  // Runs `task` once the link is no longer connecting: now, or on the thread that changes it.
  void WhenSettled(std::function<void()> task);

 private:
  void Settle(std::vector<std::function<void()>> waiting);

  const std::function<void()> on_change_;
  mutable std::mutex mutex_;
  std::shared_ptr<PeerMemory> memory_;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::vector<std::function<void()>> waiting_;
  std::atomic<LinkStatus> status_{LinkStatus::kConnecting};
};

// The channel that serves `link` until the peer is gone or the link has failed.
std::shared_ptr<HostChannel> MakeLinkChannel(std::shared_ptr<PeerLink> link, HostGrant grant);

}  // namespace state_handoff
