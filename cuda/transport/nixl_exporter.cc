#include "nixl_exporter.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "../core/copy_program_check.h"
#include "../core/error_codes.h"

namespace state_handoff {

namespace {

// How long a slot is its reader's, when others wait for one.
constexpr std::chrono::milliseconds kLease{2000};
// Requests that wait for a slot; those beyond are dropped, and their importers read without packing.
constexpr size_t kWaitingMax = 256;
constexpr size_t kRectanglesOfOneMax = 4096;
constexpr size_t kPageBytes = 4096;

// Nothing written after this is seen before what was written before it, also by a peer that reads past this cache.
void WriteFence() {
  std::atomic_thread_fence(std::memory_order_release);
#if defined(__x86_64__)
  _mm_sfence();  // copies may have used stores that the release does not order
#endif
}

}  // namespace

NixlExporter::NixlExporter(std::shared_ptr<const NixlApi> api, const std::string& name, std::vector<NixlRange> regions,
                           uint64_t slots, uint64_t slot_bytes, GpuChunkCopies* copies)
    : regions_(std::move(regions)), copies_(copies), slots_(slots) {
  staging_ = NixlStaging{0, slots, slot_bytes, {}};
  bool gpu = false;
  for (const NixlRange& region : regions_) {
    region_bytes_.push_back(static_cast<int64_t>(region.bytes));
    gpu = gpu || region.memory == kNixlVram;
  }
  agent_ = std::make_unique<NixlAgent>(std::move(api), name, true, gpu);
  for (const NixlRange& region : regions_) agent_->Register(region);
  if (slots > 0) MakeStaging();
  metadata_ = agent_->Metadata();
}

void NixlExporter::MakeStaging() {
  const uint64_t data_bytes = staging_.slots * staging_.slot_bytes;
  const uint64_t front = (staging_.headers_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
  memory_bytes_ = front + (copies_ == nullptr ? data_bytes : 0);
  void* memory =
      mmap(nullptr, memory_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM, "no " + std::to_string(memory_bytes_) + " bytes of staging because " +
                                                     std::strerror(errno) + "; grant fewer slots or smaller ones");
  }
  memory_ = static_cast<uint8_t*>(memory);
  staging_.address = reinterpret_cast<uint64_t>(memory_);
  for (size_t i = 0; i < staging_.slots; ++i) new (&Header(i)) SlotHeader{};
  agent_->Register(NixlRange{staging_.address, memory_bytes_});
  if (copies_ == nullptr) {
    staging_.data = NixlRange{staging_.address + front, data_bytes};
    return;
  }
  gpu_slots_ = CudaRegion::Allocate(copies_->device(), data_bytes, false);
  staging_.data =
      NixlRange{gpu_slots_->address(), data_bytes, kNixlVram, static_cast<uint64_t>(copies_->device()->ordinal())};
  agent_->Register(staging_.data);
}

NixlExporter::~NixlExporter() {
  agent_.reset();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
  // Importers may have it mapped for as long as they live; freeing it under them is undefined.
  if (gpu_slots_ != nullptr && packed_chunks() > 0) gpu_slots_->LeaveToDriver();
}

SlotHeader& NixlExporter::Header(size_t slot) const { return reinterpret_cast<SlotHeader*>(memory_)[slot]; }

bool NixlExporter::Serve(Clock::time_point now) {
  if (staging_.slots == 0) return false;
  bool packed = false;
  for (size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].packing == nullptr) continue;
    try {
      if (!slots_[i].packing->IsOver()) continue;
    } catch (const NativeError&) {
      continue;  // the GPU is lost; the slot is nobody's any more, and its importer reads without packing
    }
    slots_[i].packing.reset();
    Show(i);
    packed = true;
  }
  std::vector<NixlMessage> messages = agent_->TakeMessages();
  for (NixlMessage& each : messages) {
    std::optional<PackMessage> message = DecodePackMessage(each.text);
    if (!message) continue;
    for (const PackTicket& ticket : message->read) LetGo(ticket);
    if (!message->program || waiting_.size() >= kWaitingMax || !IsSound(*message->program)) continue;
    waiting_.push_back(Waiting{std::move(each.sender), std::move(*message)});
  }
  while (!waiting_.empty()) {
    Slot* slot = FindSlot(now);
    if (slot == nullptr) break;
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    const auto index = static_cast<size_t>(slot - slots_.data());
    SlotHeader& header = Header(index);
    header.low.store(0, std::memory_order_relaxed);
    WriteFence();
    packed = true;
    try {
      *slot = Slot{next.message.ticket, {}, true, Pack(index, *next.message.program)};
    } catch (const NativeError&) {
      *slot = Slot{};  // its importer waits in vain, and reads without packing
      continue;
    }
    if (slot->packing == nullptr) Show(index);
  }
  return packed || !messages.empty();
}

void NixlExporter::Show(size_t slot) {
  SlotHeader& header = Header(slot);
  const PackTicket& ticket = slots_[slot].ticket;
  header.high.store(ticket.high, std::memory_order_relaxed);
  WriteFence();
  header.low.store(ticket.low, std::memory_order_release);
  slots_[slot].leased_until = Clock::now() + kLease;
  packed_chunks_.fetch_add(1, std::memory_order_relaxed);
}

bool NixlExporter::packing() const {
  return std::any_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.packing != nullptr; });
}

void NixlExporter::LetGo(const PackTicket& ticket) {
  for (Slot& slot : slots_) {
    if (slot.taken && slot.ticket == ticket) slot.taken = false;
  }
}

NixlExporter::Slot* NixlExporter::FindSlot(Clock::time_point now) {
  Slot* oldest = nullptr;
  for (Slot& slot : slots_) {
    if (slot.packing != nullptr) continue;
    if (!slot.taken) return &slot;
    if (oldest == nullptr || slot.leased_until < oldest->leased_until) oldest = &slot;
  }
  return oldest != nullptr && oldest->leased_until <= now ? oldest : nullptr;
}

bool NixlExporter::IsSound(const CopyProgram& program) const {
  if (program.rectangles.size() > kRectanglesOfOneMax) return false;
  for (const Rectangle& rectangle : program.rectangles) {
    const auto region = static_cast<size_t>(rectangle.source_region);
    if (region >= regions_.size() || !regions_[region].IsWith(staging_.data)) return false;
  }
  const int64_t slot_bytes = static_cast<int64_t>(staging_.slot_bytes);
  try {
    CheckProgram(program, region_bytes_, std::span<const int64_t>(&slot_bytes, 1), {});
    return true;
  } catch (const NativeError&) {
    return false;
  }
}

std::shared_ptr<GpuChunkCopies::Copy> NixlExporter::Pack(size_t slot, const CopyProgram& program) {
  const NixlRange target = staging_.data.Part(slot * staging_.slot_bytes, staging_.slot_bytes);
  if (copies_ != nullptr) {
    std::vector<PlanRegion> sources;
    for (const NixlRange& each : regions_) {
      sources.push_back(PlanRegion{each.address, static_cast<int64_t>(each.bytes)});
    }
    return copies_->Start(program, sources, {PlanRegion{target.address, static_cast<int64_t>(target.bytes)}});
  }
  const CopyTarget host{reinterpret_cast<uint8_t*>(target.address), target.bytes};
  for (const Rectangle& rectangle : program.rectangles) {
    const NixlRange& region = regions_[static_cast<size_t>(rectangle.source_region)];
    const CopySource source{reinterpret_cast<const uint8_t*>(region.address), region.bytes};
    const CopyWalk walk(program, rectangle, source, host, CopyWalk::kStreamedBytesMin);
    walk.Copy(0, walk.bytes());
  }
  return nullptr;
}

}  // namespace state_handoff
