// Abstract Unix addresses for tests that speak to the other end themselves.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <cstddef>
#include <cstring>

#include "host_fixture.h"

namespace state_handoff::test {

inline sockaddr_un AddressOf(const std::string& name, socklen_t& bytes) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  return address;
}

}  // namespace state_handoff::test
