#include "cuda_ipc_source.h"

#include <cstring>
#include <mutex>
#include <random>

namespace state_handoff {

namespace {

std::mutex exports_mutex;
std::map<uint64_t, std::weak_ptr<CudaIpcExport>>& Exports() {
  static auto* exports = new std::map<uint64_t, std::weak_ptr<CudaIpcExport>>();
  return *exports;
}

GenerationTable TableOf(const std::shared_ptr<HostMapping>& mapping) {
  if (mapping == nullptr) return GenerationTable{};
  return GenerationTable{reinterpret_cast<const std::atomic<uint64_t>*>(mapping->data()),
                         mapping->bytes() / sizeof(uint64_t)};
}

}  // namespace

std::atomic<int64_t> CudaIpcSource::live_mappings_{0};

const Token& ProcessToken() {
  static const Token token = [] {
    std::random_device random;
    Token made{};
    for (uint8_t& byte : made) byte = static_cast<uint8_t>(random());
    return made;
  }();
  return token;
}

uint64_t NextExportId() {
  static std::atomic<uint64_t> last{0};
  return ++last;
}

std::shared_ptr<void> RegisterExport(uint64_t id, std::weak_ptr<CudaIpcExport> exported) {
  {
    const std::lock_guard lock(exports_mutex);
    Exports()[id] = std::move(exported);
  }
  return std::shared_ptr<void>(nullptr, [id](void*) {
    const std::lock_guard lock(exports_mutex);
    Exports().erase(id);
  });
}

CudaIpcSource::CudaIpcSource(std::shared_ptr<PeerMemory> memory, std::vector<uint64_t> granted)
    : memory_(std::move(memory)), granted_(std::move(granted)) {}

CudaIpcSource::~CudaIpcSource() {
  for (const auto& [key, mapping] : mappings_) {
    const CudaDriver& driver = mapping.device->driver();
    live_mappings_.fetch_sub(1, std::memory_order_relaxed);
    if (driver.ContextPush(mapping.device->context()) != kCudaSuccess) continue;
    driver.IpcCloseMemory(mapping.allocation);
    CudaContext popped;
    driver.ContextPop(&popped);
  }
}

GenerationTable CudaIpcSource::blocks() const { return TableOf(memory_->block_generations); }
GenerationTable CudaIpcSource::slots() const { return TableOf(memory_->slot_generations); }

CudaPointer CudaIpcSource::OpenOwn(const CudaDevice& device, size_t index, uint64_t export_id) {
  const auto known = own_.find({device.ordinal(), index});
  if (known != own_.end()) return known->second;
  std::shared_ptr<CudaIpcExport> exported;
  {
    const std::lock_guard lock(exports_mutex);
    const auto found = Exports().find(export_id);
    if (found != Exports().end()) exported = found->second.lock();
  }
  if (exported == nullptr || index >= exported->regions.size() ||
      exported->regions[index]->bytes() != granted_[index]) {
    throw NativeError(ErrorCode::kPEER_LOST, "the peer, which is in this process, has closed its transport");
  }
  const std::shared_ptr<CudaRegion>& region = exported->regions[index];
  if (&region->device()->driver() != &device.driver()) {
    throw NativeError(ErrorCode::kPEER_UNREACHABLE, "the peer, which is in this process, uses another CUDA driver");
  }
  device.AllowReading(*region->device());
  own_uses_.emplace_back(region, "the peer's region " + std::to_string(index));
  own_[{device.ordinal(), index}] = region->address();
  return region->address();
}

CudaPointer CudaIpcSource::Open(const CudaDevice& device, size_t index) {
  const auto& card = *reinterpret_cast<const CudaIpcCard*>(memory_->regions[0]->data());
  const CardEntry entry = card.entries[index];
  if (card.magic != kCardMagic || entry.bytes != granted_[index] || entry.offset % 16 != 0 ||
      entry.offset > uint64_t{1} << 52) {
    throw NativeError(ErrorCode::kPEER_REFUSED,
                      "the peer's region " + std::to_string(index) + " was refused because its card is not as granted");
  }
  if (card.process == ProcessToken()) return OpenOwn(device, index, card.export_id);
  const std::pair<CudaOrdinal, size_t> key{device.ordinal(), index};
  const auto known = mappings_.find(key);
  if (known != mappings_.end()) return known->second.region;

  const CudaDriver& driver = device.driver();
  const CudaContextScope current(driver, device.context());
  Mapping mapping{CudaDevice::Open(driver, device.ordinal()), 0, 0};
  CudaResult result = driver.IpcOpenMemory(&mapping.allocation, entry.allocation, kCudaIpcLazyPeerAccess);
  if (result != kCudaSuccess) {
    throw NativeError(ErrorCode::kPEER_UNREACHABLE, "the peer's GPU memory does not open on GPU " +
                                                        std::to_string(device.ordinal()) + " because of " +
                                                        driver.Describe(result) +
                                                        "; it has ended, or its GPU cannot be read from this one");
  }
  CudaPointer base = 0;
  size_t size = 0;
  result = driver.MemGetAddressRange(&base, &size, mapping.allocation);
  if (result != kCudaSuccess || base != mapping.allocation || entry.offset > size ||
      entry.bytes > size - entry.offset) {
    driver.IpcCloseMemory(mapping.allocation);
    throw NativeError(ErrorCode::kPEER_REFUSED, "the peer's region " + std::to_string(index) +
                                                    " was refused because its allocation has " + std::to_string(size) +
                                                    " bytes, fewer than granted");
  }
  mapping.region = mapping.allocation + entry.offset;
  live_mappings_.fetch_add(1, std::memory_order_relaxed);
  return mappings_.emplace(key, std::move(mapping)).first->second.region;
}

}  // namespace state_handoff
