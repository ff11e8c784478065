#include "copy_executor.h"

#include <algorithm>
#include <new>
#include <utility>

namespace state_handoff {

namespace {

// How many transfers share the threads; those behind wait their turn.
constexpr size_t kSharingMax = 4;

}  // namespace

CopyExecutor::CopyExecutor(size_t threads, std::function<void(const Transfer&)> on_end)
    : thread_count_(threads), on_end_(std::move(on_end)) {}

CopyExecutor::~CopyExecutor() { Stop(); }

void CopyExecutor::Start() {
  const std::lock_guard lock(mutex_);
  if (!threads_.started()) threads_.Start(thread_count_, "handoff-copy", [this] { Run(); });
}

void CopyExecutor::Submit(std::shared_ptr<Transfer> transfer, TransferSource source) {
  std::unique_lock lock(mutex_);
  if (transfer->stage_ == Transfer::Stage::kEnding) return;
  transfer->source_ = std::move(source);
  if (stopping_) {
    transfer->cut_short_ = true;
    EndTransfer(transfer, lock);
    return;
  }
  queue_.push_back(std::move(transfer));
  work_.notify_one();
}

void CopyExecutor::Cancel(const std::shared_ptr<Transfer>& transfer) {
  std::unique_lock lock(mutex_);
  CancelLocked(transfer, lock);
}

void CopyExecutor::CancelLocked(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock) {
  if (transfer->stage_ == Transfer::Stage::kEnding) return;
  transfer->cancelled_.store(true, std::memory_order_relaxed);
  if (transfer->stage_ == Transfer::Stage::kPreparing) return;  // that thread looks when it is done
  const bool unclaimed = transfer->stage_ == Transfer::Stage::kNew || HasWork(*transfer);
  transfer->cut_short_ = transfer->cut_short_ || unclaimed;
  std::erase(queue_, transfer);
  if (transfer->threads_inside_ == 0) EndTransfer(transfer, lock);
}

void CopyExecutor::Refuse(const std::shared_ptr<Transfer>& transfer, ErrorCode code, const std::string& message) {
  std::unique_lock lock(mutex_);
  if (transfer->stage_ == Transfer::Stage::kEnding) return;
  transfer->Fail(code, message);
  EndTransfer(transfer, lock);
}

void CopyExecutor::BeginStop() {
  std::unique_lock lock(mutex_);
  stopping_ = true;
  while (!queue_.empty()) CancelLocked(std::shared_ptr<Transfer>(queue_.front()), lock);
  work_.notify_all();
}

bool CopyExecutor::quiet() const { return threads_.idle(); }

void CopyExecutor::Stop() {
  BeginStop();
  threads_.Join();
}

void CopyExecutor::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    work_.wait(lock, [this] { return stopping_ || !queue_.empty(); });
    if (queue_.empty()) return;
    const std::shared_ptr<Transfer> transfer = std::move(queue_.front());
    queue_.pop_front();
    if (transfer->stage_ == Transfer::Stage::kNew) {
      RunPrepare(transfer, lock);
    } else {
      RunChunk(transfer, lock);
    }
  }
}

void CopyExecutor::RunPrepare(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock) {
  transfer->stage_ = Transfer::Stage::kPreparing;
  lock.unlock();
  try {
    transfer->Prepare(thread_count_);
  } catch (const NativeError& error) {
    transfer->Fail(error.code(), error.what());
  } catch (const std::bad_alloc&) {
    transfer->Fail(ErrorCode::kNATIVE_SYSTEM, "the transfer did not begin because memory for its program ran out");
  }
  lock.lock();
  transfer->stage_ = Transfer::Stage::kCopying;
  if (transfer->failed_ || !HasWork(*transfer)) {
    EndTransfer(transfer, lock);
  } else if (stopping_ || transfer->cancelled_.load(std::memory_order_relaxed)) {
    transfer->cut_short_ = true;
    EndTransfer(transfer, lock);
  } else {
    queue_.push_front(transfer);
    work_.notify_all();
  }
}

CopyExecutor::Claim CopyExecutor::TakeChunk(Transfer& transfer) const {
  const CopyWalk& walk = transfer.walks_[transfer.walk_];
  const int64_t quantum = walk.quantum_bytes();
  const int64_t chunk = std::max(quantum, transfer.chunk_bytes_ / quantum * quantum);
  const Claim claim{&walk, transfer.position_, std::min(transfer.position_ + chunk, walk.bytes())};
  transfer.position_ = claim.end;
  if (claim.end == walk.bytes()) {
    ++transfer.walk_;
    transfer.position_ = 0;
  }
  return claim;
}

void CopyExecutor::RunChunk(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock) {
  const Claim claim = TakeChunk(*transfer);
  ++transfer->threads_inside_;
  if (HasWork(*transfer)) {
    const size_t behind = std::min(queue_.size(), kSharingMax - 1);
    queue_.insert(queue_.begin() + static_cast<std::ptrdiff_t>(behind), transfer);
  }
  lock.unlock();
  int64_t at = claim.begin;
  while (at < claim.end && !transfer->cancelled_.load(std::memory_order_relaxed)) {
    const int64_t end = std::min(at + claim.walk->quantum_bytes(), claim.end);
    claim.walk->Copy(at, end);
    transfer->bytes_done_.fetch_add(end - at, std::memory_order_relaxed);
    at = end;
  }
  // If any byte above was a new owner's, its advanced generation is seen by loads after this fence.
  std::atomic_thread_fence(std::memory_order_acquire);
  lock.lock();
  --transfer->threads_inside_;
  if (at < claim.end) transfer->cut_short_ = true;
  const bool over = transfer->cut_short_ || !HasWork(*transfer);
  if (over && transfer->threads_inside_ == 0 && transfer->stage_ != Transfer::Stage::kEnding) {
    EndTransfer(transfer, lock);
  }
}

void CopyExecutor::EndTransfer(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock) {
  transfer->stage_ = Transfer::Stage::kEnding;
  lock.unlock();
  transfer->End();
  on_end_(*transfer);
  lock.lock();
}

}  // namespace state_handoff
