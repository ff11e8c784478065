// Threads of ours inside somebody else's process: they take no signals, have names, are counted and always joined.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

namespace state_handoff {

class ThreadPool {
 public:
  ThreadPool() = default;
  ~ThreadPool() { Join(); }

  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Starts `count` threads that each run `body` once. Throws NATIVE_SYSTEM when none could be started; fewer than asked
  // for is no error.
  void Start(size_t count, const char* name, std::function<void()> body);
  // Waits until every body has returned. The caller has told them to.
  void Join();

  bool started() const { return !threads_.empty(); }
  // Whether every body has returned, so that Join does not wait.
  bool idle() const { return running_.load(std::memory_order_acquire) == 0; }
  static int64_t live() { return live_.load(std::memory_order_relaxed); }

 private:
  std::vector<std::thread> threads_;
  std::atomic<int64_t> running_{0};
  static std::atomic<int64_t> live_;
};

}  // namespace state_handoff
