// The source side of the NIXL transport: the agent whose memory peers read, and the staging into which it gathers for
// them what lies scattered: slots in the memory that is granted, of the host or of a GPU, whose kernel gathers then. On
// the transport's thread, all of it but the making.
//
// A slot that was packed belongs to its reader until that says it has read it, or until its lease is over and another
// waits: then the slot's header is cleared first, by which a late reader notices and reads again without packing.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "../core/copy_walk.h"
#include "../core/cuda_region.h"
#include "gpu_chunk_copy.h"
#include "nixl_agent.h"
#include "nixl_pack_message.h"

namespace state_handoff {

// Where peers find packed bytes: headers of `slots` slots in host memory, and the slots one behind the other.
struct NixlStaging {
  uint64_t address = 0;  // of the headers
  uint64_t slots = 0;    // 0: this exporter packs nothing
  uint64_t slot_bytes = 0;
  NixlRange data;  // all slots

  uint64_t headers_bytes() const { return slots * sizeof(SlotHeader); }
};

class NixlExporter {
 public:
  using Clock = std::chrono::steady_clock;

  // Blocks: makes the agent. `regions` stay mapped while this lives. `copies`: slots are memory of its GPU, and
  // outlived by it; null: of the host.
  NixlExporter(std::shared_ptr<const NixlApi> api, const std::string& name, std::vector<NixlRange> regions,
               uint64_t slots, uint64_t slot_bytes, GpuChunkCopies* copies);
  ~NixlExporter();

  const std::string& metadata() const { return metadata_; }
  const NixlStaging& staging() const { return staging_; }

  // Answers what came; true when something did.
  bool Serve(Clock::time_point now);
  // Whether a GPU gathers, so that its end is worth looking for.
  bool packing() const;

  int64_t packed_chunks() const { return packed_chunks_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    PackTicket ticket;
    Clock::time_point leased_until;
    bool taken = false;
    std::shared_ptr<GpuChunkCopies::Copy> packing;  // by a GPU, under way
  };
  struct Waiting {
    std::string sender;
    PackMessage message;
  };

  SlotHeader& Header(size_t slot) const;
  void MakeStaging();
  void LetGo(const PackTicket& ticket);
  Slot* FindSlot(Clock::time_point now);
  // Whether the program may be run: inside the granted regions and one slot.
  bool IsSound(const CopyProgram& program) const;
  // Nothing when it is over.
  std::shared_ptr<GpuChunkCopies::Copy> Pack(size_t slot, const CopyProgram& program);
  // Shows a slot's reader that it is filled.
  void Show(size_t slot);

  const std::vector<NixlRange> regions_;
  GpuChunkCopies* const copies_;
  std::vector<int64_t> region_bytes_;
  uint8_t* memory_ = nullptr;
  size_t memory_bytes_ = 0;
  std::shared_ptr<CudaRegion> gpu_slots_;
  NixlStaging staging_;
  std::unique_ptr<NixlAgent> agent_;
  std::string metadata_;
  std::vector<Slot> slots_;
  std::deque<Waiting> waiting_;
  std::atomic<int64_t> packed_chunks_{0};
};

}  // namespace state_handoff
