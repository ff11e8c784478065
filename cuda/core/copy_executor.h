// Native threads that run transfers: prepare one, hand its bytes out in chunks, end it when the last thread is out.
//
// A cancelled transfer hands out nothing more, and a thread inside looks at the flag every 64 KiB: when its end shows,
// no thread touches its memory any more. Several transfers share the threads chunk by chunk, so that a large one does
// not hold up a small one.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>

#include "thread_pool.h"
#include "transfer.h"

namespace state_handoff {

class CopyExecutor {
 public:
  // `on_end` is called once for each transfer, after its status is final, from whichever thread ended it.
  CopyExecutor(size_t threads, std::function<void(const Transfer&)> on_end);
  ~CopyExecutor();

  // Any thread, all of these.
  // Starts the threads; throws NATIVE_SYSTEM when none can be had.
  void Start();
  // Started before. Does nothing to a transfer that was cancelled while it waited for its source.
  void Submit(std::shared_ptr<Transfer> transfer, TransferSource source);
  // Ends at once, or, if a thread is inside, within 64 KiB.
  void Cancel(const std::shared_ptr<Transfer>& transfer);
  // Ends a transfer that was never submitted.
  void Refuse(const std::shared_ptr<Transfer>& transfer, ErrorCode code, const std::string& message);

  // Cancels everything and lets the threads leave. Does not wait.
  void BeginStop();
  // Whether Stop would not wait.
  bool quiet() const;
  void Stop();

 private:
  struct Claim {
    const CopyWalk* walk;
    int64_t begin;
    int64_t end;
  };

  void Run();
  // All under the lock, which the last three give up for a while.
  bool HasWork(const Transfer& transfer) const { return transfer.walk_ < transfer.walks_.size(); }
  Claim TakeChunk(Transfer& transfer) const;
  void RunPrepare(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock);
  void RunChunk(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock);
  void EndTransfer(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock);
  void CancelLocked(const std::shared_ptr<Transfer>& transfer, std::unique_lock<std::mutex>& lock);

  const size_t thread_count_;
  const std::function<void(const Transfer&)> on_end_;
  std::mutex mutex_;
  std::condition_variable work_;
  std::deque<std::shared_ptr<Transfer>> queue_;  // those with something to prepare or to claim
  bool stopping_ = false;
  ThreadPool threads_;  // last: its threads use all of the above
};

}  // namespace state_handoff
