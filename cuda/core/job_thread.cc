#include "job_thread.h"

#include <utility>

namespace state_handoff {

void JobThread::Post(std::function<void()> job) {
  const std::lock_guard lock(mutex_);
  if (!thread_.started()) thread_.Start(1, name_, [this] { Run(); });
  jobs_.push_back(std::move(job));
  changed_.notify_one();
}

void JobThread::BeginStop() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_one();
}

void JobThread::Stop() {
  BeginStop();
  thread_.Join();
}

void JobThread::Run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
    if (jobs_.empty()) return;
    const std::function<void()> job = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    job();
    lock.lock();
  }
}

}  // namespace state_handoff
