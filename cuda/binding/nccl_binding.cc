// The NCCL transport, as JavaScript sees it. Names and order as in lib/native/nccl-types.ts.
#include <algorithm>

#include "../transport/nccl_endpoint.h"
#include "cuda_objects.h"
#include "host_arguments.h"
#include "transport_environment.h"

namespace state_handoff {

namespace {

constexpr size_t kKernelBytesMax = 64 << 20;
constexpr size_t kPeerRegionsMax = 4096;

struct NcclHandle {
  static constexpr napi_type_tag kTag{0x2f6e917c0ab84d35, 0xd41b8e620f39c7a8};
  static constexpr const char* kExpected = "a native NCCL transport";
  std::shared_ptr<NcclEndpoint> endpoint;
};

NcclEndpoint& EndpointArgument(const Napi::CallbackInfo& info) {
  return *HandleArgument<NcclHandle>(info, 0, "endpoint").endpoint;
}

Napi::Value NcclOpen(const Napi::CallbackInfo& info) {
  NcclEndpoint::Options options;
  options.candidates = LinesArgument(info, 0, "candidates");
  options.cut.chunk_bytes = WholeArgument(info, 1, "chunkBytes", 4096, int64_t{1} << 30);
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 2, "transfersMax", 1, 1 << 20));
  options.cut.packed = FlagArgument(info, 3, "packed");
  if (!info[4].IsNull()) {
    const Elements<uint8_t> image = BytesArgument(info, 4, "kernels");
    if (image.count == 0 || image.count > kKernelBytesMax) ThrowArgument("kernels", "from 1 byte to 64 MiB");
    options.kernels.assign(reinterpret_cast<const char*>(image.data), image.count);
  }
  TransportEnvironment& environment = EnvironmentOf(info);
  auto handle = std::make_unique<NcclHandle>();
  handle->endpoint = std::make_shared<NcclEndpoint>(std::move(options), [bell = environment.bell()] { bell->Ring(); });
  environment.Add(handle->endpoint);
  return WrapHandle(info.Env(), std::move(handle));
}

Napi::Value NcclRegister(const Napi::CallbackInfo& info) {
  const size_t index = EndpointArgument(info).AddRegion(HandleArgument<CudaRegionHandle>(info, 1, "region").region);
  return Napi::Number::New(info.Env(), static_cast<double>(index));
}

Napi::Value NcclStart(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Start();
  return info.Env().Undefined();
}

Napi::Value NcclReadiness(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<int>(EndpointArgument(info).readiness()));
}

Napi::Value NcclStartError(const Napi::CallbackInfo& info) {
  const NcclEndpoint& endpoint = EndpointArgument(info);
  if (endpoint.readiness() != NcclEndpoint::Readiness::kFailed) return info.Env().Null();
  return ErrorValue(info.Env(), endpoint.error_code(), endpoint.error_message());
}

Napi::Value NcclUniqueIdOf(const Napi::CallbackInfo& info) {
  const NcclUniqueId unique = EndpointArgument(info).MakeUniqueId();
  Napi::Uint8Array bytes = Napi::Uint8Array::New(info.Env(), sizeof(unique.bytes));
  std::copy(std::begin(unique.bytes), std::end(unique.bytes), bytes.Data());
  return bytes;
}

Napi::Value NcclJoin(const Napi::CallbackInfo& info) {
  NcclEndpoint& endpoint = EndpointArgument(info);
  const Elements<uint8_t> bytes = BytesArgument(info, 1, "uniqueId");
  NcclUniqueId unique;
  if (bytes.count != sizeof(unique.bytes)) ThrowArgument("uniqueId", "128 bytes");
  std::copy(bytes.data, bytes.data + bytes.count, unique.bytes);
  const int rank = static_cast<int>(WholeArgument(info, 2, "rank", 0, 1));
  return Napi::Number::New(info.Env(), static_cast<double>(endpoint.Join(unique, rank)));
}

Napi::Value NcclCommStatusOf(const Napi::CallbackInfo& info) {
  const NcclCommLink& comm = EndpointArgument(info).Comm(IdArgument(info, 1, "comm"));
  return Napi::Number::New(info.Env(), static_cast<int>(comm.status()));
}

Napi::Value NcclCommError(const Napi::CallbackInfo& info) {
  const NcclCommLink& comm = EndpointArgument(info).Comm(IdArgument(info, 1, "comm"));
  if (comm.status() != NcclCommStatus::kFailed) return info.Env().Null();
  return ErrorValue(info.Env(), comm.error_code(), comm.error_message());
}

Napi::Value NcclAbort(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Abort(IdArgument(info, 1, "comm"), FlagArgument(info, 2, "lost"),
                               TextArgument(info, 3, "why", 4096));
  return info.Env().Undefined();
}

Napi::Value NcclBegin(const Napi::CallbackInfo& info) {
  NcclEndpoint& endpoint = EndpointArgument(info);
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
  return Napi::Number::New(info.Env(), static_cast<double>(id));
}

Napi::Value NcclPoll(const Napi::CallbackInfo& info) {
  const NcclTransfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  return Napi::Number::New(info.Env(), static_cast<int>(transfer.status()));
}

Napi::Value NcclBytesDone(const Napi::CallbackInfo& info) {
  const NcclTransfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  return Napi::Number::New(info.Env(), static_cast<double>(transfer.bytes_done()));
}

Napi::Value NcclError(const Napi::CallbackInfo& info) {
  const NcclTransfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  const NcclStatus status = transfer.status();
  if (status == NcclStatus::kActive || status == NcclStatus::kDone) return info.Env().Null();
  return ErrorValue(info.Env(), transfer.error_code(), transfer.error_message());
}

Napi::Value NcclTake(const Napi::CallbackInfo& info) {
  const std::vector<uint64_t> ids = EndpointArgument(info).TakeEnded();
  Napi::Float64Array taken = Napi::Float64Array::New(info.Env(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) taken[i] = static_cast<double>(ids[i]);
  return taken;
}

Napi::Value NcclForget(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Forget(IdArgument(info, 1, "transfer"));
  return info.Env().Undefined();
}

Napi::Value NcclClose(const Napi::CallbackInfo& info) {
  EndpointArgument(info).BeginClose();
  return info.Env().Undefined();
}

// Whether the thread of a closing transport has left; joins it then, which does not wait.
Napi::Value NcclQuiet(const Napi::CallbackInfo& info) {
  NcclEndpoint& endpoint = EndpointArgument(info);
  const bool quiet = endpoint.quiet();
  if (quiet) endpoint.Close();
  return Napi::Boolean::New(info.Env(), quiet);
}

}  // namespace

void InitNccl(Napi::Env env, Napi::Object exports, TransportEnvironment* environment) {
  Export<NcclOpen>(env, exports, "ncclOpen", environment);
  Export<NcclRegister>(env, exports, "ncclRegister");
  Export<NcclStart>(env, exports, "ncclStart");
  Export<NcclReadiness>(env, exports, "ncclReadiness");
  Export<NcclStartError>(env, exports, "ncclStartError");
  Export<NcclUniqueIdOf>(env, exports, "ncclUniqueId");
  Export<NcclJoin>(env, exports, "ncclJoin");
  Export<NcclCommStatusOf>(env, exports, "ncclCommStatus");
  Export<NcclCommError>(env, exports, "ncclCommError");
  Export<NcclAbort>(env, exports, "ncclAbort");
  Export<NcclBegin>(env, exports, "ncclBegin");
  Export<NcclPoll>(env, exports, "ncclPoll");
  Export<NcclBytesDone>(env, exports, "ncclBytes");
  Export<NcclError>(env, exports, "ncclError");
  Export<NcclTake>(env, exports, "ncclTake");
  Export<NcclForget>(env, exports, "ncclForget");
  Export<NcclClose>(env, exports, "ncclClose");
  Export<NcclQuiet>(env, exports, "ncclQuiet");
}

}  // namespace state_handoff
