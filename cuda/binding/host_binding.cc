// The host transport, as JavaScript sees it. Names and order as in lib/native/transfer-types.ts and broker-types.ts.
#include <algorithm>

#include "../transport/host_endpoint.h"
#include "../transport/host_plain_copy.h"
#include "broker_binding.h"
#include "memory_objects.h"
#include "transfer_objects.h"

namespace state_handoff {

namespace {

struct EndpointHandle {
  static constexpr napi_type_tag kTag{0x41d5c0a2be974c11, 0xb7f8306e5d2a9c43};
  static constexpr const char* kExpected = "a native host transport";
  std::shared_ptr<HostEndpoint> endpoint;
};

using Binding = BrokerBinding<EndpointHandle, RegionHandle>;

Napi::Value HostOpen(const Napi::CallbackInfo& info) {
  HostEndpoint::Options options;
  options.blocks = GenerationsObject::TableOf(info[0], "blockGenerations");
  options.slots = GenerationsObject::TableOf(info[1], "slotGenerations");
  options.threads = static_cast<size_t>(WholeArgument(info, 2, "threads", 1, 64));
  options.transfers_max = static_cast<size_t>(WholeArgument(info, 3, "transfersMax", 1, 1 << 20));
  return Binding::Open(info, std::move(options));
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
  const std::shared_ptr<PeerMemory> memory = Binding::Link(info).memory();
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
  const std::shared_ptr<PeerMemory> memory = Binding::Link(info).memory();
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
  exports.Set("host", Binding::Calls(env));
  Export<DebugCounters>(env, exports, "debugCounters");
  Export<DebugCopyFragments>(env, exports, "debugCopyFragments");
  Export<DebugCopyHalfHeads>(env, exports, "debugCopyHalfHeads");
}

}  // namespace state_handoff
