// One thread for calls that block: jobs run in the order in which they came. Starts with the first job.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>

#include "thread_pool.h"

namespace state_handoff {

class JobThread {
 public:
  // `name` outlives this object; at most 15 characters.
  explicit JobThread(const char* name) : name_(name) {}
  ~JobThread() { Stop(); }

  // Any thread. The job does not throw. Throws NATIVE_SYSTEM when no thread is to be had.
  void Post(std::function<void()> job);
  // No job may come after this; those that did are still run, then the thread leaves.
  void BeginStop();
  bool quiet() const { return thread_.idle(); }
  void Stop();

 private:
  void Run();

  const char* const name_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> jobs_;
  bool stopping_ = false;
  ThreadPool thread_;
};

}  // namespace state_handoff
