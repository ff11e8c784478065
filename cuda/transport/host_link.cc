#include "host_link.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <utility>

namespace state_handoff {

namespace {

constexpr auto kRetryPause = std::chrono::milliseconds(5);

const char* Reason(Verdict verdict) {
  switch (verdict) {
    case Verdict::kVersion:
      return "it speaks another version of the host transport";
    case Verdict::kToken:
      return "the grant is not of its present incarnation";
    case Verdict::kRegions:
      return "it no longer has the regions it granted";
    case Verdict::kBusy:
      return "it serves as many importers as it takes";
    case Verdict::kWelcome:
      break;
  }
  return "of an unknown verdict";
}

class LinkChannel : public HostChannel {
 public:
  LinkChannel(std::shared_ptr<PeerLink> link, HostGrant grant)
      : link_(std::move(link)),
        grant_(std::move(grant)),
        deadline_(Clock::now() + grant_.patience),
        memory_(std::make_shared<PeerMemory>()) {}

  int fd() const override { return state_ == State::kConnect ? -1 : socket_.get(); }
  short events() const override {
    return static_cast<short>(POLLIN | POLLRDHUP | (state_ == State::kHello ? POLLOUT : 0));
  }
  Clock::time_point deadline() const override {
    return state_ == State::kConnect ? std::min(retry_, deadline_) : deadline_;
  }

  bool OnDeadline() override {
    if (link_->status() == LinkStatus::kFailed) return false;  // closed by its owner
    if (Clock::now() >= deadline_) {
      return Fail(ErrorCode::kPEER_UNREACHABLE, "the peer's broker did not finish the handshake within " +
                                                    std::to_string(grant_.patience.count()) + " ms");
    }
    return Guarded([this] { return Connect(); });
  }

  bool OnReady(short events) override {
    if (link_->status() == LinkStatus::kFailed) return false;
    return Guarded([&] { return Serve(events); });
  }

 private:
  enum class State { kConnect, kHello, kWelcome, kParcels, kLinked };

  template <typename Step>
  bool Guarded(Step&& step) {
    try {
      return step();
    } catch (const NativeError& error) {
      return Fail(error.code(), error.what());
    } catch (const std::bad_alloc&) {
      return Fail(ErrorCode::kNATIVE_SYSTEM, "the peer was not reached because memory ran out");
    }
  }

  bool Fail(ErrorCode code, const std::string& message) {
    link_->Fail(code, message);
    return false;
  }

  bool Connect() {
    Fd socket(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (socket.get() < 0) {
      return Fail(ErrorCode::kNATIVE_SYSTEM, std::string("no socket was made because ") + std::strerror(errno));
    }
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string& name = grant_.address.name;
    std::memcpy(address.sun_path + (grant_.address.abstract ? 1 : 0), name.data(),
                std::min(name.size(), sizeof(address.sun_path) - 1));
    const auto bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + name.size() + 1);
    if (connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), bytes) != 0) {
      if (errno == EAGAIN || errno == EINTR) {  // its queue of importers is full
        retry_ = Clock::now() + kRetryPause;
        return true;
      }
      return Fail(ErrorCode::kPEER_UNREACHABLE, std::string("the peer's broker was not reached because ") +
                                                    std::strerror(errno) + "; it has ended or is on another machine");
    }
    if (!SameUser(socket.get())) {
      return Fail(ErrorCode::kPEER_REFUSED, "the peer's broker was refused because it belongs to another user");
    }
    socket_ = std::move(socket);
    state_ = State::kHello;
    return true;
  }

  bool Serve(short events) {
    if (state_ == State::kLinked) return OnLinkedEvent(events);
    if (state_ == State::kHello && (events & POLLOUT) != 0) {
      Hello hello{kWireMagic, kWireVersion, 0, grant_.token, static_cast<uint32_t>(grant_.region_bytes.size()), 0};
      const Sent sent = SendPacket(socket_.get(), &hello, sizeof(hello), nullptr, 0);
      if (sent == Sent::kBroken) return Hangup();
      if (sent == Sent::kSent) state_ = State::kWelcome;
      return true;
    }
    if ((events & POLLIN) != 0) {
      if (state_ == State::kWelcome) return TakeWelcome();
      if (state_ == State::kParcels) return TakeParcel();
      return Fail(ErrorCode::kPEER_REFUSED, "the peer's broker was refused because it spoke first");
    }
    return (events & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) == 0 || Hangup();
  }

  bool OnLinkedEvent(short events) {
    if ((events & (POLLERR | POLLHUP | POLLRDHUP | POLLNVAL)) != 0) {
      return Fail(ErrorCode::kPEER_LOST, "the peer has ended or closed its transport; connect again with a new grant");
    }
    return Fail(ErrorCode::kPEER_REFUSED, "the peer's broker was refused because it spoke after the handshake");
  }

  bool Hangup() { return Fail(ErrorCode::kPEER_UNREACHABLE, "the peer's broker hung up during the handshake"); }

  // True: `packet` is the packet that was due. Else `goes_on` says whether to wait for it.
  bool Receive(void* data, size_t bytes, size_t fds_max, Packet& packet, bool& goes_on) {
    packet = ReceivePacket(socket_.get(), data, bytes, fds_max);
    goes_on = packet.kind == Packet::Kind::kNothingYet;
    if (goes_on) return false;
    if (packet.kind != Packet::Kind::kPacket) {
      Hangup();
      return false;
    }
    if (packet.bytes != bytes) {
      Fail(ErrorCode::kPEER_REFUSED, "the peer's broker was refused because it sent " + std::to_string(packet.bytes) +
                                         " bytes where " + std::to_string(bytes) + " were due");
      return false;
    }
    return true;
  }

  bool TakeWelcome() {
    Welcome welcome{};
    Packet packet{};
    bool goes_on = false;
    if (!Receive(&welcome, sizeof(welcome), 0, packet, goes_on)) return goes_on;
    if (welcome.magic != kWireMagic) {
      return Fail(ErrorCode::kPEER_REFUSED, "the peer's broker was refused because it speaks no host transport");
    }
    if (welcome.verdict != Verdict::kWelcome || welcome.version != kWireVersion) {
      const Verdict verdict = welcome.version != kWireVersion ? Verdict::kVersion : welcome.verdict;
      return Fail(verdict == Verdict::kBusy ? ErrorCode::kPEER_UNREACHABLE : ErrorCode::kPEER_REFUSED,
                  std::string("the peer refused this importer because ") + Reason(verdict));
    }
    if (welcome.region_count != grant_.region_bytes.size() || welcome.block_generations != grant_.block_generations ||
        welcome.slot_generations != grant_.slot_generations) {
      return Fail(ErrorCode::kPEER_REFUSED,
                  "the peer's broker was refused because it offers other memory than granted");
    }
    due_ = grant_.region_bytes;
    if (grant_.block_generations > 0) due_.push_back(grant_.block_generations * sizeof(uint64_t));
    if (grant_.slot_generations > 0) due_.push_back(grant_.slot_generations * sizeof(uint64_t));
    state_ = State::kParcels;
    return true;
  }

  bool TakeParcel() {
    Parcel parcel{};
    Packet packet{};
    bool goes_on = false;
    if (!Receive(&parcel, sizeof(parcel), kParcelMemoriesMax, packet, goes_on)) return goes_on;
    if (packet.fds_lost) {
      return Fail(ErrorCode::kNATIVE_SYSTEM,
                  "the peer's memory was not taken because this process has too many open files; raise the limit");
    }
    if (parcel.magic != kWireMagic || parcel.first != taken_.size() || parcel.count == 0 ||
        parcel.count > kParcelMemoriesMax || parcel.count > due_.size() - taken_.size() ||
        packet.fds.size() != parcel.count) {
      return Fail(ErrorCode::kPEER_REFUSED,
                  "the peer's broker was refused because its parcel of memories is not in order");
    }
    for (uint32_t i = 0; i < parcel.count; ++i) {
      const uint64_t bytes = due_[taken_.size()];
      if (parcel.bytes[i] != bytes) {
        return Fail(ErrorCode::kPEER_REFUSED, "the peer's memory was refused because it has " +
                                                  std::to_string(parcel.bytes[i]) + " bytes where " +
                                                  std::to_string(bytes) + " were granted");
      }
      taken_.push_back(HostMapping::Map(packet.fds[i], bytes));
    }
    if (taken_.size() < due_.size()) return true;

    const size_t regions = grant_.region_bytes.size();
    memory_->regions.assign(taken_.begin(), taken_.begin() + static_cast<std::ptrdiff_t>(regions));
    size_t next = regions;
    if (grant_.block_generations > 0) memory_->block_generations = taken_[next++];
    if (grant_.slot_generations > 0) memory_->slot_generations = taken_[next];
    taken_.clear();
    state_ = State::kLinked;
    deadline_ = Clock::time_point::max();
    link_->Ready(std::exchange(memory_, nullptr));
    return true;
  }

  const std::shared_ptr<PeerLink> link_;
  const HostGrant grant_;
  Clock::time_point deadline_;
  Clock::time_point retry_ = Clock::now();
  State state_ = State::kConnect;
  Fd socket_;
  std::vector<uint64_t> due_;
  std::vector<std::shared_ptr<HostMapping>> taken_;
  std::shared_ptr<PeerMemory> memory_;
};

}  // namespace

std::shared_ptr<PeerMemory> PeerLink::memory() const {
  const std::lock_guard lock(mutex_);
  return memory_;
}

ErrorCode PeerLink::error_code() const {
  const std::lock_guard lock(mutex_);
  return error_code_;
}

std::string PeerLink::error_message() const {
  const std::lock_guard lock(mutex_);
  return error_message_;
}

void PeerLink::Ready(std::shared_ptr<PeerMemory> memory) {
  std::vector<std::function<void()>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (status() == LinkStatus::kFailed) return;
    memory_ = std::move(memory);
    status_.store(LinkStatus::kReady, std::memory_order_release);
    waiting.swap(waiting_);
  }
  Settle(std::move(waiting));
}

void PeerLink::Fail(ErrorCode code, const std::string& message) {
  std::shared_ptr<PeerMemory> dropped;  // unmapped outside the lock
  std::vector<std::function<void()>> waiting;
  {
    const std::lock_guard lock(mutex_);
    if (status() == LinkStatus::kFailed) return;
    error_code_ = code;
    error_message_ = message;
    dropped.swap(memory_);
    status_.store(LinkStatus::kFailed, std::memory_order_release);
    waiting.swap(waiting_);
  }
  Settle(std::move(waiting));
}

void PeerLink::WhenSettled(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    if (status() == LinkStatus::kConnecting) {
      waiting_.push_back(std::move(task));
      return;
    }
  }
  task();
}

void PeerLink::Settle(std::vector<std::function<void()>> waiting) {
  for (const std::function<void()>& task : waiting) task();
  on_change_();
}

std::shared_ptr<HostChannel> MakeLinkChannel(std::shared_ptr<PeerLink> link, HostGrant grant) {
  return std::make_shared<LinkChannel>(std::move(link), std::move(grant));
}

}  // namespace state_handoff
