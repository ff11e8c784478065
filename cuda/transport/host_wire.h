// What the two ends of a host transport say over their Unix socket, packet by packet, and how descriptors travel.
//
// One machine, so native byte order. Importer: Hello. Exporter: Welcome, then Parcels of sealed memories in the order
// regions, block generations, slot generations. After that neither says anything; the socket only tells of death.
#pragma once

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace state_handoff {

inline constexpr uint32_t kWireMagic = 0x31544853;  // "SHT1"
inline constexpr uint16_t kWireVersion = 1;
inline constexpr uint32_t kWireRegionsMax = 4096;
inline constexpr uint32_t kParcelMemoriesMax = 32;

using Token = std::array<uint8_t, 16>;

enum class Verdict : uint16_t { kWelcome = 0, kVersion = 1, kToken = 2, kRegions = 3, kBusy = 4 };

struct Hello {
  uint32_t magic;
  uint16_t version;
  uint16_t reserved;
  Token token;
  uint32_t region_count;
  uint32_t reserved_too;
};
static_assert(sizeof(Hello) == 32);

struct Welcome {
  uint32_t magic;
  uint16_t version;
  Verdict verdict;
  uint32_t region_count;
  uint32_t reserved;
  uint64_t block_generations;  // 0: none
  uint64_t slot_generations;
};
static_assert(sizeof(Welcome) == 32);

struct Parcel {
  uint32_t magic;
  uint32_t first;  // index of its first memory
  uint32_t count;
  uint32_t reserved;
  std::array<uint64_t, kParcelMemoriesMax> bytes;
};
static_assert(sizeof(Parcel) == 16 + 8 * kParcelMemoriesMax);

// A descriptor that closes itself.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd();
  int get() const { return fd_; }

 private:
  int fd_;
};

struct Packet {
  enum class Kind { kNothingYet, kPacket, kClosed, kBroken } kind;
  size_t bytes = 0;  // as sent; larger than the buffer when it was cut
  std::vector<Fd> fds;
  bool fds_lost = false;
};

// Never blocks. Descriptors are taken only when `fds_max` is not 0; others that were sent are closed by the system.
Packet ReceivePacket(int socket, void* data, size_t bytes, size_t fds_max);

enum class Sent { kSent, kLater, kBroken };
// Never blocks, raises no signal.
Sent SendPacket(int socket, const void* data, size_t bytes, const int* fds, size_t fd_count);

// Whether the other end of the socket belongs to the same user.
bool SameUser(int socket);

// Where a broker listens.
struct SocketAddress {
  bool abstract;
  std::string name;  // abstract name without the leading NUL, or a path
};

}  // namespace state_handoff
