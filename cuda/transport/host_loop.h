// One thread that waits on all sockets of a host transport, and the channels it serves.
//
// Everything a channel does happens on this thread and never blocks; others reach it through Post.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "../core/thread_pool.h"
#include "host_wire.h"

namespace state_handoff {

// One socket and what is done when it is ready. On the loop's thread only.
class HostChannel {
 public:
  using Clock = std::chrono::steady_clock;

  virtual ~HostChannel() = default;
  // -1: waits for its deadline only.
  virtual int fd() const = 0;
  virtual short events() const = 0;
  virtual Clock::time_point deadline() const = 0;
  // False: the channel is over and is dropped.
  virtual bool OnReady(short events) = 0;
  virtual bool OnDeadline() = 0;
};

class HostLoop {
 public:
  HostLoop();
  ~HostLoop();

  // Starts the thread if it does not run. Throws NATIVE_SYSTEM.
  void Start();
  // Runs `task` on the loop's thread, soon. Dropped, with all it holds, when the loop stops first.
  void Post(std::function<void()> task);
  // Loop's thread only, both. Remove is for tasks: a channel ends itself by returning false.
  void Add(std::shared_ptr<HostChannel> channel);
  void Remove(const std::shared_ptr<HostChannel>& channel);

  void BeginStop();
  bool quiet() const { return thread_.idle(); }
  // Joins and drops all channels.
  void Stop();

 private:
  void Run();
  void Ring();

  Fd bell_;
  std::mutex mutex_;
  std::vector<std::function<void()>> tasks_;
  bool stopping_ = false;
  std::vector<std::shared_ptr<HostChannel>> channels_;  // the loop's thread, then Stop
  ThreadPool thread_;
};

}  // namespace state_handoff
