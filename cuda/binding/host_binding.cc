// The host transport, as JavaScript sees it. Names and order as in lib/native/transfer-types.ts.
#include <algorithm>

#include "../transport/host_endpoint.h"
#include "../transport/host_plain_copy.h"
#include "host_arguments.h"
#include "memory_objects.h"
#include "transfer_objects.h"
#include "transport_environment.h"

namespace state_handoff {

namespace {

struct EndpointHandle {
  static constexpr napi_type_tag kTag{0x41d5c0a2be974c11, 0xb7f8306e5d2a9c43};
  static constexpr const char* kExpected = "a native host transport";
  std::shared_ptr<HostEndpoint> endpoint;
};

HostEndpoint& EndpointArgument(const Napi::CallbackInfo& info) {
  return *HandleArgument<EndpointHandle>(info, 0, "endpoint").endpoint;
}

Napi::Value HostOpen(const Napi::CallbackInfo& info) {
  HostEndpoint::Options options;
  options.blocks = GenerationsObject::TableOf(info[0], "blockGenerations");
  options.slots = GenerationsObject::TableOf(info[1], "slotGenerations");
  options.threads = static_cast<size_t>(WholeArgument(info, 2, "threads", 1, 64));
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 3, "transfersMax", 1, 1 << 20));
  TransportEnvironment& environment = EnvironmentOf(info);
  auto handle = std::make_unique<EndpointHandle>();
  handle->endpoint = std::make_shared<HostEndpoint>(std::move(options), [bell = environment.bell()] { bell->Ring(); });
  environment.Add(handle->endpoint);
  return WrapHandle(info.Env(), std::move(handle));
}

Napi::Value HostRegister(const Napi::CallbackInfo& info) {
  const size_t index = EndpointArgument(info).AddRegion(HandleArgument<RegionHandle>(info, 1, "region").region);
  return Napi::Number::New(info.Env(), static_cast<double>(index));
}

Napi::Value HostListen(const Napi::CallbackInfo& info) {
  HostEndpoint& endpoint = EndpointArgument(info);
  const SocketAddress address =
      endpoint.Listen(FlagArgument(info, 1, "abstract"), TextArgument(info, 2, "directory", 4096),
                      TextArgument(info, 3, "name", 64), TokenArgument(info, 4));
  Napi::Object value = Napi::Object::New(info.Env());
  value.Set("abstract", Napi::Boolean::New(info.Env(), address.abstract));
  value.Set("name", Napi::String::New(info.Env(), address.name));
  return value;
}

Napi::Value HostConnect(const Napi::CallbackInfo& info) {
  HostEndpoint& endpoint = EndpointArgument(info);
  HostGrant grant = GrantArgument(info, 1);
  return Napi::Number::New(info.Env(), static_cast<double>(endpoint.Connect(std::move(grant))));
}

Napi::Value HostPeerStatus(const Napi::CallbackInfo& info) {
  const PeerLink& link = EndpointArgument(info).Link(IdArgument(info, 1, "peer"));
  return Napi::Number::New(info.Env(), static_cast<int>(link.status()));
}

Napi::Value HostPeerError(const Napi::CallbackInfo& info) {
  const PeerLink& link = EndpointArgument(info).Link(IdArgument(info, 1, "peer"));
  if (link.status() != LinkStatus::kFailed) return info.Env().Null();
  return ErrorValue(info.Env(), link.error_code(), link.error_message());
}

Napi::Value HostDisconnect(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Disconnect(IdArgument(info, 1, "peer"));
  return info.Env().Undefined();
}

Napi::Value HostBegin(const Napi::CallbackInfo& info) {
  HostEndpoint& endpoint = EndpointArgument(info);
  const uint64_t peer = IdArgument(info, 1, "peer");
  CopyProgram program = ProgramArgument(info, 2);
  ClaimedGenerations blocks = ClaimedArgument(info, 5, "generations.blocks", "generations.blockGenerations");
  ClaimedGenerations slots = ClaimedArgument(info, 7, "generations.slots", "generations.slotGenerations");
  const uint64_t id = endpoint.Begin(peer, std::move(program), std::move(blocks), std::move(slots));
  return Napi::Number::New(info.Env(), static_cast<double>(id));
}

Napi::Value HostPoll(const Napi::CallbackInfo& info) {
  const Transfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  return Napi::Number::New(info.Env(), static_cast<int>(transfer.status()));
}

Napi::Value HostBytes(const Napi::CallbackInfo& info) {
  const Transfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  return Napi::Number::New(info.Env(), static_cast<double>(transfer.bytes_done()));
}

Napi::Value HostError(const Napi::CallbackInfo& info) {
  const Transfer& transfer = EndpointArgument(info).Find(IdArgument(info, 1, "transfer"));
  if (transfer.status() != TransferStatus::kFailed) return info.Env().Null();
  return ErrorValue(info.Env(), transfer.error_code(), transfer.error_message());
}

Napi::Value HostCancel(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Cancel(IdArgument(info, 1, "transfer"));
  return info.Env().Undefined();
}

Napi::Value HostTake(const Napi::CallbackInfo& info) {
  const std::vector<uint64_t> ids = EndpointArgument(info).TakeEnded();
  Napi::Float64Array taken = Napi::Float64Array::New(info.Env(), ids.size());
  for (size_t i = 0; i < ids.size(); ++i) taken[i] = static_cast<double>(ids[i]);
  return taken;
}

Napi::Value HostForget(const Napi::CallbackInfo& info) {
  EndpointArgument(info).Forget(IdArgument(info, 1, "transfer"));
  return info.Env().Undefined();
}

Napi::Value HostClose(const Napi::CallbackInfo& info) {
  EndpointArgument(info).BeginClose();
  return info.Env().Undefined();
}

// Whether all threads of a closing transport have left; joins them then, which does not wait.
Napi::Value HostQuiet(const Napi::CallbackInfo& info) {
  HostEndpoint& endpoint = EndpointArgument(info);
  const bool quiet = endpoint.quiet();
  if (quiet) endpoint.Close();
  return Napi::Boolean::New(info.Env(), quiet);
}

// Live native objects of the process, for the tests of leaks.
Napi::Value DebugCounters(const Napi::CallbackInfo& info) {
  Napi::Object counters = Napi::Object::New(info.Env());
  counters.Set("regions", Napi::Number::New(info.Env(), static_cast<double>(HostRegion::live())));
  counters.Set("mappings", Napi::Number::New(info.Env(), static_cast<double>(HostMapping::live())));
  counters.Set("threads", Napi::Number::New(info.Env(), static_cast<double>(ThreadPool::live())));
  return counters;
}

// For the benchmark: copies source offset, target offset and length triples from a peer's region 0 to `region`.
Napi::Value DebugCopyFragments(const Napi::CallbackInfo& info) {
  const std::shared_ptr<PeerMemory> memory = EndpointArgument(info).Link(IdArgument(info, 1, "peer")).memory();
  if (memory == nullptr) ThrowArgument("peer", "a peer that is ready");
  const RegionUse target(HandleArgument<RegionHandle>(info, 2, "region").region, "region");
  const Elements<double> triples = DoublesArgument(info, 3, "fragments");
  const auto threads = static_cast<size_t>(WholeArgument(info, 4, "threads", 1, 64));
  const HostMapping& source = *memory->regions[0];
  const auto inside = [](double offset, double bytes, size_t size) {
    return offset >= 0 && bytes >= 1 && offset + bytes <= static_cast<double>(size);
  };
  std::vector<PlainFragment> fragments;
  fragments.reserve(triples.count / 3);
  for (size_t i = 0; i + 2 < triples.count; i += 3) {
    const double bytes = triples.data[i + 2];
    if (!inside(triples.data[i], bytes, source.bytes()) || !inside(triples.data[i + 1], bytes, target.bytes())) {
      ThrowArgument("fragments", "bytes inside both regions");
    }
    fragments.push_back(PlainFragment{source.data() + static_cast<uint64_t>(triples.data[i]),
                                      target.data() + static_cast<uint64_t>(triples.data[i + 1]),
                                      static_cast<uint64_t>(bytes)});
  }
  return Napi::Number::New(info.Env(), static_cast<double>(CopyPlainFragments(fragments, threads)));
}

// For the benchmark: half of each token's bytes from blocks of a peer's region 0 to blocks of `region`.
Napi::Value DebugCopyHalfHeads(const Napi::CallbackInfo& info) {
  const std::shared_ptr<PeerMemory> memory = EndpointArgument(info).Link(IdArgument(info, 1, "peer")).memory();
  if (memory == nullptr) ThrowArgument("peer", "a peer that is ready");
  const RegionUse target(HandleArgument<RegionHandle>(info, 2, "region").region, "region");
  const HostMapping& source = *memory->regions[0];
  HalfHeads heads{source.data(), target.data(), Int32sArgument(info, 3, "sourceBlocks").Copy(),
                  Int32sArgument(info, 4, "targetBlocks").Copy()};
  const int64_t bytes = WholeArgument(info, 5, "bytes", 1, 64 << 10);
  const auto threads = static_cast<size_t>(WholeArgument(info, 6, "threads", 1, 64));
  if (!HasHalfHeadsLoop(bytes)) ThrowArgument("bytes", "64, 256, 1024, 4096, 16384 or 65536");
  if (heads.source_blocks.size() != heads.target_blocks.size()) ThrowArgument("targetBlocks", "one for each source");
  const auto inside = [](const std::vector<int32_t>& blocks, int64_t block_bytes, size_t size) {
    const int64_t count = static_cast<int64_t>(size) / block_bytes;
    return std::all_of(blocks.begin(), blocks.end(), [count](int32_t block) { return block >= 0 && block < count; });
  };
  const int64_t target_bytes = HalfHeads::kTokens * bytes;
  if (!inside(heads.source_blocks, 2 * target_bytes, source.bytes())) ThrowArgument("sourceBlocks", "blocks of a peer");
  if (!inside(heads.target_blocks, target_bytes, target.bytes())) ThrowArgument("targetBlocks", "blocks of the region");
  return Napi::Number::New(info.Env(), static_cast<double>(CopyHalfHeads(heads, bytes, threads)));
}

}  // namespace

void InitHost(Napi::Env env, Napi::Object exports, TransportEnvironment* environment) {
  Export<HostOpen>(env, exports, "hostOpen", environment);
  Export<HostRegister>(env, exports, "hostRegister");
  Export<HostListen>(env, exports, "hostListen");
  Export<HostConnect>(env, exports, "hostConnect");
  Export<HostPeerStatus>(env, exports, "hostPeerStatus");
  Export<HostPeerError>(env, exports, "hostPeerError");
  Export<HostDisconnect>(env, exports, "hostDisconnect");
  Export<HostBegin>(env, exports, "hostBegin");
  Export<HostPoll>(env, exports, "hostPoll");
  Export<HostBytes>(env, exports, "hostBytes");
  Export<HostError>(env, exports, "hostError");
  Export<HostCancel>(env, exports, "hostCancel");
  Export<HostTake>(env, exports, "hostTake");
  Export<HostForget>(env, exports, "hostForget");
  Export<HostClose>(env, exports, "hostClose");
  Export<HostQuiet>(env, exports, "hostQuiet");
  Export<DebugCounters>(env, exports, "debugCounters");
  Export<DebugCopyFragments>(env, exports, "debugCopyFragments");
  Export<DebugCopyHalfHeads>(env, exports, "debugCopyHalfHeads");
}

}  // namespace state_handoff
