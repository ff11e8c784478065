// A host transport of one process: what it exports, the peers it imports from, and the transfers under way.
//
// The owner's thread (JavaScript's) calls everything here; the loop's thread and the copying threads report through
// links, transfers and the completion ring. Nothing waits but Close, and that for one quantum of one copy.
#pragma once

#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/completion_ring.h"
#include "../core/copy_executor.h"
#include "host_broker.h"
#include "host_link.h"

namespace state_handoff {

class HostEndpoint {
 public:
  struct Options {
    std::shared_ptr<Generations> blocks;  // null: none
    std::shared_ptr<Generations> slots;
    size_t threads = 1;
    size_t transfers_max = 65536;
    CopyRules rules;
  };
  // `wake` may be called from any thread, and not after Close has returned.
  HostEndpoint(Options options, std::function<void()> wake);
  ~HostEndpoint();

  HostEndpoint(const HostEndpoint&) = delete;
  HostEndpoint& operator=(const HostEndpoint&) = delete;

  size_t AddRegion(std::shared_ptr<HostRegion> region);
  // Listens from now on; once.
  SocketAddress Listen(bool abstract, const std::string& directory, const std::string& name, const Token& token);

  uint64_t Connect(HostGrant grant);
  // Throws ARGUMENT_INVALID for an id that is none.
  const PeerLink& Link(uint64_t peer) const;
  // Transfers under way go on; new ones are refused.
  void Disconnect(uint64_t peer);

  // Throws CLOSED, NATIVE_LIMIT, NATIVE_SYSTEM; everything else shows in the transfer.
  uint64_t Begin(uint64_t peer, CopyProgram program, ClaimedGenerations blocks, ClaimedGenerations slots);
  const Transfer& Find(uint64_t transfer) const;
  void Cancel(uint64_t transfer);
  // Transfers that ended since the last call.
  std::vector<uint64_t> TakeChanged();
  // Lets go of an ended transfer.
  void Forget(uint64_t transfer);
  // Transfers that have not ended.
  size_t ActiveCount() const;

  // Refuses everything from now on, cancels every transfer, and lets all threads leave.
  void BeginClose();
  bool quiet() const { return executor_.quiet() && loop_.quiet(); }
  void Close();

 private:
  struct Peer {
    std::shared_ptr<PeerLink> link;
    std::weak_ptr<HostChannel> channel;
  };

  void CheckOpen() const;
  // Submits the transfer to the executor, or refuses it with the link's error. Any thread.
  void Launch(const PeerLink& link, const std::shared_ptr<Transfer>& transfer);

  const Options options_;
  bool closed_ = false;
  uint64_t last_id_ = 0;
  std::shared_ptr<HostExports> exports_;
  std::unordered_map<uint64_t, Peer> peers_;
  std::unordered_map<uint64_t, std::shared_ptr<Transfer>> transfers_;
  std::shared_ptr<CompletionRing> ring_;
  // Threads last: joined before what they use is destroyed. The loop's thread submits to the executor.
  CopyExecutor executor_;
  HostLoop loop_;
};

}  // namespace state_handoff
