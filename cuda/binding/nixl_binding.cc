// The NIXL transport, as JavaScript sees it. Names and order as in lib/native/nixl-types.ts.
#include "../transport/nixl_endpoint.h"
#include "cuda_objects.h"
#include "endpoint_binding.h"
#include "memory_objects.h"

namespace state_handoff {

namespace {

constexpr size_t kMetadataBytesMax = 1 << 20;
constexpr uint64_t kSlotsMax = 1024;
constexpr int64_t kReadersMax = 64;
constexpr uint64_t kSlotBytesMax = uint64_t{1} << 30;
// Values of one range in a flat array: address, bytes, memory, device.
constexpr size_t kRangeValues = 4;
// Address of the headers, slots, bytes of one; address, memory and device of the slots.
constexpr size_t kStagingValues = 6;
constexpr size_t kTuningValues = 8;

struct NixlHandle {
  static constexpr napi_type_tag kTag{0x6b0f3c8e11d24a7d, 0x93c5ae70d8f14b26};
  static constexpr const char* kExpected = "a native NIXL transport";
  std::shared_ptr<NixlEndpoint> endpoint;
};

using Binding = EndpointBinding<NixlHandle>;

Napi::BigUint64Array Numbers(Napi::Env env, const std::vector<uint64_t>& values) {
  Napi::BigUint64Array array = Napi::BigUint64Array::New(env, values.size());
  for (size_t i = 0; i < values.size(); ++i) array[i] = values[i];
  return array;
}

NixlTuning TuningArgument(const Napi::CallbackInfo& info, size_t index) {
  const Elements<double> values = DoublesArgument(info, index, "tuning");
  if (values.count != kTuningValues) ThrowArgument("tuning", std::to_string(kTuningValues) + " values");
  int64_t whole[kTuningValues];
  for (size_t i = 0; i < kTuningValues; ++i) {
    const double value = values.data[i];
    if (!(value >= 0 && value <= 1e15 && value == static_cast<double>(static_cast<int64_t>(value)))) {
      ThrowArgument("tuning[" + std::to_string(i) + "]", "an integer of at least 0");
    }
    whole[i] = static_cast<int64_t>(value);
  }
  if (whole[2] < 1) ThrowArgument("tuning[2]", "a read of at least 1 byte");
  if (whole[7] < 1) ThrowArgument("tuning[7]", "a read of at least 1 byte");
  return NixlTuning{whole[0], whole[1], whole[2], whole[3], whole[4], whole[5], whole[6], whole[7]};
}

Napi::Value NixlOpen(const Napi::CallbackInfo& info) {
  NixlEndpoint::Options options;
  options.candidates = LinesArgument(info, 0, "candidates");
  options.name = TextArgument(info, 1, "name", 128);
  options.exports = FlagArgument(info, 2, "exports");
  options.slots = static_cast<uint64_t>(WholeArgument(info, 3, "slots", 0, kSlotsMax));
  options.slot_bytes = static_cast<uint64_t>(WholeArgument(info, 4, "slotBytes", 1, kSlotBytesMax));
  options.gpu_slot_bytes = static_cast<uint64_t>(WholeArgument(info, 5, "gpuSlotBytes", 1, kSlotBytesMax));
  options.tuning = TuningArgument(info, 6);
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 7, "transfersMax", 1, 1 << 20));
  options.kernels = KernelsArgument(info, 8);
  return Binding::Open(info, std::move(options));
}

Napi::Value NixlStart(const Napi::CallbackInfo& info) {
  Binding::Endpoint(info).Start(FlagArgument(info, 1, "probe"));
  return info.Env().Undefined();
}

Napi::Value NixlGranted(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  NixlEndpoint& endpoint = Binding::Endpoint(info);
  const NixlGrant grant = endpoint.Grant();
  std::vector<uint64_t> ranges;
  for (const NixlRange& range : grant.regions) {
    ranges.insert(ranges.end(), {range.address, range.bytes, static_cast<uint64_t>(range.memory), range.device});
  }
  Napi::Object granted = Napi::Object::New(env);
  Napi::Uint8Array metadata = Napi::Uint8Array::New(env, grant.metadata.size());
  std::copy(grant.metadata.begin(), grant.metadata.end(), metadata.Data());
  granted.Set("metadata", metadata);
  granted.Set("ranges", Numbers(env, ranges));
  const NixlStaging& staging = grant.staging;
  granted.Set("staging", Numbers(env, {staging.address, staging.slots, staging.slot_bytes, staging.data.address,
                                       static_cast<uint64_t>(staging.data.memory), staging.data.device}));
  granted.Set("library", Napi::String::New(env, endpoint.library_path()));
  return granted;
}

Napi::Value NixlConnect(const Napi::CallbackInfo& info) {
  NixlEndpoint& endpoint = Binding::Endpoint(info);
  const Elements<uint8_t> metadata = BytesArgument(info, 1, "metadata");
  const Elements<uint64_t> ranges = Uint64sArgument(info, 2, "ranges");
  const Elements<uint64_t> staging = Uint64sArgument(info, 3, "staging");
  if (metadata.count == 0 || metadata.count > kMetadataBytesMax) ThrowArgument("metadata", "up to 1 MiB");
  if (ranges.count == 0 || ranges.count % kRangeValues != 0) ThrowArgument("ranges", "four values a region");
  if (staging.count != kStagingValues) ThrowArgument("staging", "six values");
  NixlGrant grant;
  grant.metadata.assign(metadata.data, metadata.data + metadata.count);
  for (size_t i = 0; i < ranges.count; i += kRangeValues) {
    const NixlRange range{ranges.data[i], ranges.data[i + 1], ranges.data[i + 2] == 0 ? kNixlDram : kNixlVram,
                          ranges.data[i + 3]};
    if (range.bytes == 0 || range.bytes > static_cast<uint64_t>(kRegionBytesMax) || ranges.data[i + 2] > 1 ||
        range.address > UINT64_MAX - range.bytes) {
      ThrowArgument("ranges[" + std::to_string(i / kRangeValues) + "]", "addresses of up to 2^52 bytes");
    }
    grant.regions.push_back(range);
  }
  const uint64_t slots = staging.data[1];
  const uint64_t slot_bytes = staging.data[2];
  if (slots > kSlotsMax || (slots > 0 && (slot_bytes == 0 || slot_bytes > kSlotBytesMax)) || staging.data[4] > 1) {
    ThrowArgument("staging", "at most 1024 slots of at most 1 GiB");
  }
  const uint64_t data_bytes = slots * slot_bytes;
  grant.staging = NixlStaging{
      staging.data[0], slots, slot_bytes,
      NixlRange{staging.data[3], data_bytes, staging.data[4] == 0 ? kNixlDram : kNixlVram, staging.data[5]}};
  if (staging.data[0] > UINT64_MAX - grant.staging.headers_bytes() || staging.data[3] > UINT64_MAX - data_bytes) {
    ThrowArgument("staging", "addresses whose memory ends below 2^64");
  }
  return IdValue(info.Env(), endpoint.Connect(std::move(grant)));
}

Napi::Value NixlBegin(const Napi::CallbackInfo& info) {
  NixlEndpoint& endpoint = Binding::Endpoint(info);
  const uint64_t peer = IdArgument(info, 1, "peer");
  NixlShare share;
  share.count = WholeArgument(info, 6, "readers", 1, kReadersMax);
  share.index = WholeArgument(info, 5, "reader", 0, share.count - 1);
  const uint64_t id = endpoint.Begin(peer, ProgramArgument(info, 2), share);
  return IdValue(info.Env(), id);
}

Napi::Value NixlAttest(const Napi::CallbackInfo& info) {
  Binding::Endpoint(info).AttestPeerDead(IdArgument(info, 1, "transfer"));
  return info.Env().Undefined();
}

Napi::Value NixlCountersOf(const Napi::CallbackInfo& info) {
  const NixlCounters counters = Binding::Endpoint(info).Counters();
  Napi::Object value = Napi::Object::New(info.Env());
  const auto set = [&](const char* name, int64_t count) {
    value.Set(name, Napi::Number::New(info.Env(), static_cast<double>(count)));
  };
  set("agents", NixlAgent::live());
  set("readsPosted", NixlAgent::posted());
  set("links", counters.links);
  set("preparedLists", counters.prepared_lists);
  set("packedChunks", counters.packed_chunks);
  set("packRefusals", counters.pack_refusals);
  return value;
}

}  // namespace

void InitNixl(Napi::Env env, Napi::Object exports, TransportEnvironment* environment) {
  Export<NixlOpen>(env, exports, "nixlOpen", environment);
  Export<Binding::Register<RegionHandle>>(env, exports, "nixlRegister");
  Export<Binding::Register<CudaRegionHandle>>(env, exports, "nixlRegisterCuda");
  Export<NixlStart>(env, exports, "nixlStart");
  Export<Binding::Readiness>(env, exports, "nixlReadiness");
  Export<Binding::StartError>(env, exports, "nixlStartError");
  Export<NixlGranted>(env, exports, "nixlGrant");
  Export<NixlConnect>(env, exports, "nixlConnect");
  Export<Binding::PeerStatus>(env, exports, "nixlPeerStatus");
  Export<Binding::PeerError>(env, exports, "nixlPeerError");
  Export<Binding::Disconnect>(env, exports, "nixlDisconnect");
  Export<NixlBegin>(env, exports, "nixlBegin");
  Export<Binding::Poll>(env, exports, "nixlPoll");
  Export<Binding::Bytes>(env, exports, "nixlBytes");
  Export<Binding::Error>(env, exports, "nixlError");
  Export<Binding::Cancel>(env, exports, "nixlCancel");
  Export<NixlAttest>(env, exports, "nixlAttest");
  Export<Binding::Take>(env, exports, "nixlTake");
  Export<Binding::Forget>(env, exports, "nixlForget");
  Export<Binding::Close>(env, exports, "nixlClose");
  Export<Binding::Quiet>(env, exports, "nixlQuiet");
  Export<NixlCountersOf>(env, exports, "nixlCounters");
}

}  // namespace state_handoff
