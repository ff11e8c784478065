// Promise: a broker that lies, garbles, stalls or hangs up is refused with a code, in bounded time; it crashes nobody
// and nobody maps what it should not.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <functional>

#include "unix_address.h"

namespace state_handoff::test {

namespace {

constexpr uint64_t kBytes = 1 << 20;

// What a lying broker does with each importer, once it has read its hello.
using Lie = std::function<void(int socket)>;

// A broker of our own making, on a thread of its own.
class Liar {
 public:
  explicit Liar(Lie lie, bool greets = true) : lie_(std::move(lie)), greets_(greets), name_(FreshName()) {
    socket_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t bytes = 0;
    const sockaddr_un address = AddressOf(name_, bytes);
    CHECK_EQUAL(bind(socket_, reinterpret_cast<const sockaddr*>(&address), bytes), 0);
    CHECK_EQUAL(listen(socket_, 8), 0);
    thread_ = std::thread([this] {
      for (;;) {
        const int importer = accept(socket_, nullptr, nullptr);
        if (importer < 0) return;
        Hello hello{};
        if (greets_) (void)!recv(importer, &hello, sizeof(hello), 0);
        lie_(importer);
        close(importer);
      }
    });
  }
  ~Liar() {
    shutdown(socket_, SHUT_RDWR);
    thread_.join();
    close(socket_);
  }
  SocketAddress address() const { return SocketAddress{true, name_}; }

 private:
  Lie lie_;
  bool greets_;
  std::string name_;
  int socket_;
  std::thread thread_;
};

Welcome GoodWelcome() { return Welcome{kWireMagic, kWireVersion, Verdict::kWelcome, 1, 0, 0, 0}; }

void Say(int socket, const void* data, size_t bytes) { (void)!send(socket, data, bytes, MSG_NOSIGNAL); }

void SayParcel(int socket, const Parcel& parcel, std::vector<int> fds) {
  for (;;) {
    const Sent sent = SendPacket(socket, &parcel, sizeof(parcel), fds.data(), fds.size());
    if (sent != Sent::kLater) return;
  }
}

Parcel GoodParcel() {
  Parcel parcel{kWireMagic, 0, 1, 0, {}};
  parcel.bytes[0] = kBytes;
  return parcel;
}

// A memory with these seals and this many bytes.
int Memory(uint64_t bytes, int seals, unsigned flags = 0) {
  const int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING | flags);
  CHECK(fd >= 0);
  CHECK_EQUAL(ftruncate(fd, static_cast<off_t>(bytes)), 0);
  CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, seals), 0);
  return fd;
}

constexpr int kGoodSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

// How an importer takes it, by code; `lie` runs after the hello. The link must not be mapped or hang.
std::string TakenBy(Lie lie, std::chrono::milliseconds patience = std::chrono::milliseconds(5000)) {
  Liar liar(std::move(lie));
  auto importer = MakeEndpoint();
  HostGrant grant = GrantOf(liar.address(), {kBytes});
  grant.patience = patience;
  const std::string code = FailureOf(*importer, grant);
  importer.reset();
  CHECK_EQUAL(HostMapping::live(), 0);
  return code;
}

std::string TakenParcel(Parcel parcel, std::vector<int> fds) {
  const std::string code = TakenBy([&](int socket) {
    const Welcome welcome = GoodWelcome();
    Say(socket, &welcome, sizeof(welcome));
    SayParcel(socket, parcel, fds);
    char rest;
    (void)!recv(socket, &rest, 1, 0);  // until the importer hangs up
  });
  for (const int fd : fds) close(fd);
  return code;
}

}  // namespace

TEST(ImporterRefusesAWelcomeThatIsNone) {
  const auto with = [](auto change) {
    return TakenBy([change](int socket) {
      Welcome welcome = GoodWelcome();
      change(welcome);
      Say(socket, &welcome, sizeof(welcome));
      char rest;
      (void)!recv(socket, &rest, 1, 0);
    });
  };
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.magic ^= 1; }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.version += 1; }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.verdict = Verdict::kToken; }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.verdict = Verdict::kBusy; }), "PEER_UNREACHABLE");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.verdict = static_cast<Verdict>(999); }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.region_count = 2; }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.region_count = 0xffffffff; }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.block_generations = 1; }), "PEER_REFUSED");
  CHECK_EQUAL(with([](Welcome& welcome) { welcome.slot_generations = UINT64_MAX; }), "PEER_REFUSED");
}

TEST(ImporterRefusesPacketsOfAnotherLength) {
  for (const size_t bytes : {size_t{1}, sizeof(Welcome) - 1, sizeof(Welcome) + 1, size_t{60'000}}) {
    CHECK_EQUAL(TakenBy([bytes](int socket) {
                  std::vector<char> packet(bytes, 'x');
                  const Welcome welcome = GoodWelcome();
                  std::memcpy(packet.data(), &welcome, std::min(bytes, sizeof(welcome)));
                  Say(socket, packet.data(), packet.size());
                  char rest;
                  (void)!recv(socket, &rest, 1, 0);
                }),
                "PEER_REFUSED");
  }
}

TEST(ImporterOutlivesABrokerThatStallsOrHangsUp) {
  CHECK_EQUAL(TakenBy([](int) {}), "PEER_UNREACHABLE");
  CHECK_EQUAL(TakenBy(
                  [](int socket) {
                    char rest;
                    (void)!recv(socket, &rest, 1, 0);
                  },
                  std::chrono::milliseconds(50)),
              "PEER_UNREACHABLE");
  CHECK_EQUAL(TakenBy(
                  [](int socket) {
                    const Welcome welcome = GoodWelcome();
                    Say(socket, &welcome, sizeof(welcome));
                    char rest;
                    (void)!recv(socket, &rest, 1, 0);
                  },
                  std::chrono::milliseconds(50)),
              "PEER_UNREACHABLE");
  CHECK_EQUAL(TakenBy([](int socket) {
                const Welcome welcome = GoodWelcome();
                Say(socket, &welcome, sizeof(welcome));
              }),
              "PEER_UNREACHABLE");
}

TEST(ImporterRefusesABrokerThatSpeaksFirstOrAgain) {
  {
    Liar liar(
        [](int socket) {
          const Welcome welcome = GoodWelcome();
          for (int i = 0; i < 3; ++i) Say(socket, &welcome, sizeof(welcome));
          char rest;
          (void)!recv(socket, &rest, 1, 0);
        },
        false);
    auto importer = MakeEndpoint();
    CHECK_EQUAL(FailureOf(*importer, GrantOf(liar.address(), {kBytes})), "PEER_REFUSED");
  }
  const int fd = Memory(kBytes, kGoodSeals);
  Liar liar([fd](int socket) {
    const Welcome welcome = GoodWelcome();
    Say(socket, &welcome, sizeof(welcome));
    SayParcel(socket, GoodParcel(), {fd});
    Say(socket, "x", 1);
    char rest;
    (void)!recv(socket, &rest, 1, 0);
  });
  auto importer = MakeEndpoint();
  const uint64_t peer = importer->Connect(GrantOf(liar.address(), {kBytes}));
  WaitFor("the refusal", [&] { return importer->Link(peer).status() == LinkStatus::kFailed; });
  CHECK(importer->Link(peer).error_code() == ErrorCode::kPEER_REFUSED);
  close(fd);
}

TEST(ImporterRefusesParcelsThatAreNotInOrder) {
  const auto with = [](auto change, size_t fds) {
    Parcel parcel = GoodParcel();
    change(parcel);
    std::vector<int> sent;
    for (size_t i = 0; i < fds; ++i) sent.push_back(Memory(kBytes, kGoodSeals));
    return TakenParcel(parcel, sent);
  };
  const auto same = [](Parcel&) {};
  CHECK_EQUAL(with(same, 0), "PEER_REFUSED");
  CHECK_EQUAL(with(same, 2), "PEER_REFUSED");
  CHECK_EQUAL(with(same, kParcelMemoriesMax), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.magic = 0; }, 1), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.first = 1; }, 1), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.count = 0; }, 0), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.count = 2; }, 2), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.count = 0xffffffff; }, 1), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.bytes[0] = kBytes / 2; }, 1), "PEER_REFUSED");
  CHECK_EQUAL(with([](Parcel& parcel) { parcel.bytes[0] = UINT64_MAX; }, 1), "PEER_REFUSED");
}

TEST(ImporterMapsNothingThatCouldShrinkBeWrittenOrFault) {
  const auto taken = [](int fd) { return TakenParcel(GoodParcel(), {fd}); };
  CHECK_EQUAL(taken(Memory(kBytes, 0)), "PEER_REFUSED");
  CHECK_EQUAL(taken(Memory(kBytes, F_SEAL_GROW | F_SEAL_FUTURE_WRITE)), "PEER_REFUSED");
  CHECK_EQUAL(taken(Memory(kBytes, F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE)), "PEER_REFUSED");
  CHECK_EQUAL(taken(Memory(kBytes, F_SEAL_SHRINK | F_SEAL_GROW)), "PEER_REFUSED");
  CHECK_EQUAL(taken(Memory(kBytes - 1, kGoodSeals)), "PEER_REFUSED");
  CHECK_EQUAL(taken(Memory(kBytes + 4096, kGoodSeals)), "PEER_REFUSED");
  CHECK_EQUAL(taken(open("/dev/null", O_RDWR | O_CLOEXEC)), "PEER_REFUSED");
  CHECK_EQUAL(taken(open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), "PEER_REFUSED");
  int pipes[2];
  CHECK_EQUAL(pipe(pipes), 0);
  CHECK_EQUAL(taken(pipes[0]), "PEER_REFUSED");
  close(pipes[1]);
  // Sealed for good is as good.
  const int fd = Memory(kBytes, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE);
  Liar liar([fd](int socket) {
    const Welcome welcome = GoodWelcome();
    Say(socket, &welcome, sizeof(welcome));
    SayParcel(socket, GoodParcel(), {fd});
    char rest;
    (void)!recv(socket, &rest, 1, 0);
  });
  auto importer = MakeEndpoint();
  CHECK(Settled(*importer, importer->Connect(GrantOf(liar.address(), {kBytes}))) == LinkStatus::kReady);
  close(fd);
}

TEST(ImporterMapsNoHugePagesThatMayNotBeThere) {
  constexpr uint64_t kHuge = 2 << 20;
  const int fd = memfd_create("lie", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (fd < 0) {
    std::printf("  this system makes no huge pages: left out\n");
    return;
  }
  CHECK_EQUAL(ftruncate(fd, kHuge), 0);
  CHECK_EQUAL(fcntl(fd, F_ADD_SEALS, kGoodSeals), 0);
  CHECK_EQUAL(CodeOf([&] { HostMapping::Map(Fd(fd), kHuge); }), "PEER_REFUSED");
}

}  // namespace state_handoff::test
