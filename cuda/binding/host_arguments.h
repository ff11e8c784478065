// How transports that connect through a host broker read what JavaScript gives them: ids, tokens, grants, claims.
#pragma once

#include <algorithm>

#include "../core/generation_claims.h"
#include "../transport/host_link.h"
#include "transfer_objects.h"

namespace state_handoff {

inline constexpr int64_t kIdMax = 9007199254740991;

inline uint64_t IdArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return static_cast<uint64_t>(WholeArgument(info, index, name, 1, kIdMax));
}

inline Token TokenArgument(const Napi::CallbackInfo& info, size_t index) {
  const Elements<uint8_t> bytes = BytesArgument(info, index, "token");
  Token token{};
  if (bytes.count != token.size()) ThrowArgument("token", "16 bytes");
  std::copy(bytes.data, bytes.data + bytes.count, token.begin());
  return token;
}

inline Napi::Value ErrorValue(Napi::Env env, ErrorCode code, const std::string& message) {
  Napi::Object error = Napi::Object::New(env);
  error.Set("code", Napi::String::New(env, ErrorCodeName(code)));
  error.Set("message", Napi::String::New(env, message));
  return error;
}

inline ClaimedGenerations ClaimedArgument(const Napi::CallbackInfo& info, size_t index, const char* ids,
                                          const char* values) {
  ClaimedGenerations claimed{Int32sArgument(info, index, ids).Copy(), Uint64sArgument(info, index + 1, values).Copy()};
  if (claimed.ids.size() != claimed.expected.size()) {
    ThrowArgument(values, std::to_string(claimed.ids.size()) + " values, one an id, got " +
                              std::to_string(claimed.expected.size()));
  }
  return claimed;
}

// Seven arguments from `index` on: abstract, name, token, regionBytes, blockGenerations, slotGenerations, timeoutMs.
inline HostGrant GrantArgument(const Napi::CallbackInfo& info, size_t index) {
  HostGrant grant{};
  grant.address = SocketAddress{FlagArgument(info, index, "abstract"), TextArgument(info, index + 1, "name", 107)};
  grant.token = TokenArgument(info, index + 2);
  grant.region_bytes = Uint64sArgument(info, index + 3, "regionBytes").Copy();
  if (grant.region_bytes.empty() || grant.region_bytes.size() > kWireRegionsMax) {
    ThrowArgument("regionBytes", "from 1 to " + std::to_string(kWireRegionsMax) + " regions");
  }
  for (const uint64_t bytes : grant.region_bytes) {
    if (bytes == 0 || bytes > static_cast<uint64_t>(kRegionBytesMax)) ThrowArgument("regionBytes", "sizes up to 2^52");
  }
  constexpr int64_t kGenerationsMax = int64_t{1} << 31;
  grant.block_generations =
      static_cast<uint64_t>(WholeArgument(info, index + 4, "blockGenerations", 0, kGenerationsMax));
  grant.slot_generations = static_cast<uint64_t>(WholeArgument(info, index + 5, "slotGenerations", 0, kGenerationsMax));
  grant.patience = std::chrono::milliseconds(WholeArgument(info, index + 6, "timeoutMs", 1, 600'000));
  return grant;
}

}  // namespace state_handoff
