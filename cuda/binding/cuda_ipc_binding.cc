// The CUDA IPC transport, as JavaScript sees it. Names and order as in lib/native/cuda-types.ts.
#include "../transport/cuda_ipc_endpoint.h"
#include "cuda_objects.h"
#include "host_arguments.h"
#include "memory_objects.h"
#include "transport_environment.h"

namespace state_handoff {

namespace {

struct CudaIpcHandle {
  static constexpr napi_type_tag kTag{0xc87b19f0425e4da3, 0x913d6ae5f02c78b4};
  static constexpr const char* kExpected = "a native CUDA IPC transport";
  std::shared_ptr<CudaIpcEndpoint> endpoint;
};

constexpr size_t kKernelBytesMax = 64 << 20;

CudaIpcEndpoint& EndpointArgument(const Napi::CallbackInfo& info) {
  return *HandleArgument<CudaIpcHandle>(info, 0, "endpoint").endpoint;
}

Napi::Value CudaIpcOpen(const Napi::CallbackInfo& info) {
  CudaIpcEndpoint::Options options;
  options.blocks = GenerationsObject::TableOf(info[0], "blockGenerations");
  options.slots = GenerationsObject::TableOf(info[1], "slotGenerations");
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 2, "transfersMax", 1, 1 << 20));
  if (!info[3].IsNull()) {
    const Elements<uint8_t> image = BytesArgument(info, 3, "kernels");
    if (image.count == 0 || image.count > kKernelBytesMax) ThrowArgument("kernels", "from 1 byte to 64 MiB");
    options.kernels.assign(reinterpret_cast<const char*>(image.data), image.count);
  }
  TransportEnvironment& environment = EnvironmentOf(info);
  auto handle = std::make_unique<CudaIpcHandle>();
  handle->endpoint =
      std::make_shared<CudaIpcEndpoint>(std::move(options), [bell = environment.bell()] { bell->Ring(); });
  environment.Add(handle->endpoint);
  return WrapHandle(info.Env(), std::move(handle));
}

Napi::Value CudaIpcRegister(const Napi::CallbackInfo& info) {
  const size_t index = EndpointArgument(info).AddRegion(HandleArgument<CudaRegionHandle>(info, 1, "region").region);
  return Napi::Number::New(info.Env(), static_cast<double>(index));
}

Napi::Value CudaIpcListen(const Napi::CallbackInfo& info) {
  const SocketAddress address =
      EndpointArgument(info).Listen(FlagArgument(info, 1, "abstract"), TextArgument(info, 2, "directory", 4096),
                                    TextArgument(info, 3, "name", 64), TokenArgument(info, 4));
  Napi::Object value = Napi::Object::New(info.Env());
  value.Set("abstract", Napi::Boolean::New(info.Env(), address.abstract));
  value.Set("name", Napi::String::New(info.Env(), address.name));
  return value;
}

Napi::Value CudaIpcConnect(const Napi::CallbackInfo& info) {
  return Napi::Number::New(info.Env(), static_cast<double>(EndpointArgument(info).Connect(GrantArgument(info, 1))));
}

Napi::Value CudaIpcPeerStatus(const Napi::CallbackInfo& info) {
  const PeerLink& link = EndpointArgument(info).Link(IdArgument(info, 1, "peer"));
  return Napi::Number::New(info.Env(), static_cast<int>(link.status()));
}

Napi::Value CudaIpcPeerError(const Napi::CallbackInfo& info) {
  const PeerLink& link = EndpointArgument(info).Link(IdArgument(info, 1, "peer"));
  if (link.status() != LinkStatus::kFailed) return info.Env().Null();
  return ErrorValue(info.Env(), link.error_code(), link.error_message());
}

Napi::Value CudaIpcDisconnect(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Disconnect(IdArgument(info, 1, "peer"));
  return info.Env().Undefined();
}

Napi::Value CudaIpcBegin(const Napi::CallbackInfo& info) {
  CudaIpcEndpoint& endpoint = EndpointArgument(info);
  const uint64_t peer = IdArgument(info, 1, "peer");
  CopyProgram program = ProgramArgument(info, 2);
  ClaimedGenerations blocks = ClaimedArgument(info, 5, "generations.blocks", "generations.blockGenerations");
  ClaimedGenerations slots = ClaimedArgument(info, 7, "generations.slots", "generations.slotGenerations");
  const uint64_t id = endpoint.Begin(peer, std::move(program), std::move(blocks), std::move(slots));
  return Napi::Number::New(info.Env(), static_cast<double>(id));
}

Napi::Value CudaIpcPoll(const Napi::CallbackInfo& info) {
  const GpuTransfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  return Napi::Number::New(info.Env(), static_cast<int>(transfer.status()));
}

Napi::Value CudaIpcBytes(const Napi::CallbackInfo& info) {
  const GpuTransfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  return Napi::Number::New(info.Env(), static_cast<double>(transfer.bytes_done()));
}

Napi::Value CudaIpcError(const Napi::CallbackInfo& info) {
  const GpuTransfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  if (transfer.status() == GpuStatus::kActive || transfer.status() == GpuStatus::kDone) return info.Env().Null();
  return ErrorValue(info.Env(), transfer.error_code(), transfer.error_message());
}

Napi::Value CudaIpcCancel(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Cancel(IdArgument(info, 1, "transfer"));
  return info.Env().Undefined();
}

Napi::Value CudaIpcTake(const Napi::CallbackInfo& info) {
  const std::vector<uint64_t> ids = EndpointArgument(info).TakeEnded();
  Napi::Float64Array taken = Napi::Float64Array::New(info.Env(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) taken[i] = static_cast<double>(ids[i]);
  return taken;
}

Napi::Value CudaIpcForget(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Forget(IdArgument(info, 1, "transfer"));
  return info.Env().Undefined();
}

Napi::Value CudaIpcClose(const Napi::CallbackInfo& info) {
  EndpointArgument(info).BeginClose();
  return info.Env().Undefined();
}

// Whether all threads of a closing transport have left; joins them then, which does not wait.
Napi::Value CudaIpcQuiet(const Napi::CallbackInfo& info) {
  CudaIpcEndpoint& endpoint = EndpointArgument(info);
  const bool quiet = endpoint.quiet();
  if (quiet) endpoint.Close();
  return Napi::Boolean::New(info.Env(), quiet);
}

}  // namespace

void InitCudaIpc(Napi::Env env, Napi::Object exports, TransportEnvironment* environment) {
  Export<CudaIpcOpen>(env, exports, "cudaIpcOpen", environment);
  Export<CudaIpcRegister>(env, exports, "cudaIpcRegister");
  Export<CudaIpcListen>(env, exports, "cudaIpcListen");
  Export<CudaIpcConnect>(env, exports, "cudaIpcConnect");
  Export<CudaIpcPeerStatus>(env, exports, "cudaIpcPeerStatus");
  Export<CudaIpcPeerError>(env, exports, "cudaIpcPeerError");
  Export<CudaIpcDisconnect>(env, exports, "cudaIpcDisconnect");
  Export<CudaIpcBegin>(env, exports, "cudaIpcBegin");
  Export<CudaIpcPoll>(env, exports, "cudaIpcPoll");
  Export<CudaIpcBytes>(env, exports, "cudaIpcBytes");
  Export<CudaIpcError>(env, exports, "cudaIpcError");
  Export<CudaIpcCancel>(env, exports, "cudaIpcCancel");
  Export<CudaIpcTake>(env, exports, "cudaIpcTake");
  Export<CudaIpcForget>(env, exports, "cudaIpcForget");
  Export<CudaIpcClose>(env, exports, "cudaIpcClose");
  Export<CudaIpcQuiet>(env, exports, "cudaIpcQuiet");
}

}  // namespace state_handoff
