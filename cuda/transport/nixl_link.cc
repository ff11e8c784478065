#include "nixl_link.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

namespace state_handoff {

namespace {

constexpr size_t kBufferCount = 4;
constexpr size_t kPageBytes = 4096;
// Entries of one prepared list; geometries that need more are prepared for each read.
constexpr int64_t kListMax = int64_t{1} << 19;
constexpr int64_t kHostBufferBytesMax = 512 << 10;
// Geometries that are remembered; instances of one layout need a handful.
constexpr size_t kPlanesMax = 64;

int64_t PlaneCount(const Rectangle& rectangle) {
  int64_t planes = 1;
  for (int i = 0; i < rectangle.loop_count; ++i) planes *= rectangle.loops[static_cast<size_t>(i)].count;
  return planes;
}

// How many blocks have all planes inside the region.
int64_t BlockCount(const Rectangle& rectangle, bool source, int64_t block_stride, uint64_t region_bytes) {
  int64_t reach = (source ? rectangle.source_offset : rectangle.target_offset) + rectangle.fragment_bytes;
  for (int i = 0; i < rectangle.loop_count; ++i) {
    const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
    reach += (loop.count - 1) * (source ? loop.source_stride : loop.target_stride);
  }
  return block_stride == 0 ? 1 : (static_cast<int64_t>(region_bytes) - reach) / block_stride + 1;
}

std::vector<NixlRange> PlaneRanges(const Rectangle& rectangle, bool source, int64_t block_stride, int64_t blocks,
                                   const NixlRange& region) {
  std::vector<NixlRange> ranges;
  const int64_t planes = PlaneCount(rectangle);
  ranges.reserve(static_cast<size_t>(planes * blocks));
  for (int64_t plane = 0; plane < planes; ++plane) {
    int64_t at = source ? rectangle.source_offset : rectangle.target_offset;
    int64_t rest = plane;
    for (int i = rectangle.loop_count - 1; i >= 0; --i) {
      const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
      at += rest % loop.count * (source ? loop.source_stride : loop.target_stride);
      rest /= loop.count;
    }
    for (int64_t block = 0; block < blocks; ++block) {
      ranges.push_back(NixlRange{region.address + static_cast<uint64_t>(at + block * block_stride),
                                 static_cast<uint64_t>(rectangle.fragment_bytes), region.memory, region.device});
    }
  }
  return ranges;
}

std::string GeometryKey(const Rectangle& rectangle, const Table* table) {
  std::vector<int64_t> values{rectangle.source_region,
                              rectangle.target_region,
                              rectangle.source_offset,
                              rectangle.target_offset,
                              rectangle.fragment_bytes,
                              table == nullptr ? 0 : table->source_block,
                              table == nullptr ? 0 : table->target_block};
  for (int i = 0; i < rectangle.loop_count; ++i) {
    const Loop& loop = rectangle.loops[static_cast<size_t>(i)];
    values.insert(values.end(), {loop.count, loop.source_stride, loop.target_stride});
  }
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(int64_t));
}

uint64_t RandomNumber() {
  std::random_device random;
  return (uint64_t{random()} << 32) | random();
}

// No more than these two are of it: where it is, not how much.
NixlRange MemoryOf(const GpuChunkCopies* copies) {
  if (copies == nullptr) return NixlRange{0, 0};
  return NixlRange{0, 0, kNixlVram, static_cast<uint64_t>(copies->device()->ordinal())};
}

}  // namespace

NixlLink::NixlLink(uint64_t id, NixlGrant grant, std::vector<NixlRange> targets, GpuChunkCopies* copies)
    : id_(id),
      grant_(std::move(grant)),
      targets_(std::move(targets)),
      copies_(copies),
      scattered_(MemoryOf(copies)),
      secret_(RandomNumber()) {}

NixlLink::~NixlLink() {
  planes_.clear();
  agent_.reset();
  if (memory_ != nullptr) munmap(memory_, memory_bytes_);
}

void NixlLink::Build(const std::shared_ptr<const NixlApi>& api, const std::string& name) noexcept {
  try {
    if (status() != NixlLinkStatus::kConnecting) return;
    // No thread of its own: what the peer answers is taken in when a read is polled, and at no other time.
    const bool gpu = std::any_of(targets_.begin(), targets_.end(),
                                 [](const NixlRange& target) { return target.memory == kNixlVram; });
    agent_ = std::make_unique<NixlAgent>(api, name, false, gpu);
    for (const NixlRange& target : targets_) agent_->Register(target);
    peer_ = agent_->LoadPeer(grant_.metadata);
    NixlLinkStatus expected = NixlLinkStatus::kConnecting;
    const std::lock_guard lock(mutex_);
    status_.compare_exchange_strong(expected, NixlLinkStatus::kReady, std::memory_order_acq_rel);
  } catch (const NativeError& error) {
    Fail(error.code(), error.what());
    Stop();
  } catch (const std::bad_alloc&) {
    Fail(ErrorCode::kNATIVE_SYSTEM, "the connection was not made because memory ran out");
    Stop();
  }
}

void NixlLink::Stop() noexcept {
  agent_.reset();
  stopped_.store(true, std::memory_order_release);
}

bool NixlLink::Fail(ErrorCode code, const std::string& message) {
  const std::lock_guard lock(mutex_);
  if (status() == NixlLinkStatus::kFailed) return false;
  error_code_ = code;
  error_message_ = message;
  status_.store(NixlLinkStatus::kFailed, std::memory_order_release);
  return true;
}

std::shared_ptr<const NixlPlanes> NixlLink::PlanesOf(const Rectangle& rectangle, const Table* table) {
  if (table != nullptr && (!table->source_sub.empty() || !table->target_sub.empty())) return nullptr;
  const int64_t source_block = table == nullptr ? 0 : table->source_block;
  const int64_t target_block = table == nullptr ? 0 : table->target_block;
  const NixlRange& remote = grant_.regions[static_cast<size_t>(rectangle.source_region)];
  const NixlRange& local = targets_[static_cast<size_t>(rectangle.target_region)];
  const int64_t remote_blocks = BlockCount(rectangle, true, source_block, remote.bytes);
  const int64_t local_blocks = BlockCount(rectangle, false, target_block, local.bytes);
  const int64_t planes = PlaneCount(rectangle);
  if (planes > kListMax || std::max(remote_blocks, local_blocks) > kListMax / planes) return nullptr;
  const std::string key = GeometryKey(rectangle, table);
  const auto known = planes_.find(key);
  if (known != planes_.end()) return known->second;
  auto made = std::make_shared<NixlPlanes>();
  made->local_blocks = local_blocks;
  made->remote_blocks = remote_blocks;
  made->local = agent_->Prepare("", PlaneRanges(rectangle, false, target_block, local_blocks, local));
  made->remote = agent_->Prepare(peer_, PlaneRanges(rectangle, true, source_block, remote_blocks, remote));
  if (planes_.size() >= kPlanesMax) planes_.clear();
  planes_.emplace(key, made);
  return made;
}

NixlPending NixlLink::Read(const std::vector<NixlRange>& local, const std::vector<NixlRange>& remote, int64_t bytes) {
  auto lists = std::make_shared<NixlPlanes>();
  lists->local = agent_->Prepare("", local);
  lists->remote = agent_->Prepare(peer_, remote);
  std::vector<int> indices(local.size());
  for (size_t i = 0; i < indices.size(); ++i) indices[i] = static_cast<int>(i);
  return Read(std::move(lists), indices, indices, bytes);
}

NixlPending NixlLink::Read(std::shared_ptr<const NixlPlanes> planes, const std::vector<int>& local,
                           const std::vector<int>& remote, int64_t bytes) {
  std::unique_ptr<NixlRead> read = agent_->MakeRead(*planes->local, local, *planes->remote, remote);
  return NixlPending{std::move(planes), std::move(read), bytes};
}

bool NixlLink::CanPack(const Rectangle& rectangle) const {
  return grant_.staging.slots > 0 &&
         grant_.regions[static_cast<size_t>(rectangle.source_region)].IsWith(grant_.staging.data) &&
         targets_[static_cast<size_t>(rectangle.target_region)].IsWith(scattered_);
}

int64_t NixlLink::chunk_bytes() const {
  const auto slot_bytes = static_cast<int64_t>(grant_.staging.slot_bytes);
  return copies_ == nullptr ? std::min(slot_bytes, kHostBufferBytesMax) : slot_bytes;
}

std::optional<NixlRange> NixlLink::TakeBuffer() {
  if (free_buffers_.empty()) return std::nullopt;
  const NixlRange buffer = free_buffers_.back();
  free_buffers_.pop_back();
  return buffer;
}

void NixlLink::MakeBuffers() {
  if (memory_ != nullptr) return;
  const size_t front = (grant_.staging.headers_bytes() + kPageBytes - 1) / kPageBytes * kPageBytes;
  const auto each = static_cast<uint64_t>(chunk_bytes());
  const size_t bytes = front + (copies_ == nullptr ? kBufferCount * each : 0);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (memory == MAP_FAILED) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM,
                      "no " + std::to_string(bytes) + " bytes to receive packed state because " + std::strerror(errno));
  }
  memory_ = static_cast<uint8_t*>(memory);
  memory_bytes_ = bytes;
  agent_->Register(NixlRange{reinterpret_cast<uint64_t>(memory), bytes});
  NixlRange all{reinterpret_cast<uint64_t>(memory) + front, kBufferCount * each};
  if (copies_ != nullptr) {
    gpu_buffers_ = CudaRegion::Allocate(copies_->device(), all.bytes, false);
    all = NixlRange{gpu_buffers_->address(), all.bytes, scattered_.memory, scattered_.device};
    agent_->Register(all);
  }
  for (size_t i = 0; i < kBufferCount; ++i) free_buffers_.push_back(all.Part(i * each, each));
}

std::shared_ptr<GpuChunkCopies::Copy> NixlLink::Scatter(const CopyProgram& unpack, const NixlRange& buffer,
                                                        int64_t bytes, int64_t among) {
  if (copies_ != nullptr) {
    std::vector<PlanRegion> targets;
    for (const NixlRange& each : targets_)
      targets.push_back(PlanRegion{each.address, static_cast<int64_t>(each.bytes)});
    return copies_->Start(unpack, {PlanRegion{buffer.address, bytes}}, targets);
  }
  const CopySource source{reinterpret_cast<const uint8_t*>(buffer.address), static_cast<size_t>(bytes)};
  for (const Rectangle& rectangle : unpack.rectangles) {
    const NixlRange& target = targets_[static_cast<size_t>(rectangle.target_region)];
    const CopyTarget into{reinterpret_cast<uint8_t*>(target.address), target.bytes};
    const CopyWalk walk(unpack, rectangle, source, into, among);
    walk.Copy(0, walk.bytes());
  }
  return nullptr;
}

}  // namespace state_handoff
