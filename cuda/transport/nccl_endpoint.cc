#include "nccl_endpoint.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

namespace state_handoff {

namespace {

using std::chrono::microseconds;

// So long after something moved, the thread looks again at once while a transfer is under way: a chunk takes about as
// long, and whoever sleeps misses its end.
constexpr microseconds kSpin{200};
constexpr microseconds kSleepMin{20};
constexpr microseconds kSleepMax{1'000};

}  // namespace

NcclEndpoint::NcclEndpoint(Options options, std::function<void()> wake)
    : options_(std::move(options)), ring_(std::make_shared<CompletionRing>(options_.transfers_max, std::move(wake))) {}

NcclEndpoint::~NcclEndpoint() { Close(); }

void NcclEndpoint::CheckOpen() const {
  if (closed_) throw NativeError(ErrorCode::kCLOSED, "the NCCL transport is closed");
}

size_t NcclEndpoint::AddRegion(std::shared_ptr<CudaRegion> region) {
  CheckOpen();
  if (started_) throw NativeError(ErrorCode::kARGUMENT_INVALID, "region: expected all regions before the start");
  if (region->closed()) throw NativeError(ErrorCode::kCLOSED, "region: expected an open region, got a closed one");
  if (!regions_.empty() && regions_[0]->device() != region->device()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "region: expected all regions on one GPU");
  }
  regions_.push_back(std::move(region));
  return regions_.size() - 1;
}

void NcclEndpoint::Start() {
  CheckOpen();
  if (started_ || regions_.empty()) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "start: expected to be called once, after a region");
  }
  started_ = true;
  thread_.Start(1, "handoff-nccl", [this] { Run(); });
}

NcclUniqueId NcclEndpoint::MakeUniqueId() const {
  CheckOpen();
  if (readiness() != Readiness::kReady) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "uniqueId: expected a transport that is ready");
  }
  NcclUniqueId unique;
  const int result = api_->GetUniqueId(&unique);
  if (result == kNcclSuccess) return unique;
  throw NativeError(ErrorCode::kNATIVE_SYSTEM, "NCCL gives no unique id: " + api_->Describe(result));
}

uint64_t NcclEndpoint::Join(const NcclUniqueId& unique, int rank) {
  CheckOpen();
  if (readiness() != Readiness::kReady) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "join: expected a transport that is ready");
  }
  const uint64_t id = ++last_id_;
  auto link = std::make_shared<NcclCommLink>(id, api_, regions_[0]->device(), unique, rank, options_.cut);
  comms_.emplace(id, link);
  const std::lock_guard lock(mutex_);
  new_comms_.push_back(std::move(link));
  changed_.notify_one();
  return id;
}

const NcclCommLink& NcclEndpoint::Comm(uint64_t comm) const {
  const auto found = comms_.find(comm);
  if (found != comms_.end()) return *found->second;
  throw NativeError(ErrorCode::kARGUMENT_INVALID,
                    "comm: expected a communicator that was joined, got " + std::to_string(comm));
}

void NcclEndpoint::Abort(uint64_t comm, bool lost, const std::string& why) {
  (void)Comm(comm);
  comms_.erase(comm);
  const std::lock_guard lock(mutex_);
  orders_.push_back(
      Order{Order::Kind::kAbort, comm, lost ? ErrorCode::kPEER_LOST : ErrorCode::kTRANSFER_CANCELLED, why, nullptr});
  changed_.notify_one();
}

uint64_t NcclEndpoint::Begin(uint64_t comm, bool sends, CopyProgram program, std::vector<int64_t> peer_bytes) {
  CheckOpen();
  (void)Comm(comm);
  std::vector<CudaRegionUse> uses;
  for (const auto& region : regions_) uses.emplace_back(region, "region");
  ring_->Reserve();
  const uint64_t id = ++last_id_;
  auto transfer =
      std::make_shared<NcclTransfer>(id, sends, std::move(program), std::move(uses), regions_, std::move(peer_bytes));
  transfers_.emplace(id, transfer);
  const std::lock_guard lock(mutex_);
  orders_.push_back(Order{Order::Kind::kBegin, comm, ErrorCode::kINVARIANT, {}, std::move(transfer)});
  changed_.notify_one();
  return id;
}

const NcclTransfer& NcclEndpoint::Find(uint64_t transfer) const {
  const auto found = transfers_.find(transfer);
  if (found != transfers_.end()) return *found->second;
  throw NativeError(ErrorCode::kARGUMENT_INVALID,
                    "transfer: expected a transfer that was not forgotten, got " + std::to_string(transfer));
}

void NcclEndpoint::Forget(uint64_t transfer) {
  const NcclStatus status = Find(transfer).status();
  if (status != NcclStatus::kDone && status != NcclStatus::kFailed) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID, "transfer: expected one that is over");
  }
  transfers_.erase(transfer);
}

void NcclEndpoint::Run() {
  try {
    api_ = NcclApi::Load(options_.candidates);
    regions_[0]->device()->LoadKernels(options_.kernels);
    NcclUniqueId first;  // what the library does once takes long, and is over then
    const int result = api_->GetUniqueId(&first);
    if (result != kNcclSuccess) {
      throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE, "NCCL cannot be used here: " + api_->Describe(result));
    }
    readiness_.store(Readiness::kReady, std::memory_order_release);
  } catch (const NativeError& error) {
    error_code_ = error.code();
    error_message_ = error.what();
    readiness_.store(Readiness::kFailed, std::memory_order_release);
  }
  ring_->Ring();
  microseconds sleep = kSleepMin;
  std::chrono::steady_clock::time_point last;
  for (;;) {
    const bool moved = Turn();
    const auto now = std::chrono::steady_clock::now();
    std::unique_lock lock(mutex_);
    const auto due = [this] { return stopping_ || !orders_.empty() || !new_comms_.empty(); };
    if (stopping_ && orders_.empty() && new_comms_.empty() && running_.empty()) return;
    if (moved) {
      sleep = kSleepMin;
      last = now;
    } else if (now - last < kSpin && IsBusy()) {
      lock.unlock();
      std::this_thread::yield();
    } else if (running_.empty()) {
      changed_.wait(lock, due);
    } else {
      changed_.wait_for(lock, sleep, [this] { return !orders_.empty() || !new_comms_.empty(); });
      sleep = std::min(sleep * 5 / 4 + microseconds(1), kSleepMax);
    }
  }
}

bool NcclEndpoint::IsBusy() const {
  return std::any_of(running_.begin(), running_.end(), [](const auto& each) { return each.second.active != nullptr; });
}

bool NcclEndpoint::Turn() {
  std::vector<Order> orders;
  bool stopping;
  {
    const std::lock_guard lock(mutex_);
    for (std::shared_ptr<NcclCommLink>& link : new_comms_) running_[link->id()].link = std::move(link);
    new_comms_.clear();
    orders.swap(orders_);
    stopping = stopping_;
  }
  bool moved = !orders.empty();
  for (Order& order : orders) {
    const auto found = running_.find(order.comm);
    if (found == running_.end()) {
      // Only a transfer whose communicator has gone since.
      if (order.transfer == nullptr) continue;
      order.transfer->Refuse(ErrorCode::kPEER_LOST, "the communicator has ended");
      ring_->Push(order.transfer->id());
    } else if (order.kind == Order::Kind::kAbort) {
      found->second.link->Abort(order.code, order.why);
    } else {
      found->second.waiting.push_back(std::move(order.transfer));
    }
  }
  for (auto at = running_.begin(); at != running_.end();) {
    Running& each = at->second;
    NcclCommLink& link = *each.link;
    if (stopping) link.Abort(ErrorCode::kCLOSED, "the NCCL transport was closed on this side");
    const NcclCommStatus before = link.status();
    if (link.Step()) moved = true;
    if (link.status() != before) ring_->Ring();
    if (each.active != nullptr && each.active->status() != NcclStatus::kActive) {
      ring_->Push(std::exchange(each.active, nullptr)->id());
      moved = true;
    }
    if (link.status() == NcclCommStatus::kFailed) {
      for (const std::shared_ptr<NcclTransfer>& transfer : each.waiting) {
        transfer->Refuse(link.error_code(), link.error_message());
        ring_->Push(transfer->id());
      }
      each.waiting.clear();
    } else if (link.status() == NcclCommStatus::kReady && !link.busy() && !each.waiting.empty()) {
      each.active = each.waiting.front();
      each.waiting.erase(each.waiting.begin());
      link.Start(each.active);
      moved = true;
    }
    if (link.over() && each.active == nullptr) {
      // The owner's copy goes with its Abort; who has not called it yet can still read the error.
      at = running_.erase(at);
      ring_->Ring();
      moved = true;
    } else {
      ++at;
    }
  }
  return moved;
}

void NcclEndpoint::BeginClose() {
  if (closed_) return;
  closed_ = true;
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_one();
}

void NcclEndpoint::Close() {
  BeginClose();
  thread_.Join();
  comms_.clear();
  regions_.clear();
}

}  // namespace state_handoff
