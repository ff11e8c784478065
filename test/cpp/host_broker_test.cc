// Promise: an importer that lies, garbles, says nothing or belongs to another user is hung up on in bounded time; the
// broker goes on and keeps nothing of it.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>

#include "unix_address.h"

namespace state_handoff::test {

namespace {

constexpr uint64_t kBytes = 1 << 20;

void Say(int socket, const void* data, size_t bytes) { (void)!send(socket, data, bytes, MSG_NOSIGNAL); }

}  // namespace

TEST(BrokerOutlivesImportersThatLie) {
  HostEndpoint::Options options;
  options.blocks = std::make_shared<Generations>(4);
  auto exporter = MakeEndpoint(std::move(options));
  exporter->AddRegion(HostRegion::Allocate(kBytes, "test"));
  const SocketAddress address = exporter->Listen(true, ".", FreshName(), kToken);
  const size_t descriptors = OpenDescriptors();
  const auto lie = [&](const std::function<void(int)>& body) {
    const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t bytes = 0;
    const sockaddr_un to = AddressOf(address.name, bytes);
    CHECK_EQUAL(connect(socket, reinterpret_cast<const sockaddr*>(&to), bytes), 0);
    body(socket);
    // Whatever it said, the broker hangs up on it.
    timeval limit{20, 0};
    setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    char rest[4096];
    ssize_t got;
    do {
      got = recv(socket, rest, sizeof(rest), 0);
    } while (got > 0);
    CHECK(got == 0 || errno == ECONNRESET);
    close(socket);
  };
  const Hello good{kWireMagic, kWireVersion, 0, kToken, 1, 0};
  lie([](int socket) { Say(socket, "x", 1); });
  lie([](int socket) { Say(socket, "", 0); });
  lie([](int socket) {
    const std::vector<char> large(100'000, 'x');
    Say(socket, large.data(), large.size());
  });
  lie([&](int socket) {
    Hello hello = good;
    hello.magic = 0;
    Say(socket, &hello, sizeof(hello));
  });
  lie([&](int socket) {
    struct {
      Hello hello;
      char more;
    } longer{good, 'x'};
    Say(socket, &longer, sizeof(longer));
  });
  for (const uint32_t count : {0u, 2u, 0xffffffffu}) {
    lie([&](int socket) {
      Hello hello = good;
      hello.region_count = count;
      Say(socket, &hello, sizeof(hello));
    });
  }
  lie([&](int socket) {
    Hello hello = good;
    hello.token[0] ^= 0x80;
    Say(socket, &hello, sizeof(hello));
  });
  lie([&](int socket) {
    Say(socket, &good, sizeof(good));
    Say(socket, &good, sizeof(good));
  });
  // Descriptors that it did not ask for are not kept open.
  for (int i = 0; i < 50; ++i) {
    lie([&](int socket) {
      const int fds[4] = {0, 1, 2, socket};
      Hello hello = good;
      hello.magic = 0;
      (void)SendPacket(socket, &hello, sizeof(hello), fds, 4);
    });
  }
  WaitFor("descriptors to be closed", [&] { return OpenDescriptors() == descriptors; });
  auto importer = MakeEndpoint();
  HostGrant grant = GrantOf(address, {kBytes});
  grant.block_generations = 4;
  CHECK(Settled(*importer, importer->Connect(grant)) == LinkStatus::kReady);
}

TEST(BrokerHangsUpOnAnImporterThatSaysNothing) {
  auto exporter = MakeEndpoint();
  exporter->AddRegion(HostRegion::Allocate(kBytes, "test"));
  const SocketAddress address = exporter->Listen(true, ".", FreshName(), kToken);
  auto honest = MakeEndpoint();
  const uint64_t peer = honest->Connect(GrantOf(address, {kBytes}));
  CHECK(Settled(*honest, peer) == LinkStatus::kReady);
  const int socket = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  socklen_t bytes = 0;
  const sockaddr_un to = AddressOf(address.name, bytes);
  CHECK_EQUAL(connect(socket, reinterpret_cast<const sockaddr*>(&to), bytes), 0);
  timeval limit{20, 0};
  setsockopt(socket, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  char rest;
  CHECK_EQUAL(recv(socket, &rest, 1, 0), 0);
  close(socket);
  // One that said its hello longer ago is still served.
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  CHECK(honest->Link(peer).status() == LinkStatus::kReady);
}

TEST(BrokerAndImporterServeNoOtherUser) {
  if (geteuid() != 0) {
    std::printf("  only root can become another user: left out\n");
    return;
  }
  auto exporter = MakeEndpoint();
  exporter->AddRegion(HostRegion::Allocate(kBytes, "test"));
  const SocketAddress address = exporter->Listen(true, ".", FreshName(), kToken);
  // As another user: hangs up on us at once, whatever we would say; and a broker of ours is told nothing.
  const std::string name = FreshName();
  int pipes[2];
  CHECK_EQUAL(pipe(pipes), 0);
  const pid_t stranger = fork();
  if (stranger == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(3);
    const int broker = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    socklen_t bytes = 0;
    const sockaddr_un own = AddressOf(name, bytes);
    if (bind(broker, reinterpret_cast<const sockaddr*>(&own), bytes) != 0 || listen(broker, 1) != 0) _exit(4);
    (void)!write(pipes[1], "x", 1);
    const int importer = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    const sockaddr_un to = AddressOf(address.name, bytes);
    if (connect(importer, reinterpret_cast<const sockaddr*>(&to), bytes) != 0) _exit(5);
    const Hello hello{kWireMagic, kWireVersion, 0, kToken, 1, 0};
    (void)!send(importer, &hello, sizeof(hello), MSG_NOSIGNAL);
    Welcome welcome{};
    if (recv(importer, &welcome, sizeof(welcome), 0) > 0) _exit(6);
    // Whoever connects to the broker hangs up without a word.
    const int victim = accept(broker, nullptr, nullptr);
    Hello heard{};
    _exit(recv(victim, &heard, sizeof(heard), 0) > 0 ? 7 : 0);
  }
  char ready;
  CHECK_EQUAL(read(pipes[0], &ready, 1), 1);
  auto importer = MakeEndpoint();
  CHECK_EQUAL(FailureOf(*importer, GrantOf(SocketAddress{true, name}, {kBytes})), "PEER_REFUSED");
  int status = 0;
  CHECK_EQUAL(waitpid(stranger, &status, 0), stranger);
  CHECK_EQUAL(status, 0);
  close(pipes[0]);
  close(pipes[1]);
}

}  // namespace state_handoff::test
