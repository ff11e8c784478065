// A connection to one exporter: an agent that reads from nobody else, the exporter's granted memory, and the lists that
// were prepared against it.
//
// An agent a peer, so that one peer's death or a read that nobody can stop costs one agent: destroying it proves that
// nothing of it writes here any more. Lists live and die with their agent, so that none can outlive the metadata it
// points into (a list of a peer that was unloaded and loaded again crashes the process).
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "../core/copy_program.h"
#include "../core/error_codes.h"
#include "nixl_exporter.h"

namespace state_handoff {

enum class NixlLinkStatus : uint8_t { kConnecting = 0, kReady = 1, kFailed = 2 };

struct NixlGrant {
  std::string metadata;
  std::vector<NixlRange> regions;
  NixlStaging staging;
};

// Lists for one rectangle's geometry: entry `plane * blocks + block` is the fragment of that turn of the loops and that
// block, so that the blocks of a plane lie one behind the other and neighbours become one read.
struct NixlPlanes {
  std::unique_ptr<NixlList> local;
  std::unique_ptr<NixlList> remote;
  int64_t local_blocks;
  int64_t remote_blocks;
};

// A read under way, and what it must not outlive.
struct NixlPending {
  std::shared_ptr<const void> lists;  // goes after the read that was made of them
  std::unique_ptr<NixlRead> read;
  int64_t bytes = 0;

  void Drop() {
    read.reset();
    lists.reset();
  }
};

class NixlLink {
 public:
  // `targets` and `copies` outlive this. `copies`: chunks are scattered into memory of its GPU; null: of the host.
  NixlLink(uint64_t id, NixlGrant grant, std::vector<NixlRange> targets, GpuChunkCopies* copies);
  ~NixlLink();

  uint64_t id() const { return id_; }
  NixlLinkStatus status() const { return status_.load(std::memory_order_acquire); }
  // Once it is kFailed.
  ErrorCode error_code() const { return error_code_; }
  const std::string& error_message() const { return error_message_; }
  const NixlGrant& grant() const { return grant_; }

  // The setup thread. Blocks: makes the agent, registers, loads the peer.
  void Build(const std::shared_ptr<const NixlApi>& api, const std::string& name) noexcept;
  // The setup thread, after Fail: destroys the agent. Blocks.
  void Stop() noexcept;
  // Nothing of this link touches memory any more. Any thread.
  bool stopped() const { return stopped_.load(std::memory_order_acquire); }
  // Nothing starts on it from now on. Any thread; the first reason counts, false for any other.
  bool Fail(ErrorCode code, const std::string& message);

  // All below: the transport's thread, and only while the link is ready.
  // The lists for one rectangle, or null where they would be too long or rows have sub-blocks.
  std::shared_ptr<const NixlPlanes> PlanesOf(const Rectangle& rectangle, const Table* table);
  // Reads `remote` into `local`, entry by entry. Throws PEER_REFUSED, PEER_LOST.
  NixlPending Read(const std::vector<NixlRange>& local, const std::vector<NixlRange>& remote, int64_t bytes);
  NixlPending Read(std::shared_ptr<const NixlPlanes> planes, const std::vector<int>& local,
                   const std::vector<int>& remote, int64_t bytes);
  bool Notify(const std::string& text) { return agent_->Notify(peer_, text); }
  const std::vector<NixlRange>& targets() const { return targets_; }
  // Lets go of all lists, before Stop.
  void DropLists() { planes_.clear(); }
  size_t list_count() const { return planes_.size(); }

  // Whether a chunk of this rectangle can travel packed: gathered at the exporter and scattered here, each side's
  // memory by whoever can reach it.
  bool CanPack(const Rectangle& rectangle) const;
  // Bytes of one chunk that is read and scattered. On a CPU of a slot's size or less, so that it is still in the
  // second-level cache; on a GPU a whole slot.
  int64_t chunk_bytes() const;
  // Buffers of that size into which packed chunks are read, in host memory or that of a GPU. Once made, they stay.
  void MakeBuffers();
  // Nothing when all are taken.
  std::optional<NixlRange> TakeBuffer();
  void ReturnBuffer(const NixlRange& buffer) { free_buffers_.push_back(buffer); }
  // Scatters a chunk, one of `among` bytes. Null when it is done; not null: once it is over.
  std::shared_ptr<GpuChunkCopies::Copy> Scatter(const CopyProgram& unpack, const NixlRange& buffer, int64_t bytes,
                                                int64_t among);
  // The exporter's slot headers as they were read last; null before MakeBuffers.
  const SlotHeader* headers() const { return reinterpret_cast<const SlotHeader*>(memory_); }
  // For a chunk that the exporter packs. No two links of any process have one in common.
  PackTicket NextTicket() { return PackTicket{secret_, ++last_ticket_}; }

 private:
  const uint64_t id_;
  const NixlGrant grant_;
  const std::vector<NixlRange> targets_;
  GpuChunkCopies* const copies_;
  const NixlRange scattered_;  // memory like that into which chunks are scattered
  std::string peer_;
  uint8_t* memory_ = nullptr;  // headers, then buffers of host memory
  size_t memory_bytes_ = 0;
  std::shared_ptr<CudaRegion> gpu_buffers_;
  std::unique_ptr<NixlAgent> agent_;
  std::unordered_map<std::string, std::shared_ptr<const NixlPlanes>> planes_;
  std::vector<NixlRange> free_buffers_;
  const uint64_t secret_;
  uint64_t last_ticket_ = 0;
  std::mutex mutex_;
  ErrorCode error_code_ = ErrorCode::kINVARIANT;
  std::string error_message_;
  std::atomic<NixlLinkStatus> status_{NixlLinkStatus::kConnecting};
  std::atomic<bool> stopped_{false};
};

}  // namespace state_handoff
