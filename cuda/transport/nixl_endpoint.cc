#include "nixl_endpoint.h"

#include <algorithm>
#include <utility>

namespace state_handoff {

namespace {

using std::chrono::microseconds;

// How long the transport's thread sleeps when nothing moved: short while something is under way, so that an end is seen
// soon; longer the longer nothing happens, so that a peer that does not answer costs next to nothing.
constexpr microseconds kSleepMin{20};
constexpr microseconds kSleepMax{2'000};
// While nothing is under way here but peers may ask for packed chunks.
constexpr microseconds kServeMin{100};
constexpr microseconds kServeMax{5'000};

// Makes a GPU's primary context current on this thread, where there is one; UCX leaves out what needs it otherwise.
class DeviceScope {
 public:
  explicit DeviceScope(const CudaDevice* device) : device_(device) {
    if (device_ != nullptr && device_->driver().ContextPush(device_->context()) != kCudaSuccess) device_ = nullptr;
  }
  ~DeviceScope() {
    CudaContext popped;
    if (device_ != nullptr) device_->driver().ContextPop(&popped);
  }
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  const CudaDevice* device_;
};

}  // namespace

NixlEndpoint::NixlEndpoint(Options options, std::function<void()> wake)
    : options_(std::move(options)), ring_(std::make_shared<CompletionRing>(options_.transfers_max, std::move(wake))) {}

NixlEndpoint::~NixlEndpoint() { Close(); }

void NixlEndpoint::CheckOpen() const {
  if (closed_) throw NativeError(ErrorCode::kCLOSED, "the NIXL transport is closed");
}

size_t NixlEndpoint::AddRegion(NixlRegion region) {
  CheckOpen();
  if (started_) throw NativeError(ErrorCode::kARGUMENT_INVALID, "region: expected all regions before the start");
  if (device_ == nullptr && region.gpu() != nullptr) device_ = region.gpu()->device();
  regions_.push_back(std::move(region));
  return regions_.size() - 1;
}

std::vector<NixlRange> NixlEndpoint::Ranges() const {
  std::vector<NixlRange> ranges;
  for (const NixlRegion& region : regions_) ranges.push_back(region.range());
  return ranges;
}

void NixlEndpoint::Start(bool probe) {
  CheckOpen();
  if (started_) throw NativeError(ErrorCode::kARGUMENT_INVALID, "start: expected to be called once");
  started_ = true;
  setup_.Post([this, probe] {
    try {
      const DeviceScope current(device_.get());
      Prepare(probe);
      readiness_.store(Readiness::kReady, std::memory_order_release);
    } catch (const NativeError& error) {
      error_code_ = error.code();
      error_message_ = error.what();
      readiness_.store(Readiness::kFailed, std::memory_order_release);
    } catch (const std::bad_alloc&) {
      error_code_ = ErrorCode::kNATIVE_SYSTEM;
      error_message_ = "the NIXL transport did not start because memory ran out";
      readiness_.store(Readiness::kFailed, std::memory_order_release);
    }
    ring_->Ring();
    Nudge();
  });
  thread_.Start(1, "handoff-nixl", [this] { Run(); });
}

void NixlEndpoint::Prepare(bool probe) {
  api_ = NixlApi::Load(options_.candidates);
  library_path_ = api_->path;
  if (device_ != nullptr) {
    try {
      copies_ = std::make_unique<GpuChunkCopies>(device_, options_.kernels);
    } catch (const NativeError& error) {
      if (error.code() != ErrorCode::kTRANSPORT_UNAVAILABLE) throw;
      // No kernels: slices of GPU memory are read as they lie.
    }
  }
  if (options_.exports) {
    const bool packs = device_ == nullptr || copies_ != nullptr;
    exporter_ = std::make_unique<NixlExporter>(api_, options_.name, Ranges(), packs ? options_.slots : 0,
                                               device_ == nullptr ? options_.slot_bytes : options_.gpu_slot_bytes,
                                               copies_.get());
  } else if (probe) {
    NixlAgent agent(api_, options_.name + "-probe", false, device_ != nullptr);
    for (const NixlRange& range : Ranges()) {
      if (range.memory == kNixlVram) agent.Register(range);
    }
  }
}

NixlGrant NixlEndpoint::Grant() {
  CheckOpen();
  if (readiness() != Readiness::kReady) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "grant: expected a transport that is ready");
  }
  NixlGrant grant;
  if (exporter_ == nullptr) return grant;
  granted_ = true;
  grant.metadata = exporter_->metadata();
  grant.staging = exporter_->staging();
  grant.regions = Ranges();
  return grant;
}

uint64_t NixlEndpoint::Connect(NixlGrant grant) {
  CheckOpen();
  if (readiness() != Readiness::kReady) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "connect: expected a transport that is ready");
  }
  const uint64_t id = ++last_id_;
  const auto link = std::make_shared<NixlLink>(id, std::move(grant), Ranges(), copies_.get());
  const std::string name = options_.name + "-" + std::to_string(id);
  setup_.Post([this, link, name] {
    const DeviceScope current(device_.get());
    link->Build(api_, name);
    ring_->Ring();
    Nudge();
  });
  links_.emplace(id, link);
  link_count_.fetch_add(1, std::memory_order_relaxed);
  const std::lock_guard lock(mutex_);
  new_links_.push_back(link);
  return id;
}

const NixlLink& NixlEndpoint::Link(uint64_t link) const {
  const auto found = links_.find(link);
  if (found != links_.end()) return *found->second;
  throw NativeError(ErrorCode::kARGUMENT_INVALID,
                    "peer: expected a peer that is connected, got " + std::to_string(link));
}

void NixlEndpoint::Disconnect(uint64_t link) {
  (void)Link(link);
  links_.erase(link);
  {
    const std::lock_guard lock(mutex_);
    leaving_links_.push_back(link);
  }
  Nudge();
}

uint64_t NixlEndpoint::Begin(uint64_t link, CopyProgram program, NixlShare share) {
  CheckOpen();
  const auto found = links_.find(link);
  if (found == links_.end()) (void)Link(link);
  std::vector<NixlRegionUse> uses;
  std::vector<bool> used(regions_.size());
  for (const Rectangle& rectangle : program.rectangles) {
    const auto region = static_cast<size_t>(rectangle.target_region);
    if (region >= regions_.size() || used[region]) continue;  // one that is none is refused by the check
    used[region] = true;
    uses.push_back(regions_[region].Use("targetRegion"));
  }
  ring_->Reserve();
  const uint64_t id = ++last_id_;
  auto transfer =
      std::make_shared<NixlTransfer>(id, found->second, std::move(program), share, std::move(uses), options_.tuning);
  transfers_.emplace(id, transfer);
  {
    const std::lock_guard lock(mutex_);
    new_transfers_.push_back(std::move(transfer));
  }
  Nudge();
  return id;
}

const NixlTransfer& NixlEndpoint::Find(uint64_t transfer) const {
  const auto found = transfers_.find(transfer);
  if (found != transfers_.end()) return *found->second;
  throw NativeError(ErrorCode::kARGUMENT_INVALID,
                    "transfer: expected a transfer that was not forgotten, got " + std::to_string(transfer));
}

void NixlEndpoint::Cancel(uint64_t transfer) {
  (void)Find(transfer);
  transfers_.at(transfer)->Cancel();
  Nudge();
}

void NixlEndpoint::AttestPeerDead(uint64_t transfer) {
  (void)Find(transfer);
  transfers_.at(transfer)->AttestPeerDead();
  Nudge();
}

void NixlEndpoint::Forget(uint64_t transfer) {
  if (!Find(transfer).is_final()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "transfer: expected one that is over");
  }
  transfers_.erase(transfer);
}

NixlCounters NixlEndpoint::Counters() const {
  NixlCounters counters;
  counters.links = link_count_.load(std::memory_order_relaxed);
  counters.prepared_lists = list_count_.load(std::memory_order_relaxed);
  counters.pack_refusals = refusals_.load(std::memory_order_relaxed);
  if (!closed_ && readiness() == Readiness::kReady && exporter_ != nullptr)
    counters.packed_chunks = exporter_->packed_chunks();
  return counters;
}

void NixlEndpoint::Nudge() {
  const std::lock_guard lock(mutex_);
  nudged_ = true;
  changed_.notify_one();
}

void NixlEndpoint::Run() {
  const DeviceScope current(device_.get());
  microseconds sleep = kSleepMin;
  for (;;) {
    const bool moved = Turn();
    const bool serves = readiness() == Readiness::kReady && exporter_ != nullptr && options_.slots > 0;
    std::unique_lock lock(mutex_);
    if (stopping_ && readiness() != Readiness::kStarting && active_.empty() && connected_.empty()) break;
    if (nudged_) {
      nudged_ = false;
      sleep = kSleepMin;
      continue;
    }
    if (moved) {
      sleep = kSleepMin;
      continue;
    }
    const bool busy = !active_.empty() || stopping_ || (serves && exporter_->packing());
    if (!busy && !serves) {
      changed_.wait(lock, [this] { return nudged_; });
    } else {
      const microseconds most = busy ? kSleepMax : kServeMax;
      changed_.wait_for(lock, std::max(sleep, busy ? kSleepMin : kServeMin), [this] { return nudged_; });
      sleep = std::min(sleep * 5 / 4 + microseconds(1), most);
    }
    nudged_ = false;
  }
  exporter_.reset();
  copies_.reset();
}

bool NixlEndpoint::Turn() {
  moved_ = false;
  TakeArrivals();
  if (readiness() == Readiness::kReady && exporter_ != nullptr) {
    if (exporter_->Serve(NixlExporter::Clock::now())) moved_ = true;
  }
  StepTransfers();
  return moved_;
}

void NixlEndpoint::TakeArrivals() {
  bool stopping;
  {
    const std::lock_guard lock(mutex_);
    stopping = stopping_;
    for (std::shared_ptr<NixlLink>& link : new_links_) connected_[link->id()].link = std::move(link);
    new_links_.clear();
    for (std::shared_ptr<NixlTransfer>& transfer : new_transfers_) active_.push_back(std::move(transfer));
    new_transfers_.clear();
    for (const uint64_t link : leaving_links_) {
      const auto found = connected_.find(link);
      if (found != connected_.end()) found->second.leaving = true;
    }
    leaving_links_.clear();
  }
  if (!stopping) return;
  for (const std::shared_ptr<NixlTransfer>& transfer : active_) {
    transfer->Cancel();
    transfer->BeginClose();
  }
  for (auto& [id, connected] : connected_) {
    Lose(connected, ErrorCode::kCLOSED, "the NIXL transport was closed on this side");
    connected.leaving = true;
  }
}

void NixlEndpoint::StepTransfers() {
  const auto now = NixlTransfer::Clock::now();
  for (const std::shared_ptr<NixlTransfer>& transfer : active_) {
    Connected& connected = connected_.at(transfer->link().id());
    const NixlTransferStatus before = transfer->status();
    if (transfer->Step(connected.watch, now)) moved_ = true;
    if (transfer->link_fault()) Lose(connected, transfer->link_fault()->first, transfer->link_fault()->second);
    if (transfer->status() == before) continue;
    // The first change takes the transfer's place in the ring; later ones only say that there is something to see.
    if (before == NixlTransferStatus::kActive) {
      ring_->Push(transfer->id());
    } else {
      ring_->Ring();
    }
  }
  std::erase_if(active_, [this](const std::shared_ptr<NixlTransfer>& transfer) {
    if (transfer->is_final() && transfer->packed_in_vain()) refusals_.fetch_add(1, std::memory_order_relaxed);
    return transfer->is_final();
  });
  int64_t lists = 0;
  for (auto at = connected_.begin(); at != connected_.end();) {
    Connected& connected = at->second;
    if (connected.link->status() == NixlLinkStatus::kReady) {
      try {
        if (connected.watch.Step(*connected.link)) moved_ = true;
      } catch (const NativeError& error) {
        Lose(connected, error.code(), error.what());
      }
      lists += static_cast<int64_t>(connected.link->list_count());
    }
    const bool used = std::any_of(active_.begin(), active_.end(), [&](const std::shared_ptr<NixlTransfer>& transfer) {
      return &transfer->link() == connected.link.get();
    });
    if (connected.leaving && !used) {
      Lose(connected, ErrorCode::kCLOSED, "the connection to the peer was closed on this side");
      if (connected.link->stopped()) {
        link_count_.fetch_sub(1, std::memory_order_relaxed);
        at = connected_.erase(at);
        moved_ = true;
        continue;
      }
    }
    ++at;
  }
  list_count_.store(lists, std::memory_order_relaxed);
}

void NixlEndpoint::Lose(Connected& connected, ErrorCode code, const std::string& message) {
  const std::shared_ptr<NixlLink>& link = connected.link;
  // One that failed by itself has stopped by itself.
  if (!link->Fail(code, message)) return;
  moved_ = true;
  for (const std::shared_ptr<NixlTransfer>& transfer : active_) {
    if (&transfer->link() != link.get()) continue;
    const bool was_active = transfer->status() == NixlTransferStatus::kActive;
    transfer->Drop(code, message);
    if (was_active && transfer->status() != NixlTransferStatus::kActive) ring_->Push(transfer->id());
  }
  connected.watch.Drop();
  link->DropLists();
  setup_.Post([this, link] {
    const DeviceScope current(device_.get());
    link->Stop();
    ring_->Ring();
    Nudge();
  });
}

void NixlEndpoint::BeginClose() {
  if (closed_) return;
  closed_ = true;
  links_.clear();
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    nudged_ = true;
    changed_.notify_one();
  }
}

bool NixlEndpoint::quiet() {
  if (!closed_ || !thread_.idle()) return false;
  setup_.BeginStop();
  return setup_.quiet();
}

void NixlEndpoint::Close() {
  BeginClose();
  thread_.Join();
  setup_.Stop();
  if (granted_) {
    // Importers may have it mapped for as long as they live, and freeing it under them is undefined.
    for (const NixlRegion& region : regions_) {
      if (region.gpu() != nullptr) region.gpu()->LeaveToDriver();
    }
  }
  regions_.clear();
}

}  // namespace state_handoff
