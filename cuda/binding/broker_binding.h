// What transports that connect through a host broker show JavaScript alike: listening, connecting with a grant, and
// pulls with the generations that they claim. Names and order as in lib/native/broker-types.ts.
#pragma once

#include <algorithm>

#include "../core/generation_claims.h"
#include "../transport/host_link.h"
#include "endpoint_binding.h"

namespace state_handoff {

inline Token TokenArgument(const Napi::CallbackInfo& info, size_t index) {
  const Elements<uint8_t> bytes = BytesArgument(info, index, "token");
  Token token{};
  if (bytes.count != token.size()) ThrowArgument("token", "16 bytes");
  std::copy(bytes.data, bytes.data + bytes.count, token.begin());
  return token;
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

template <typename Handle, typename Region>
struct BrokerBinding : EndpointBinding<Handle> {
  using Shared = EndpointBinding<Handle>;

  static Napi::Value Listen(const Napi::CallbackInfo& info) {
    const SocketAddress address =
        Shared::Endpoint(info).Listen(FlagArgument(info, 1, "abstract"), TextArgument(info, 2, "directory", 4096),
                                      TextArgument(info, 3, "name", 64), TokenArgument(info, 4));
    Napi::Object value = Napi::Object::New(info.Env());
    value.Set("abstract", Napi::Boolean::New(info.Env(), address.abstract));
    value.Set("name", Napi::String::New(info.Env(), address.name));
    return value;
  }

  static Napi::Value Connect(const Napi::CallbackInfo& info) {
    auto& endpoint = Shared::Endpoint(info);
    return IdValue(info.Env(), endpoint.Connect(GrantArgument(info, 1)));
  }

  static Napi::Value Begin(const Napi::CallbackInfo& info) {
    auto& endpoint = Shared::Endpoint(info);
    const uint64_t peer = IdArgument(info, 1, "peer");
    CopyProgram program = ProgramArgument(info, 2);
    ClaimedGenerations blocks = ClaimedArgument(info, 5, "generations.blocks", "generations.blockGenerations");
    ClaimedGenerations slots = ClaimedArgument(info, 7, "generations.slots", "generations.slotGenerations");
    return IdValue(info.Env(), endpoint.Begin(peer, std::move(program), std::move(blocks), std::move(slots)));
  }

  // Everything but what opens one.
  static Napi::Object Calls(Napi::Env env) {
    Napi::Object calls = Napi::Object::New(env);
    Export<Shared::template Register<Region>>(env, calls, "register");
    Export<Listen>(env, calls, "listen");
    Export<Connect>(env, calls, "connect");
    Export<Shared::PeerStatus>(env, calls, "peerStatus");
    Export<Shared::PeerError>(env, calls, "peerError");
    Export<Shared::Disconnect>(env, calls, "disconnect");
    Export<Begin>(env, calls, "begin");
    Export<Shared::Poll>(env, calls, "poll");
    Export<Shared::Bytes>(env, calls, "bytes");
    Export<Shared::Error>(env, calls, "error");
    Export<Shared::Cancel>(env, calls, "cancel");
    Export<Shared::Take>(env, calls, "take");
    Export<Shared::Forget>(env, calls, "forget");
    Export<Shared::Close>(env, calls, "close");
    Export<Shared::Quiet>(env, calls, "quiet");
    return calls;
  }
};

}  // namespace state_handoff
