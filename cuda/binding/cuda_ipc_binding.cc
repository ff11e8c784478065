// The CUDA IPC transport, as JavaScript sees it. Names and order as in lib/native/cuda-types.ts and
// broker-types.ts.
#include "../transport/cuda_ipc_endpoint.h"
#include "broker_binding.h"
#include "cuda_objects.h"
#include "memory_objects.h"

namespace state_handoff {

namespace {

struct CudaIpcHandle {
  static constexpr napi_type_tag kTag{0xc87b19f0425e4da3, 0x913d6ae5f02c78b4};
  static constexpr const char* kExpected = "a native CUDA IPC transport";
  std::shared_ptr<CudaIpcEndpoint> endpoint;
};

using Binding = BrokerBinding<CudaIpcHandle, CudaRegionHandle>;

Napi::Value CudaIpcOpen(const Napi::CallbackInfo& info) {
  CudaIpcEndpoint::Options options;
  options.blocks = GenerationsObject::TableOf(info[0], "blockGenerations");
  options.slots = GenerationsObject::TableOf(info[1], "slotGenerations");
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 2, "transfersMax", 1, 1 << 20));
  options.kernels = KernelsArgument(info, 3);
  return Binding::Open(info, std::move(options));
}

}  // namespace

void InitCudaIpc(Napi::Env env, Napi::Object exports, TransportEnvironment* environment) {
  Export<CudaIpcOpen>(env, exports, "cudaIpcOpen", environment);
  exports.Set("cudaIpc", Binding::Calls(env));
}

}  // namespace state_handoff
