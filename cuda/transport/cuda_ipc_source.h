// A peer's GPU regions as this process reads them: its sealed card and generations, and the mappings of its
// allocations, opened when they are first needed and closed with this object.
//
// What a card says is compared with the grant before a handle is opened, and with the driver's own word afterwards. A
// peer of this very process is read by its plain addresses: a process cannot open its own handles.
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "cuda_ipc_card.h"
#include "gpu_transfer.h"
#include "host_mapping.h"

namespace state_handoff {

// What this process exports, by id, for its own importers.
struct CudaIpcExport {
  std::vector<std::shared_ptr<CudaRegion>> regions;
};

// Random, of this process.
const Token& ProcessToken();
// Registers until the returned object is gone.
std::shared_ptr<void> RegisterExport(uint64_t id, std::weak_ptr<CudaIpcExport> exported);
uint64_t NextExportId();

class CudaIpcSource : public GpuSource {
 public:
  // `granted`: the region sizes of the grant.
  CudaIpcSource(std::shared_ptr<PeerMemory> memory, std::vector<uint64_t> granted);
  ~CudaIpcSource() override;

  size_t region_count() const override { return granted_.size(); }
  int64_t region_bytes(size_t index) const override { return static_cast<int64_t>(granted_[index]); }
  CudaPointer Open(const CudaDevice& device, size_t index) override;
  GenerationTable blocks() const override;
  GenerationTable slots() const override;

  static int64_t live_mappings() { return live_mappings_.load(std::memory_order_relaxed); }

 private:
  struct Mapping {
    std::shared_ptr<CudaDevice> device;
    CudaPointer allocation;
    CudaPointer region;
  };
  CudaPointer OpenOwn(const CudaDevice& device, size_t index, uint64_t export_id);

  const std::shared_ptr<PeerMemory> memory_;
  const std::vector<uint64_t> granted_;
  std::map<std::pair<CudaOrdinal, size_t>, Mapping> mappings_;  // the preparing thread, then whoever lets go
  std::vector<CudaRegionUse> own_uses_;
  std::map<std::pair<CudaOrdinal, size_t>, CudaPointer> own_;
  static std::atomic<int64_t> live_mappings_;
};

}  // namespace state_handoff
