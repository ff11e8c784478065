// A stand-in for libnccl.so.2 over the stand-in for libcuda.so.1, for tests on machines without a GPU: communicators of
// two over a socket, made and failing as NCCL's are, whose sends and receives run in the order of their stream.
//
// Compiled with the path of that other stand-in (FAKE_CUDA), and of two files, each followed by the process's id: one
// (FAKE_NCCL_STALL) makes every receive wait until it is aborted, the other (FAKE_NCCL_SENT), where it exists, gets
// every message that is sent: its size as eight bytes, and itself. A message of another size than the receiver wants is
// an error of the communicator, as is the end of the other process.
#include <dlfcn.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>

namespace {

constexpr int kSuccess = 0;
constexpr int kRemoteError = 6;
constexpr int kInProgress = 7;

struct Id {
  char bytes[128];
};

// What it needs of the driver.
struct Driver {
  int (*create)(void** event, unsigned flags);
  int (*record)(void* event, void* stream);
  int (*query)(void* event);
  int (*wait_value)(void* stream, uint64_t address, uint32_t value, unsigned flags);

  static const Driver& Get() {
    static const Driver driver = [] {
      void* library = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
      Driver found{};
      if (library == nullptr) return found;
      found.create = reinterpret_cast<decltype(found.create)>(dlsym(library, "cuEventCreate"));
      found.record = reinterpret_cast<decltype(found.record)>(dlsym(library, "cuEventRecord"));
      found.query = reinterpret_cast<decltype(found.query)>(dlsym(library, "cuEventQuery"));
      found.wait_value = reinterpret_cast<decltype(found.wait_value)>(dlsym(library, "cuStreamWaitValue32_v2"));
      return found;
    }();
    return driver;
  }
};

struct Operation {
  bool sends;
  uint8_t* buffer;
  uint64_t bytes;
  void* reached;                // an event behind what the stream does before
  std::atomic<uint32_t>* over;  // what the stream waits for
};

struct Comm {
  Id id;
  int listener = -1;
  int fd = -1;
  std::atomic<int> state{kInProgress};
  std::atomic<bool> aborted{false};
  std::mutex mutex;
  std::condition_variable changed;
  std::deque<Operation> operations;
  std::thread thread;

  bool Ready(short events) {
    while (!aborted) {
      pollfd polled{fd, events, 0};
      if (poll(&polled, 1, 10) > 0) return true;
    }
    return false;
  }
  bool Move(bool sends, uint8_t* data, uint64_t bytes) {
    while (bytes > 0) {
      if (!Ready(sends ? POLLOUT : POLLIN)) return false;
      const ssize_t moved =
          sends ? send(fd, data, bytes, MSG_NOSIGNAL | MSG_DONTWAIT) : recv(fd, data, bytes, MSG_DONTWAIT);
      if (moved < 0 && errno == EAGAIN) continue;
      if (moved <= 0) return false;
      data += moved;
      bytes -= static_cast<uint64_t>(moved);
    }
    return true;
  }
  bool Run(const Operation& each) {
    while (Driver::Get().query(each.reached) != 0) {
      if (aborted) return false;
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    if (!each.sends && access((FAKE_NCCL_STALL + std::to_string(getpid())).c_str(), F_OK) == 0) {
      while (!aborted) std::this_thread::sleep_for(std::chrono::milliseconds(1));
      return false;
    }
    uint64_t size = each.bytes;
    if (each.sends) Note(each);
    if (!Move(each.sends, reinterpret_cast<uint8_t*>(&size), sizeof(size)) || size != each.bytes) return false;
    return Move(each.sends, each.buffer, each.bytes);
  }
  static void Note(const Operation& each) {
    std::FILE* file = std::fopen((FAKE_NCCL_SENT + std::to_string(getpid())).c_str(), "r+b");
    if (file == nullptr) return;
    std::fseek(file, 0, SEEK_END);
    std::fwrite(&each.bytes, sizeof(each.bytes), 1, file);
    std::fwrite(each.buffer, 1, each.bytes, file);
    std::fclose(file);
  }
  void Loop() {
    if (listener >= 0) {
      pollfd polled{listener, POLLIN, 0};
      while (!aborted && poll(&polled, 1, 10) == 0) {
      }
      if (!aborted) fd = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    } else {
      fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
      sockaddr_un address{};
      address.sun_family = AF_UNIX;
      std::memcpy(address.sun_path + 1, id.bytes, 40);
      if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t) + 41) != 0) {
        close(fd);
        fd = -1;
      }
    }
    state = fd < 0 ? kRemoteError : kSuccess;
    std::unique_lock lock(mutex);
    while (!aborted) {
      if (operations.empty()) {
        changed.wait_for(lock, std::chrono::milliseconds(5));
        // NCCL notices the end of a peer also while nothing is posted.
        char byte;
        if (operations.empty() && fd >= 0 && recv(fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0) state = kRemoteError;
        continue;
      }
      const Operation next = operations.front();
      operations.pop_front();
      lock.unlock();
      if (!Run(next) && !aborted) state = kRemoteError;
      if (state == kSuccess || aborted) *next.over = 1;
      lock.lock();
      if (state != kSuccess) operations.push_front(next);
      while (state != kSuccess && !aborted) changed.wait_for(lock, std::chrono::milliseconds(5));
    }
    for (const Operation& each : operations) *each.over = 1;
    operations.clear();
  }
};

std::mutex listeners_mutex;
std::map<std::string, int> listeners;

int Post(bool sends, void* buffer, size_t bytes, Comm* comm, void* stream) {
  const Driver& driver = Driver::Get();
  Operation operation{sends, static_cast<uint8_t*>(buffer), bytes, nullptr, new std::atomic<uint32_t>(0)};
  if (driver.create(&operation.reached, 2) != 0 || driver.record(operation.reached, stream) != 0) return 1;
  if (driver.wait_value(stream, reinterpret_cast<uint64_t>(operation.over), 1, 0) != 0) return 1;
  const std::lock_guard lock(comm->mutex);
  comm->operations.push_back(operation);
  comm->changed.notify_one();
  return kSuccess;
}

}  // namespace

extern "C" {

int ncclGetVersion(int* version) {
  const char* text = std::getenv("FAKE_NCCL_VERSION");
  return *version = text == nullptr ? 22800 : std::atoi(text), kSuccess;
}
const char* ncclGetErrorString(int result) { return result == kRemoteError ? "remote error" : "another error"; }
int ncclGetUniqueId(Id* id) {
  static std::atomic<int> count{0};
  std::memset(id->bytes, 0, sizeof(id->bytes));
  std::snprintf(id->bytes, sizeof(id->bytes), "fake-nccl-%d-%d-%ld", getpid(), ++count, random());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, id->bytes, 40);
  if (bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(sa_family_t) + 41) != 0 || listen(fd, 1) != 0) return 2;
  const std::lock_guard lock(listeners_mutex);
  listeners[std::string(id->bytes, 40)] = fd;
  return kSuccess;
}
int ncclCommInitRankConfig(Comm** comm, int ranks, Id id, int rank, void*) {
  if (ranks != 2 || rank < 0 || rank > 1) return 4;
  auto* made = new Comm();
  made->id = id;
  {
    const std::lock_guard lock(listeners_mutex);
    const auto found = listeners.find(std::string(id.bytes, 40));
    if (found != listeners.end()) {
      made->listener = found->second;
      listeners.erase(found);
    }
  }
  made->thread = std::thread([made] { made->Loop(); });
  *comm = made;
  return kInProgress;
}
int ncclCommGetAsyncError(Comm* comm, int* result) { return *result = comm->state, kSuccess; }
int ncclCommAbort(Comm* comm) {
  comm->aborted = true;
  comm->changed.notify_one();
  comm->thread.join();
  if (comm->fd >= 0) close(comm->fd);
  if (comm->listener >= 0) close(comm->listener);
  delete comm;
  return kSuccess;
}
int ncclGroupStart() { return kSuccess; }
int ncclGroupEnd() { return kSuccess; }
int ncclSend(void* buffer, size_t bytes, int, int, Comm* comm, void* stream) {
  return Post(true, buffer, bytes, comm, stream);
}
int ncclRecv(void* buffer, size_t bytes, int, int, Comm* comm, void* stream) {
  return Post(false, buffer, bytes, comm, stream);
}

}  // extern "C"
