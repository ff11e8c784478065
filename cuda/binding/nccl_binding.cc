// The NCCL transport, as JavaScript sees it. Names and order as in lib/native/nccl-types.ts.
#include <algorithm>

#include "../transport/nccl_endpoint.h"
#include "cuda_objects.h"
#include "endpoint_binding.h"

namespace state_handoff {

namespace {

constexpr size_t kPeerRegionsMax = 4096;

struct NcclHandle {
  static constexpr napi_type_tag kTag{0x2f6e917c0ab84d35, 0xd41b8e620f39c7a8};
  static constexpr const char* kExpected = "a native NCCL transport";
  std::shared_ptr<NcclEndpoint> endpoint;
};

using Binding = EndpointBinding<NcclHandle>;

Napi::Value NcclOpen(const Napi::CallbackInfo& info) {
  NcclEndpoint::Options options;
  options.candidates = LinesArgument(info, 0, "candidates");
  options.cut.chunk_bytes = WholeArgument(info, 1, "chunkBytes", 4096, int64_t{1} << 30);
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 2, "transfersMax", 1, 1 << 20));
  options.cut.packed = FlagArgument(info, 3, "packed");
  options.kernels = KernelsArgument(info, 4);
  return Binding::Open(info, std::move(options));
}

Napi::Value NcclStart(const Napi::CallbackInfo& info) {
  Binding::Endpoint(info).Start();
  return info.Env().Undefined();
}

Napi::Value NcclUniqueIdOf(const Napi::CallbackInfo& info) {
  const NcclUniqueId unique = Binding::Endpoint(info).MakeUniqueId();
  Napi::Uint8Array bytes = Napi::Uint8Array::New(info.Env(), sizeof(unique.bytes));
  std::copy(std::begin(unique.bytes), std::end(unique.bytes), bytes.Data());
  return bytes;
}

Napi::Value NcclJoin(const Napi::CallbackInfo& info) {
  NcclEndpoint& endpoint = Binding::Endpoint(info);
  const Elements<uint8_t> bytes = BytesArgument(info, 1, "uniqueId");
  NcclUniqueId unique;
  if (bytes.count != sizeof(unique.bytes)) ThrowArgument("uniqueId", "128 bytes");
  std::copy(bytes.data, bytes.data + bytes.count, unique.bytes);
  const int rank = static_cast<int>(WholeArgument(info, 2, "rank", 0, 1));
  return IdValue(info.Env(), endpoint.Join(unique, rank));
}

const NcclCommLink& CommArgument(const Napi::CallbackInfo& info) {
  return Binding::Endpoint(info).Comm(IdArgument(info, 1, "comm"));
}

Napi::Value NcclCommStatusOf(const Napi::CallbackInfo& info) { return StatusValue(info.Env(), CommArgument(info)); }

Napi::Value NcclCommError(const Napi::CallbackInfo& info) { return LinkFailureValue(info.Env(), CommArgument(info)); }

Napi::Value NcclAbort(const Napi::CallbackInfo& info) {
  Binding::Endpoint(info).Abort(IdArgument(info, 1, "comm"), FlagArgument(info, 2, "lost"),
                                TextArgument(info, 3, "why", 4096));
  return info.Env().Undefined();
}

Napi::Value NcclBegin(const Napi::CallbackInfo& info) {
  NcclEndpoint& endpoint = Binding::Endpoint(info);
  const uint64_t comm = IdArgument(info, 1, "comm");
  const bool sends = FlagArgument(info, 2, "sends");
  CopyProgram program = ProgramArgument(info, 3);
  const Elements<uint64_t> sizes = Uint64sArgument(info, 6, "peerBytes");
  if (sizes.count == 0 || sizes.count > kPeerRegionsMax) ThrowArgument("peerBytes", "from 1 to 4096 regions");
  std::vector<int64_t> peer_bytes;
  for (size_t i = 0; i < sizes.count; ++i) {
    if (sizes.data[i] == 0 || sizes.data[i] > static_cast<uint64_t>(kRegionBytesMax)) {
      ThrowArgument("peerBytes", "sizes up to 2^52");
    }
    peer_bytes.push_back(static_cast<int64_t>(sizes.data[i]));
  }
  const uint64_t id = endpoint.Begin(comm, sends, std::move(program), std::move(peer_bytes));
  return IdValue(info.Env(), id);
}

}  // namespace

void InitNccl(Napi::Env env, Napi::Object exports, TransportEnvironment* environment) {
  Export<NcclOpen>(env, exports, "ncclOpen", environment);
  Export<Binding::Register<CudaRegionHandle>>(env, exports, "ncclRegister");
  Export<NcclStart>(env, exports, "ncclStart");
  Export<Binding::Readiness>(env, exports, "ncclReadiness");
  Export<Binding::StartError>(env, exports, "ncclStartError");
  Export<NcclUniqueIdOf>(env, exports, "ncclUniqueId");
  Export<NcclJoin>(env, exports, "ncclJoin");
  Export<NcclCommStatusOf>(env, exports, "ncclCommStatus");
  Export<NcclCommError>(env, exports, "ncclCommError");
  Export<NcclAbort>(env, exports, "ncclAbort");
  Export<NcclBegin>(env, exports, "ncclBegin");
  Export<Binding::Poll>(env, exports, "ncclPoll");
  Export<Binding::Bytes>(env, exports, "ncclBytes");
  Export<Binding::Error>(env, exports, "ncclError");
  Export<Binding::Take>(env, exports, "ncclTake");
  Export<Binding::Forget>(env, exports, "ncclForget");
  Export<Binding::Close>(env, exports, "ncclClose");
  Export<Binding::Quiet>(env, exports, "ncclQuiet");
}

}  // namespace state_handoff
