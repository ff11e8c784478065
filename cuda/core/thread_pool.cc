#include "thread_pool.h"

#include <pthread.h>
#include <signal.h>

#include <string>
#include <system_error>

#include "error_codes.h"

namespace state_handoff {

std::atomic<int64_t> ThreadPool::live_{0};

void ThreadPool::Start(size_t count, const char* name, std::function<void()> body) {
  // A new thread inherits the mask: the host's signal handlers keep running on the host's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  std::string reason;
  for (size_t i = 0; i < count; ++i) {
    running_.fetch_add(1, std::memory_order_relaxed);
    try {
      threads_.emplace_back([this, body] {
        live_.fetch_add(1, std::memory_order_relaxed);
        body();
        live_.fetch_sub(1, std::memory_order_relaxed);
        running_.fetch_sub(1, std::memory_order_release);
      });
      pthread_setname_np(threads_.back().native_handle(), name);
    } catch (const std::system_error& error) {
      running_.fetch_sub(1, std::memory_order_relaxed);
      reason = error.what();
      break;
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (threads_.empty()) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM, std::string("no thread '") + name + "' was started because " + reason +
                                                     "; raise the limit of threads");
  }
}

void ThreadPool::Join() {
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

}  // namespace state_handoff
