// What an exporter shows its importers besides generations: one sealed page table of its regions' IPC handles.
//
// The broker hands it over as it hands over host memory, to processes of the same user that know the token. Entries are
// filled before they are granted and never change; an importer still checks each against the grant.
#pragma once

#include <cstdint>

#include "../core/cuda_driver.h"
#include "host_wire.h"

namespace state_handoff {

inline constexpr uint32_t kCardMagic = 0x31434753;  // "SGC1"
inline constexpr uint32_t kCardRegionsMax = kWireRegionsMax;

struct CardEntry {
  CudaIpcMemory allocation;
  CudaUuid device;
  uint64_t offset;
  uint64_t bytes;
};
static_assert(sizeof(CardEntry) == 96);

struct CudaIpcCard {
  uint32_t magic;
  uint32_t reserved;
  Token process;  // of the exporter, so that it knows itself
  uint64_t export_id;
  CardEntry entries[kCardRegionsMax];
};

}  // namespace state_handoff
