// Two ends of a host transport in one process, and waiting for what they report.
#pragma once

#include <dirent.h>

#include <thread>

#include "../../cuda/transport/host_endpoint.h"
#include "transfer_fixture.h"

namespace state_handoff::test {

inline constexpr Token kToken{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

template <typename Condition>
void WaitFor(const char* what, Condition&& condition) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) Stop(__FILE__, __LINE__, std::string("waited for ") + what);
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
}

inline std::string FreshName() {
  static std::atomic<int> count{0};
  return "handoff-test-" + std::to_string(getpid()) + "-" + std::to_string(count.fetch_add(1));
}

inline size_t OpenDescriptors() {
  size_t count = 0;
  DIR* folder = opendir("/proc/self/fd");
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

inline std::unique_ptr<HostEndpoint> MakeEndpoint(HostEndpoint::Options options = {}) {
  return std::make_unique<HostEndpoint>(std::move(options), [] {});
}

inline HostGrant GrantOf(const SocketAddress& address, std::vector<uint64_t> region_bytes) {
  return HostGrant{address, kToken, std::move(region_bytes), 0, 0, std::chrono::milliseconds(5000)};
}

inline LinkStatus Settled(const HostEndpoint& endpoint, uint64_t peer) {
  WaitFor("a link to settle", [&] { return endpoint.Link(peer).status() != LinkStatus::kConnecting; });
  return endpoint.Link(peer).status();
}

inline TransferStatus Ended(const HostEndpoint& endpoint, uint64_t transfer) {
  WaitFor("a transfer to end", [&] { return endpoint.Find(transfer).status() != TransferStatus::kActive; });
  return endpoint.Find(transfer).status();
}

// A link that must fail, and how.
inline std::string FailureOf(HostEndpoint& endpoint, HostGrant grant) {
  const uint64_t peer = endpoint.Connect(std::move(grant));
  if (Settled(endpoint, peer) != LinkStatus::kFailed) return "no failure";
  return ErrorCodeName(endpoint.Link(peer).error_code());
}

}  // namespace state_handoff::test
