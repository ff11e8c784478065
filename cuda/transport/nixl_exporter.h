// The source side of the NIXL transport: the agent whose memory peers read, and the staging into which it gathers for
// them what lies scattered. On the transport's thread, all of it but the making.
//
// A slot that was packed belongs to its reader until that says it has read it, or until its lease is over and another
// waits: then the slot's header is cleared first, by which a late reader notices and reads again without packing.
#pragma once

#include <chrono>
#include <deque>
#include <memory>
#include <vector>

#include "../core/copy_walk.h"
#include "nixl_agent.h"
#include "nixl_pack_message.h"

namespace state_handoff {

// Where peers find packed bytes: headers of `slots` slots, then at `data` the slots themselves.
struct NixlStaging {
  uint64_t address = 0;
  uint64_t slots = 0;  // 0: this exporter packs nothing
  uint64_t slot_bytes = 0;

  uint64_t headers_bytes() const { return slots * sizeof(SlotHeader); }
  // Of slot `slot`, from the start of the staging.
  uint64_t SlotOffset(uint64_t slot) const { return (headers_bytes() + 4095) / 4096 * 4096 + slot * slot_bytes; }
  uint64_t bytes() const { return slots == 0 ? 0 : SlotOffset(slots); }
};

class NixlExporter {
 public:
  using Clock = std::chrono::steady_clock;

  // Blocks: makes the agent. `regions` stay mapped while this lives.
  NixlExporter(std::shared_ptr<const NixlApi> api, const std::string& name, std::vector<CopySource> regions,
               uint64_t slots, uint64_t slot_bytes);
  ~NixlExporter();

  const std::string& metadata() const { return metadata_; }
  const NixlStaging& staging() const { return staging_; }

  // Answers what came; true when something did.
  bool Serve(Clock::time_point now);

  int64_t packed_chunks() const { return packed_chunks_.load(std::memory_order_relaxed); }

 private:
  struct Slot {
    PackTicket ticket;
    Clock::time_point leased_until;
    bool taken = false;
  };
  struct Waiting {
    std::string sender;
    PackMessage message;
  };

  SlotHeader& Header(size_t slot) const;
  void LetGo(const PackTicket& ticket);
  Slot* FindSlot(Clock::time_point now);
  // Whether the program may be run: inside the granted regions and one slot.
  bool IsSound(const CopyProgram& program) const;
  void Pack(size_t slot, const CopyProgram& program);

  const std::vector<CopySource> regions_;
  std::vector<int64_t> region_bytes_;
  uint8_t* memory_ = nullptr;
  NixlStaging staging_;
  std::unique_ptr<NixlAgent> agent_;
  std::string metadata_;
  std::vector<Slot> slots_;
  std::deque<Waiting> waiting_;
  std::atomic<int64_t> packed_chunks_{0};
};

}  // namespace state_handoff
