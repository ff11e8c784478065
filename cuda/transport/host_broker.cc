#include "host_broker.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <cstring>

#include "../core/error_codes.h"

namespace state_handoff {

namespace {

constexpr auto kHelloPatience = std::chrono::seconds(5);
constexpr int kImportersMax = 256;

// Not the time of the first differing byte: always the same.
bool SameToken(const Token& left, const Token& right) {
  uint8_t difference = 0;
  for (size_t i = 0; i < left.size(); ++i) difference |= left[i] ^ right[i];
  return difference == 0;
}

// Bound and listening, or empty with errno.
Fd Listen(const SocketAddress& where) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const size_t start = where.abstract ? 1 : 0;
  if (where.name.size() + 1 > sizeof(address.sun_path)) {
    errno = ENAMETOOLONG;
    return Fd();
  }
  std::memcpy(address.sun_path + start, where.name.data(), where.name.size());
  const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + where.name.size() + 1);
  Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (socket.get() < 0) return Fd();
  if (bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) return Fd();
  if (!where.abstract && chmod(where.name.c_str(), 0600) != 0) return Fd();
  if (listen(socket.get(), kImportersMax) != 0) return Fd();
  return socket;
}

// One importer: its hello is awaited, answered, and then its end of the socket tells whether it lives.
class Importer : public HostChannel {
 public:
  Importer(Fd socket, std::shared_ptr<const HostExports> exports, const Token& token, std::shared_ptr<int> places,
           bool busy)
      : socket_(std::move(socket)),
        exports_(std::move(exports)),
        token_(token),
        places_(std::move(places)),
        busy_(busy),
        deadline_(Clock::now() + kHelloPatience) {
    ++*places_;
    ++exports_->importers();
  }
  ~Importer() override {
    --*places_;
    --exports_->importers();
  }

  int fd() const override { return socket_.get(); }
  short events() const override { return static_cast<short>(POLLRDHUP | POLLIN | (Sending() ? POLLOUT : 0)); }
  Clock::time_point deadline() const override { return deadline_; }
  bool OnDeadline() override { return false; }

  bool OnReady(short events) override {
    if ((events & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) != 0) return false;
    if ((events & POLLIN) != 0) {
      if (state_ != State::kHello || !TakeHello()) return false;  // it has nothing to say after its hello
    }
    return !Sending() || SendOn();
  }

 private:
  enum class State { kHello, kWelcome, kParcels, kLinked };

  bool Sending() const { return state_ == State::kWelcome || state_ == State::kParcels; }

  bool TakeHello() {
    Hello hello{};
    const Packet packet = ReceivePacket(socket_.get(), &hello, sizeof(hello), 0);
    if (packet.kind == Packet::Kind::kNothingYet) return true;
    if (packet.kind != Packet::Kind::kPacket || packet.bytes != sizeof(hello) || hello.magic != kWireMagic)
      return false;
    welcome_ = Welcome{kWireMagic, kWireVersion, Verdict::kWelcome, hello.region_count, 0, 0, 0};
    if (hello.version != kWireVersion) {
      welcome_.verdict = Verdict::kVersion;
    } else if (!SameToken(hello.token, token_)) {
      welcome_.verdict = Verdict::kToken;
    } else if (busy_) {
      welcome_.verdict = Verdict::kBusy;
    } else {
      memories_ = exports_->Memories(hello.region_count);
      if (memories_.empty()) welcome_.verdict = Verdict::kRegions;
    }
    if (welcome_.verdict == Verdict::kWelcome) {
      welcome_.block_generations = exports_->blocks() == nullptr ? 0 : exports_->blocks()->count();
      welcome_.slot_generations = exports_->slots() == nullptr ? 0 : exports_->slots()->count();
    }
    state_ = State::kWelcome;
    return true;
  }

  bool SendOn() {
    if (state_ == State::kWelcome) {
      const Sent sent = SendPacket(socket_.get(), &welcome_, sizeof(welcome_), nullptr, 0);
      if (sent != Sent::kSent) return sent == Sent::kLater;
      if (welcome_.verdict != Verdict::kWelcome) return false;
      state_ = State::kParcels;
    }
    while (next_ < memories_.size()) {
      Parcel parcel{kWireMagic, static_cast<uint32_t>(next_), 0, 0, {}};
      std::array<int, kParcelMemoriesMax> fds{};
      while (parcel.count < kParcelMemoriesMax && next_ + parcel.count < memories_.size()) {
        const SealedMemory& memory = *memories_[next_ + parcel.count];
        fds[parcel.count] = memory.fd();
        parcel.bytes[parcel.count++] = memory.bytes();
      }
      const Sent sent = SendPacket(socket_.get(), &parcel, sizeof(parcel), fds.data(), parcel.count);
      if (sent != Sent::kSent) return sent == Sent::kLater;
      next_ += parcel.count;
    }
    memories_.clear();
    state_ = State::kLinked;
    deadline_ = Clock::time_point::max();
    return true;
  }

  const Fd socket_;
  const std::shared_ptr<const HostExports> exports_;
  const Token token_;
  const std::shared_ptr<int> places_;  // importers there are; the loop's thread only
  const bool busy_;
  Clock::time_point deadline_;
  State state_ = State::kHello;
  Welcome welcome_{};
  std::vector<std::shared_ptr<SealedMemory>> memories_;
  size_t next_ = 0;
};

class Broker : public HostChannel {
 public:
  Broker(HostLoop& loop, std::unique_ptr<HostListener> listener, std::shared_ptr<const HostExports> exports,
         const Token& token)
      : loop_(loop), listener_(std::move(listener)), exports_(std::move(exports)), token_(token) {}

  int fd() const override { return listener_->fd(); }
  short events() const override { return paused_until_ == Clock::time_point::max() ? POLLIN : 0; }
  Clock::time_point deadline() const override { return paused_until_; }
  bool OnDeadline() override {
    paused_until_ = Clock::time_point::max();
    return true;
  }

  bool OnReady(short events) override {
    if ((events & POLLIN) == 0) return true;
    Fd socket(accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (socket.get() < 0) {
      // Out of descriptors or memory: importers wait in the queue, and this thread does not spin.
      if (errno != EAGAIN && errno != EINTR && errno != ECONNABORTED) {
        paused_until_ = Clock::now() + std::chrono::milliseconds(20);
      }
      return true;
    }
    if (!SameUser(socket.get()) || *places_ >= 2 * kImportersMax) return true;
    const bool busy = *places_ >= kImportersMax;
    loop_.Add(std::make_shared<Importer>(std::move(socket), exports_, token_, places_, busy));
    return true;
  }

 private:
  HostLoop& loop_;
  const std::unique_ptr<HostListener> listener_;
  const std::shared_ptr<const HostExports> exports_;
  const Token token_;
  const std::shared_ptr<int> places_ = std::make_shared<int>(0);
  Clock::time_point paused_until_ = Clock::time_point::max();
};

}  // namespace

size_t HostExports::AddRegion(std::shared_ptr<HostRegion> region) {
  const std::lock_guard lock(mutex_);
  if (regions_->size() == kWireRegionsMax) {
    throw NativeError(ErrorCode::kNATIVE_LIMIT, "the region was not registered because a transport takes at most " +
                                                    std::to_string(kWireRegionsMax) +
                                                    "; allocate fewer and larger ones");
  }
  auto grown = std::make_shared<Regions>(*regions_);
  grown->push_back(std::move(region));
  regions_ = std::move(grown);
  return regions_->size() - 1;
}

std::shared_ptr<const HostExports::Regions> HostExports::regions() const {
  const std::lock_guard lock(mutex_);
  return regions_;
}

std::vector<std::shared_ptr<SealedMemory>> HostExports::Memories(size_t count) const {
  const std::shared_ptr<const Regions> all = regions();
  std::vector<std::shared_ptr<SealedMemory>> memories;
  if (count == 0 || count > all->size()) return memories;
  for (size_t i = 0; i < count; ++i) {
    memories.push_back((*all)[i]->memory());
    if (memories.back() == nullptr) return {};
  }
  if (blocks_ != nullptr) memories.push_back(blocks_->memory());
  if (slots_ != nullptr) memories.push_back(slots_->memory());
  return memories;
}

HostListener::HostListener(bool abstract, const std::string& directory, const std::string& name) {
  if (abstract) {
    address_ = SocketAddress{true, name};
    socket_ = Listen(address_);
    if (socket_.get() >= 0) return;
  }
  std::string folder = directory + "/" + name + "-XXXXXX";
  if (mkdtemp(folder.data()) == nullptr) {
    throw NativeError(ErrorCode::kNATIVE_SYSTEM, "no folder for the broker's socket was made in " + directory +
                                                     " because " + std::strerror(errno));
  }
  folder_ = folder;
  address_ = SocketAddress{false, folder + "/socket"};
  socket_ = Listen(address_);
  if (socket_.get() >= 0) return;
  const int error = errno;
  unlink(address_.name.c_str());
  rmdir(folder_.c_str());
  throw NativeError(ErrorCode::kNATIVE_SYSTEM,
                    "the broker does not listen on " + address_.name + " because " + std::strerror(error));
}

HostListener::~HostListener() {
  if (folder_.empty()) return;
  unlink(address_.name.c_str());
  rmdir(folder_.c_str());
}

std::shared_ptr<HostChannel> MakeBroker(HostLoop& loop, std::unique_ptr<HostListener> listener,
                                        std::shared_ptr<const HostExports> exports, const Token& token) {
  return std::make_shared<Broker>(loop, std::move(listener), std::move(exports), token);
}

}  // namespace state_handoff
