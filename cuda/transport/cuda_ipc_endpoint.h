// A CUDA IPC transport of one process: the GPU regions it exports, the peers it imports from, and the transfers under
// way.
//
// Handles, generations and the news of a peer's death travel as host memory does (host_broker.h, host_link.h); GPUs
// copy (gpu_executor.h). The owner's thread calls everything here. Nothing waits but Close.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/completion_ring.h"
#include "cuda_ipc_source.h"
#include "gpu_executor.h"
#include "host_broker.h"
#include "host_link.h"

namespace state_handoff {

class CudaIpcEndpoint {
 public:
  struct Options {
    std::shared_ptr<Generations> blocks;  // null: none
    std::shared_ptr<Generations> slots;
    size_t transfers_max = 65536;
    std::string kernels;  // see CudaDevice::LoadKernels
  };
  // `wake` may be called from any thread, and not after Close has returned.
  CudaIpcEndpoint(Options options, std::function<void()> wake);
  ~CudaIpcEndpoint();

  CudaIpcEndpoint(const CudaIpcEndpoint&) = delete;
  CudaIpcEndpoint& operator=(const CudaIpcEndpoint&) = delete;

  // Throws TRANSPORT_UNAVAILABLE without kernels for its device, ARGUMENT_INVALID for memory without an IPC handle.
  size_t AddRegion(std::shared_ptr<CudaRegion> region);
  // Listens from now on; once.
  SocketAddress Listen(bool abstract, const std::string& directory, const std::string& name, const Token& token);

  // `grant.region_bytes` are the sizes of GPU regions.
  uint64_t Connect(HostGrant grant);
  // Throws ARGUMENT_INVALID for an id that is none.
  const PeerLink& Link(uint64_t peer) const;
  // Transfers under way go on; new ones are refused.
  void Disconnect(uint64_t peer);

  // Throws CLOSED, NATIVE_LIMIT, NATIVE_SYSTEM; everything else shows in the transfer.
  uint64_t Begin(uint64_t peer, CopyProgram program, ClaimedGenerations blocks, ClaimedGenerations slots);
  const GpuTransfer& Find(uint64_t transfer) const;
  void Cancel(uint64_t transfer);
  std::vector<uint64_t> TakeChanged();
  // Lets go of an ended transfer; of one in doubt never.
  void Forget(uint64_t transfer);

  // Refuses everything from now on, cancels every transfer, and lets all threads leave.
  void BeginClose();
  bool quiet() const { return executor_.quiet() && loop_.quiet(); }
  void Close();

 private:
  // One peer's source; whoever needs it first makes it. A channel that ends lets go of it.
  struct Peer {
    std::shared_ptr<PeerLink> link;
    std::weak_ptr<HostChannel> channel;
    std::shared_ptr<std::vector<uint64_t>> region_bytes;
    std::shared_ptr<std::shared_ptr<CudaIpcSource>> source;
  };

  void CheckOpen() const;
  // Its mappings close with the last transfer that uses them.
  void DropSource(const Peer& peer);

  const Options options_;
  bool closed_ = false;
  bool finished_ = false;
  uint64_t last_id_ = 0;
  std::shared_ptr<HostRegion> card_;
  std::shared_ptr<CudaIpcExport> export_;
  std::shared_ptr<void> registration_;
  std::shared_ptr<HostExports> exports_;
  std::vector<CudaRegionUse> shown_;  // regions that importers may have mapped
  std::unordered_map<uint64_t, Peer> peers_;
  std::unordered_map<uint64_t, std::shared_ptr<GpuTransfer>> transfers_;
  std::shared_ptr<CompletionRing> ring_;
  std::mutex sources_mutex_;
  // Threads last: joined before what they use is destroyed. The loop's thread submits to the executor.
  GpuExecutor executor_;
  HostLoop loop_;
};

}  // namespace state_handoff
