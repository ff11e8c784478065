#include "host_wire.h"

#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace state_handoff {

Fd::~Fd() {
  if (fd_ >= 0) close(fd_);
}

Packet ReceivePacket(int socket, void* data, size_t bytes, size_t fds_max) {
  iovec part{data, bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kParcelMemoriesMax * sizeof(int))];
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fds_max > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds_max * sizeof(int));
  }
  ssize_t got;
  do {
    got = recvmsg(socket, &message, MSG_DONTWAIT | MSG_TRUNC | MSG_CMSG_CLOEXEC);
  } while (got < 0 && errno == EINTR);
  if (got < 0) return Packet{errno == EAGAIN ? Packet::Kind::kNothingYet : Packet::Kind::kBroken, 0, {}, false};
  Packet packet{got == 0 ? Packet::Kind::kClosed : Packet::Kind::kPacket, static_cast<size_t>(got), {}, false};
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr; header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (header->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd;
      std::memcpy(&fd, CMSG_DATA(header) + i * sizeof(int), sizeof(int));
      packet.fds.emplace_back(fd);
    }
  }
  packet.fds_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  return packet;
}

Sent SendPacket(int socket, const void* data, size_t bytes, const int* fds, size_t fd_count) {
  iovec part{const_cast<void*>(data), bytes};
  alignas(cmsghdr) char control[CMSG_SPACE(kParcelMemoriesMax * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (fd_count > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fd_count * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fd_count * sizeof(int));
    std::memcpy(CMSG_DATA(header), fds, fd_count * sizeof(int));
  }
  ssize_t sent;
  do {
    sent = sendmsg(socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent >= 0) return Sent::kSent;
  // Too many descriptors on their way is cured by the importer's reading, like a full buffer.
  return errno == EAGAIN || errno == ENOBUFS || errno == ETOOMANYREFS ? Sent::kLater : Sent::kBroken;
}

bool SameUser(int socket) {
  ucred credentials{};
  socklen_t bytes = sizeof(credentials);
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return false;
  return credentials.uid == geteuid();
}

}  // namespace state_handoff
