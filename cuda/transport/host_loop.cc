#include "host_loop.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "../core/error_codes.h"

namespace state_handoff {

HostLoop::HostLoop() : bell_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  if (bell_.get() < 0) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM, std::string("eventfd failed because ") + std::strerror(errno) +
                                                     "; raise the limit of open files");
  }
}

HostLoop::~HostLoop() { Stop(); }

void HostLoop::Start() {
  if (!thread_.started()) thread_.Start(1, "handoff-host", [this] { Run(); });
}

void HostLoop::Post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
    tasks_.push_back(std::move(task));
  }
  Ring();
}

void HostLoop::Ring() {
  const uint64_t one = 1;
  (void)!write(bell_.get(), &one, sizeof(one));  // a full counter rings too
}

void HostLoop::Add(std::shared_ptr<HostChannel> channel) { channels_.push_back(std::move(channel)); }

void HostLoop::Remove(const std::shared_ptr<HostChannel>& channel) { std::erase(channels_, channel); }

void HostLoop::BeginStop() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  Ring();
}

void HostLoop::Stop() {
  BeginStop();
  thread_.Join();
  channels_.clear();
  tasks_.clear();
  bell_ = Fd();  // nobody rings any more
}

void HostLoop::Run() {
  std::vector<pollfd> polled;
  for (;;) {
    std::vector<std::function<void()>> tasks;
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
      tasks.swap(tasks_);
    }
    for (const std::function<void()>& task : tasks) task();
    tasks.clear();

    polled.assign(1, pollfd{bell_.get(), POLLIN, 0});
    HostChannel::Clock::time_point first = HostChannel::Clock::time_point::max();
    for (const std::shared_ptr<HostChannel>& channel : channels_) {
      polled.push_back(pollfd{channel->fd(), channel->events(), 0});
      first = std::min(first, channel->deadline());
    }
    int wait_ms = -1;
    if (first != HostChannel::Clock::time_point::max()) {
      const HostChannel::Clock::time_point started = HostChannel::Clock::now();
      const auto left = first <= started ? std::chrono::milliseconds(0)
                                         : std::chrono::ceil<std::chrono::milliseconds>(first - started);
      wait_ms = static_cast<int>(std::min<int64_t>(left.count(), 60'000));
    }
    if (poll(polled.data(), polled.size(), wait_ms) < 0 && errno != EINTR) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the system is short of memory; it passes
    }
    if ((polled[0].revents & POLLIN) != 0) {
      uint64_t rings;
      (void)!read(bell_.get(), &rings, sizeof(rings));
    }
    // A channel may add others while it is served: those wait for the next turn.
    const HostChannel::Clock::time_point now = HostChannel::Clock::now();
    const size_t count = polled.size() - 1;
    std::vector<size_t> over;
    for (size_t i = 0; i < count; ++i) {
      const std::shared_ptr<HostChannel> channel = channels_[i];
      const short events = polled[i + 1].revents;
      const bool goes_on =
          (events == 0 || channel->OnReady(events)) && (channel->deadline() > now || channel->OnDeadline());
      if (!goes_on) over.push_back(i);
    }
    for (size_t i = over.size(); i-- > 0;) channels_.erase(channels_.begin() + static_cast<std::ptrdiff_t>(over[i]));
  }
}

}  // namespace state_handoff
