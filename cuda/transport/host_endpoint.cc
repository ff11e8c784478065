#include "host_endpoint.h"

#include <utility>

namespace state_handoff {

namespace {

GenerationTable TableOf(const std::shared_ptr<HostMapping>& mapping) {
  if (mapping == nullptr) return GenerationTable{};
  return GenerationTable{reinterpret_cast<const std::atomic<uint64_t>*>(mapping->data()),
                         mapping->bytes() / sizeof(uint64_t)};
}

TransferSource SourceOf(const std::shared_ptr<PeerMemory>& memory) {
  TransferSource source;
  source.regions.reserve(memory->regions.size());
  for (const std::shared_ptr<HostMapping>& region : memory->regions) {
    source.regions.push_back(CopySource{region->data(), region->bytes()});
  }
  source.blocks = TableOf(memory->block_generations);
  source.slots = TableOf(memory->slot_generations);
  source.keep = memory;
  return source;
}

}  // namespace

HostEndpoint::HostEndpoint(Options options, std::function<void()> wake)
    : options_(std::move(options)),
      exports_(std::make_shared<HostExports>(options_.blocks, options_.slots)),
      ring_(std::make_shared<CompletionRing>(options_.transfers_max, std::move(wake))),
      executor_(options_.threads, [ring = ring_](const Transfer& transfer) { ring->Push(transfer.id()); }) {}

HostEndpoint::~HostEndpoint() { Close(); }

void HostEndpoint::CheckOpen() const {
  if (closed_) throw NativeError(ErrorCode::kCLOSED, "the transport is closed");
}

size_t HostEndpoint::AddRegion(std::shared_ptr<HostRegion> region) {
  CheckOpen();
  if (region->memory() == nullptr) {
    throw NativeError(ErrorCode::kCLOSED, "region: expected an open region, got a closed one");
  }
  return exports_->AddRegion(std::move(region));
}

SocketAddress HostEndpoint::Listen(bool abstract, const std::string& directory, const std::string& name,
                                   const Token& token) {
  CheckOpen();
  auto listener = std::make_unique<HostListener>(abstract, directory, name);
  const SocketAddress address = listener->address();
  const std::shared_ptr<HostChannel> broker = MakeBroker(loop_, std::move(listener), exports_, token);
  loop_.Start();
  loop_.Post([this, broker] { loop_.Add(broker); });
  return address;
}

uint64_t HostEndpoint::Connect(HostGrant grant) {
  CheckOpen();
  loop_.Start();
  const uint64_t id = ++last_id_;
  auto link = std::make_shared<PeerLink>([ring = ring_] { ring->Ring(); });
  const std::shared_ptr<HostChannel> channel = MakeLinkChannel(link, std::move(grant));
  peers_.emplace(id, Peer{link, channel});
  loop_.Post([this, channel] { loop_.Add(channel); });
  return id;
}

const PeerLink& HostEndpoint::Link(uint64_t peer) const {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "peer: expected a connected peer, got id " + std::to_string(peer));
  }
  return *found->second.link;
}

void HostEndpoint::Disconnect(uint64_t peer) {
  const auto found = peers_.find(peer);
  if (found == peers_.end()) return;
  found->second.link->Fail(ErrorCode::kCLOSED, "the connection to the peer was closed on this side");
  if (const std::shared_ptr<HostChannel> channel = found->second.channel.lock()) {
    loop_.Post([this, channel] { loop_.Remove(channel); });
  }
  peers_.erase(found);
}

void HostEndpoint::Launch(const PeerLink& link, const std::shared_ptr<Transfer>& transfer) {
  if (const std::shared_ptr<PeerMemory> memory = link.memory()) {
    executor_.Submit(transfer, SourceOf(memory));
  } else {
    executor_.Refuse(transfer, link.error_code(), link.error_message());
  }
}

uint64_t HostEndpoint::Begin(uint64_t peer, CopyProgram program, ClaimedGenerations blocks, ClaimedGenerations slots) {
  CheckOpen();
  Link(peer);
  const std::shared_ptr<PeerLink> link = peers_.at(peer).link;
  const std::shared_ptr<const HostExports::Regions> regions = exports_->regions();
  TransferTarget target;
  target.regions.reserve(regions->size());
  for (const std::shared_ptr<HostRegion>& region : *regions) {
    target.regions.push_back(CopyTarget{nullptr, region->bytes()});
  }
  for (const Rectangle& rectangle : program.rectangles) {
    const auto index = static_cast<size_t>(rectangle.target_region);
    if (index >= regions->size() || target.regions[index].data != nullptr) continue;  // the check refuses the first
    target.uses.emplace_back((*regions)[index], "regions[" + std::to_string(index) + "]");
    target.regions[index].data = target.uses.back().data();
  }
  executor_.Start();
  const uint64_t id = ++last_id_;
  auto transfer = std::make_shared<Transfer>(id, std::move(program), std::move(target), std::move(blocks),
                                             std::move(slots), options_.rules);
  ring_->Reserve();
  transfers_.emplace(id, transfer);
  // The link holds the task, so the task must not hold the link.
  link->WhenSettled([this, raw = link.get(), transfer] { Launch(*raw, transfer); });
  return id;
}

const Transfer& HostEndpoint::Find(uint64_t transfer) const {
  const auto found = transfers_.find(transfer);
  if (found == transfers_.end()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      "transfer: expected a transfer of this transport, got id " + std::to_string(transfer));
  }
  return *found->second;
}

void HostEndpoint::Cancel(uint64_t transfer) {
  Find(transfer);
  executor_.Cancel(transfers_.at(transfer));
}

std::vector<uint64_t> HostEndpoint::TakeChanged() { return ring_->Take(); }

void HostEndpoint::Forget(uint64_t transfer) {
  if (Find(transfer).status() == TransferStatus::kActive) {
    throw NativeError(ErrorCode::kINVARIANT, "an active transfer was forgotten");
  }
  transfers_.erase(transfer);
}

size_t HostEndpoint::ActiveCount() const {
  size_t count = 0;
  for (const auto& [id, transfer] : transfers_) count += transfer->status() == TransferStatus::kActive;
  return count;
}

void HostEndpoint::BeginClose() {
  closed_ = true;
  for (const auto& [id, peer] : peers_) peer.link->Fail(ErrorCode::kCLOSED, "the transport is closed");
  executor_.BeginStop();
  loop_.BeginStop();
}

void HostEndpoint::Close() {
  BeginClose();
  loop_.Stop();
  executor_.Stop();
}

}  // namespace state_handoff
