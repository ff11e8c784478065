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

// Nothing written after this is seen before what was written before it, also by a peer that reads past this cache.
void WriteFence() {
  std::atomic_thread_fence(std::memory_order_release);
#if defined(__x86_64__)
  _mm_sfence();  // copies may have used stores that the release does not order
#endif
}

}  // namespace

NixlExporter::NixlExporter(std::shared_ptr<const NixlApi> api, const std::string& name, std::vector<CopySource> regions,
                           uint64_t slots, uint64_t slot_bytes)
    : regions_(std::move(regions)), slots_(slots) {
  staging_ = NixlStaging{0, slots, slot_bytes};
  for (const CopySource& region : regions_) region_bytes_.push_back(static_cast<int64_t>(region.bytes));
  agent_ = std::make_unique<NixlAgent>(std::move(api), name, true);
  for (const CopySource& region : regions_) {
    agent_->Register(NixlRange{reinterpret_cast<uint64_t>(region.data), region.bytes});
  }
  if (slots > 0) {
    void* memory =
        mmap(nullptr, staging_.bytes(), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (memory == MAP_FAILED) {
      throw NativeError(ErrorCode::kNATIVE_SYSTEM, "no " + std::to_string(staging_.bytes()) +
                                                       " bytes of staging because " + std::strerror(errno) +
                                                       "; grant fewer slots or smaller ones");
    }
    memory_ = static_cast<uint8_t*>(memory);
    staging_.address = reinterpret_cast<uint64_t>(memory_);
    for (size_t i = 0; i < slots; ++i) new (&Header(i)) SlotHeader{};
    agent_->Register(NixlRange{staging_.address, staging_.bytes()});
  }
  metadata_ = agent_->Metadata();
}

NixlExporter::~NixlExporter() {
  agent_.reset();
  if (memory_ != nullptr) munmap(memory_, staging_.bytes());
}

SlotHeader& NixlExporter::Header(size_t slot) const { return reinterpret_cast<SlotHeader*>(memory_)[slot]; }

bool NixlExporter::Serve(Clock::time_point now) {
  if (staging_.slots == 0) return false;
  std::vector<NixlMessage> messages = agent_->TakeMessages();
  for (NixlMessage& each : messages) {
    std::optional<PackMessage> message = DecodePackMessage(each.text);
    if (!message) continue;
    for (const PackTicket& ticket : message->read) LetGo(ticket);
    if (!message->program || waiting_.size() >= kWaitingMax || !IsSound(*message->program)) continue;
    waiting_.push_back(Waiting{std::move(each.sender), std::move(*message)});
  }
  bool packed = false;
  while (!waiting_.empty()) {
    Slot* slot = FindSlot(now);
    if (slot == nullptr) break;
    const Waiting next = std::move(waiting_.front());
    waiting_.pop_front();
    const auto index = static_cast<size_t>(slot - slots_.data());
    SlotHeader& header = Header(index);
    header.low.store(0, std::memory_order_relaxed);
    WriteFence();
    Pack(index, *next.message.program);
    header.high.store(next.message.ticket.high, std::memory_order_relaxed);
    WriteFence();
    header.low.store(next.message.ticket.low, std::memory_order_release);
    *slot = Slot{next.message.ticket, Clock::now() + kLease, true};
    packed_chunks_.fetch_add(1, std::memory_order_relaxed);
    packed = true;
  }
  return packed || !messages.empty();
}

void NixlExporter::LetGo(const PackTicket& ticket) {
  for (Slot& slot : slots_) {
    if (slot.taken && slot.ticket == ticket) slot.taken = false;
  }
}

NixlExporter::Slot* NixlExporter::FindSlot(Clock::time_point now) {
  for (Slot& slot : slots_) {
    if (!slot.taken) return &slot;
  }
  const auto oldest = std::min_element(slots_.begin(), slots_.end(), [](const Slot& left, const Slot& right) {
    return left.leased_until < right.leased_until;
  });
  return oldest->leased_until <= now ? &*oldest : nullptr;
}

bool NixlExporter::IsSound(const CopyProgram& program) const {
  if (program.rectangles.size() > kRectanglesOfOneMax) return false;
  const int64_t slot_bytes = static_cast<int64_t>(staging_.slot_bytes);
  try {
    CheckProgram(program, region_bytes_, std::span<const int64_t>(&slot_bytes, 1), {});
    return true;
  } catch (const NativeError&) {
    return false;
  }
}

void NixlExporter::Pack(size_t slot, const CopyProgram& program) {
  const CopyTarget target{memory_ + staging_.SlotOffset(slot), staging_.slot_bytes};
  for (const Rectangle& rectangle : program.rectangles) {
    const CopyWalk walk(program, rectangle, regions_[static_cast<size_t>(rectangle.source_region)], target);
    walk.Copy(0, walk.bytes());
  }
}

}  // namespace state_handoff
