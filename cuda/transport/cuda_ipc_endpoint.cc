#include "cuda_ipc_endpoint.h"

#include <utility>

namespace state_handoff {

CudaIpcEndpoint::CudaIpcEndpoint(Options options, std::function<void()> wake)
    : options_(std::move(options)),
      card_(HostRegion::Allocate(sizeof(CudaIpcCard), "state-handoff-cuda-ipc")),
      export_(std::make_shared<CudaIpcExport>()),
      exports_(std::make_shared<HostExports>(options_.blocks, options_.slots)),
      ring_(std::make_shared<CompletionRing>(options_.transfers_max, std::move(wake))),
      executor_(options_.kernels, [ring = ring_](const GpuTransfer& transfer) { ring->Push(transfer.id()); }) {
  const uint64_t id = NextExportId();
  auto* card = reinterpret_cast<CudaIpcCard*>(card_->memory()->data());
  card->magic = kCardMagic;
  card->process = ProcessToken();
  card->export_id = id;
  registration_ = RegisterExport(id, export_);
  exports_->AddRegion(card_);
}

CudaIpcEndpoint::~CudaIpcEndpoint() { Close(); }

void CudaIpcEndpoint::CheckOpen() const {
  if (closed_) throw NativeError(ErrorCode::kCLOSED, "the transport is closed");
}

size_t CudaIpcEndpoint::AddRegion(std::shared_ptr<CudaRegion> region) {
  CheckOpen();
  std::vector<std::shared_ptr<CudaRegion>>& regions = export_->regions;
  if (regions.size() == kCardRegionsMax) {
    throw NativeError(ErrorCode::kNATIVE_LIMIT, "the region was not registered because a transport takes at most " +
                                                    std::to_string(kCardRegionsMax) +
                                                    "; allocate fewer and larger ones");
  }
  region->device()->LoadKernels(options_.kernels);
  CudaRegionUse use(region, "region");
  const CudaRegion::IpcHandle handle = region->Export();
  auto* card = reinterpret_cast<CudaIpcCard*>(card_->memory()->data());
  card->entries[regions.size()] =
      CardEntry{handle.allocation, region->device()->uuid(), handle.offset, static_cast<uint64_t>(region->bytes())};
  shown_.push_back(std::move(use));
  regions.push_back(std::move(region));
  return regions.size() - 1;
}

SocketAddress CudaIpcEndpoint::Listen(bool abstract, const std::string& directory, const std::string& name,
                                      const Token& token) {
  CheckOpen();
  auto listener = std::make_unique<HostListener>(abstract, directory, name);
  const SocketAddress address = listener->address();
  const std::shared_ptr<HostChannel> broker = MakeBroker(loop_, std::move(listener), exports_, token);
  loop_.Start();
  loop_.Post([this, broker] { loop_.Add(broker); });
  return address;
}

uint64_t CudaIpcEndpoint::Connect(HostGrant grant) {
  CheckOpen();
  if (grant.region_bytes.size() > kCardRegionsMax) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "regionBytes: expected at most " + std::to_string(kCardRegionsMax) + " regions");
  }
  loop_.Start();
  const uint64_t id = ++last_id_;
  Peer peer;
  peer.region_bytes = std::make_shared<std::vector<uint64_t>>(std::move(grant.region_bytes));
  grant.region_bytes = {sizeof(CudaIpcCard)};  // what the broker hands over
  peer.link = std::make_shared<PeerLink>([ring = ring_] { ring->Ring(); });
  peer.source = std::make_shared<std::shared_ptr<CudaIpcSource>>();
  const std::shared_ptr<HostChannel> channel = MakeLinkChannel(peer.link, std::move(grant));
  peer.channel = channel;
  peers_.emplace(id, std::move(peer));
  loop_.Post([this, channel] { loop_.Add(channel); });
  return id;
}

const PeerLink& CudaIpcEndpoint::Link(uint64_t peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "peer: expected a connected peer, got id " + std::to_string(peer));
  }
  return *found->second.link;
}

void CudaIpcEndpoint::Disconnect(uint64_t peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.link->Fail(ErrorCode::kCLOSED, "the connection to the peer was closed on this side");
  if (const std::shared_ptr<HostChannel> channel = found->second.channel.lock()) {
    loop_.Post([this, channel] { loop_.Remove(channel); });
  }
  DropSource(found->second);
  peers_.erase(found);
}

void CudaIpcEndpoint::DropSource(const Peer& peer) {
  std::shared_ptr<CudaIpcSource> dropped;
  {
    const std::lock_guard lock(sources_mutex_);
    dropped.swap(*peer.source);
  }
  if (dropped != nullptr) executor_.LetGo(std::move(dropped));
}

uint64_t CudaIpcEndpoint::Begin(uint64_t peer, CopyProgram program, ClaimedGenerations blocks,
                                ClaimedGenerations slots) {
  CheckOpen();
  Link(peer);
  const uint64_t id = ++last_id_;
  auto transfer =
      std::make_shared<GpuTransfer>(id, std::move(program), export_->regions, std::move(blocks), std::move(slots));
  executor_.Start();
  ring_->Reserve();
  transfers_.emplace(id, transfer);
  const Peer& found = peers_.at(peer);
  // The link holds the task, so the task must not hold the link.
  found.link->WhenSettled([this, raw = found.link.get(), transfer, source = found.source, bytes = found.region_bytes] {
    const std::shared_ptr<PeerMemory> memory = raw->memory();
    if (memory == nullptr) {
      executor_.Refuse(transfer, raw->error_code(), raw->error_message());
      return;
    }
    std::shared_ptr<CudaIpcSource> shared;
    {
      const std::lock_guard lock(sources_mutex_);
      if (*source == nullptr) *source = std::make_shared<CudaIpcSource>(memory, *bytes);
      shared = *source;
    }
    executor_.Submit(transfer, std::move(shared));
  });
  return id;
}

const GpuTransfer& CudaIpcEndpoint::Find(uint64_t transfer) const {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "transfer: expected a transfer of this transport, got id " + std::to_string(transfer));
  }
  return *found->second;
}

void CudaIpcEndpoint::Cancel(uint64_t transfer) {
  Find(transfer);
  executor_.Cancel(transfers_.at(transfer));
}

std::vector<uint64_t> CudaIpcEndpoint::TakeChanged() {
  // A peer that is gone is not read again: its mappings close with the last transfer that uses them.
  for (auto& [id, peer] : peers_) {
    if (peer.link->status() == LinkStatus::kFailed) DropSource(peer);
  }
  return ring_->Take();
}

void CudaIpcEndpoint::Forget(uint64_t transfer) {
  const GpuStatus status = Find(transfer).status();
  if (status == GpuStatus::kActive) throw NativeError(ErrorCode::kINVARIANT, "an active transfer was forgotten");
  if (status != GpuStatus::kInDoubt) transfers_.erase(transfer);
}

void CudaIpcEndpoint::BeginClose() {
  if (!closed_ && exports_->importers() > 0) {
    // Freeing what another process still maps is undefined.
    for (const std::shared_ptr<CudaRegion>& region : export_->regions) region->LeaveToDriver();
  }
  closed_ = true;
  for (const auto& [id, peer] : peers_) peer.link->Fail(ErrorCode::kCLOSED, "the transport is closed");
  executor_.BeginStop();
  loop_.BeginStop();
}

void CudaIpcEndpoint::Close() {
  BeginClose();
  loop_.Stop();
  executor_.Stop();
  if (finished_) return;
  finished_ = true;
  peers_.clear();
  registration_.reset();
  shown_.clear();
}

}  // namespace state_handoff
