// Regions and the copy program's check, as JavaScript sees them. Names and order as in lib/native/transfer-types.ts.
#include <algorithm>
#include <cmath>

#include "../core/copy_program_check.h"
#include "transfer_objects.h"
#include "transport_environment.h"

namespace state_handoff {

int64_t WholeArgument(const Napi::CallbackInfo& info, size_t index, const char* name, int64_t least, int64_t most) {
  if (info[index].IsNumber()) {
    const double value = info[index].As<Napi::Number>().DoubleValue();
    if (value == std::floor(value) && value >= static_cast<double>(least) && value <= static_cast<double>(most)) {
      return static_cast<int64_t>(value);
    }
  }
  ThrowArgument(name, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
}

bool FlagArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  if (info[index].IsBoolean()) return info[index].As<Napi::Boolean>().Value();
  ThrowArgument(name, "a boolean");
}

std::string TextArgument(const Napi::CallbackInfo& info, size_t index, const char* name, size_t bytes_max) {
  if (info[index].IsString()) {
    std::string text = info[index].As<Napi::String>().Utf8Value();
    if (text.size() <= bytes_max && text.find('\0') == std::string::npos) return text;
  }
  ThrowArgument(name, "text of at most " + std::to_string(bytes_max) + " bytes without NUL");
}

std::vector<std::string> LinesArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  const std::string text = TextArgument(info, index, name, 1 << 16);
  std::vector<std::string> lines;
  size_t from = 0;
  while (from < text.size()) {
    const size_t to = std::min(text.find('\n', from), text.size());
    if (to > from) lines.push_back(text.substr(from, to - from));
    from = to + 1;
  }
  return lines;
}

CopyProgram ProgramArgument(const Napi::CallbackInfo& info, size_t index) {
  const Elements<double> rectangles = DoublesArgument(info, index, "rectangles");
  const Elements<double> tables = DoublesArgument(info, index + 1, "tables");
  const Elements<int32_t> rows = Int32sArgument(info, index + 2, "rows");
  return DecodeProgram(
      EncodedProgram{rectangles.data, rectangles.count, tables.data, tables.count, rows.data, rows.count});
}

namespace {

constexpr int64_t kSafeIntegerMax = 9007199254740991;
constexpr size_t kNameBytesMax = 200;

Napi::Value RegionAllocate(const Napi::CallbackInfo& info) {
  const int64_t bytes = WholeArgument(info, 0, "bytes", 1, kSafeIntegerMax);
  const std::string name = TextArgument(info, 1, "name", kNameBytesMax);
  auto handle = std::make_unique<RegionHandle>();
  handle->region = HostRegion::Allocate(static_cast<size_t>(bytes), name);
  return WrapHandle(info.Env(), std::move(handle));
}

// What an ArrayBuffer's finalizer owns. It may run inside a failing creation, so it must not free what is still in use.
struct BufferOwner {
  std::shared_ptr<RegionBuffer> memory;
  bool creating = true;
  bool finalized = false;
};

Napi::Value RegionBufferOf(const Napi::CallbackInfo& info) {
  RegionHandle& handle = HandleArgument<RegionHandle>(info, 0, "region");
  if (!handle.buffer.IsEmpty()) return handle.buffer.Value();
  const std::shared_ptr<SealedMemory> memory = handle.region->memory();
  if (memory == nullptr) throw NativeError(ErrorCode::kCLOSED, "region: expected an open region, got a closed one");

  handle.buffer_memory = std::make_shared<RegionBuffer>(RegionBuffer{memory});
  auto* owner = new BufferOwner{handle.buffer_memory};
  napi_value buffer = nullptr;
  const napi_status status = napi_create_external_arraybuffer(
      info.Env(), memory->data(), memory->bytes(),
      [](napi_env, void*, void* hint) {
        auto* finalized = static_cast<BufferOwner*>(hint);
        finalized->finalized = true;
        if (!finalized->creating) delete finalized;
      },
      owner, &buffer);
  owner->creating = false;
  if (status != napi_ok) {
    delete owner;
    handle.buffer_memory.reset();
    if (info.Env().IsExceptionPending()) info.Env().GetAndClearPendingException();
    throw NativeError(ErrorCode::kNATIVE_SYSTEM,
                      status == napi_no_external_buffers_allowed
                          ? "the region has no ArrayBuffer because this runtime allows none over native memory"
                          : "the region has no ArrayBuffer because the runtime refused one of " +
                                std::to_string(memory->bytes()) + " bytes");
  }
  if (owner->finalized) delete owner;
  handle.buffer = Napi::Reference<Napi::ArrayBuffer>::New(Napi::ArrayBuffer(info.Env(), buffer), 1);
  return handle.buffer.Value();
}

// False while a transfer may touch the region. Afterwards no JavaScript view reaches its memory.
Napi::Value RegionClose(const Napi::CallbackInfo& info) {
  RegionHandle& handle = HandleArgument<RegionHandle>(info, 0, "region");
  if (!handle.region->TryClose()) return Napi::Boolean::New(info.Env(), false);
  if (!handle.buffer.IsEmpty()) {
    Napi::ArrayBuffer buffer = handle.buffer.Value();
    // A buffer that was moved elsewhere lives on there; then its own finalizer unmaps the memory.
    if (!buffer.IsDetached()) {
      buffer.Detach();
      handle.buffer_memory->memory.reset();
    }
    handle.buffer_memory.reset();
    handle.buffer.Reset();
  }
  return Napi::Boolean::New(info.Env(), true);
}

std::vector<int64_t> SizesArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  const Elements<double> values = DoublesArgument(info, index, name);
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < values.count; ++i) {
    const double value = values.data[i];
    if (!(value >= 0 && value <= static_cast<double>(kSafeIntegerMax) && value == std::floor(value))) {
      ThrowArgument(std::string(name) + "[" + std::to_string(i) + "]", "an integer of at least 0");
    }
    sizes.push_back(static_cast<int64_t>(value));
  }
  return sizes;
}

Napi::Value ProgramCheck(const Napi::CallbackInfo& info) {
  const CopyProgram program = ProgramArgument(info, 0);
  const std::vector<int64_t> source_bytes = SizesArgument(info, 3, "sourceBytes");
  const std::vector<int64_t> target_bytes = SizesArgument(info, 4, "targetBytes");
  const std::vector<int64_t> flat = SizesArgument(info, 5, "wanted");
  if (flat.size() % 3 != 0) ThrowArgument("wanted", "three values a range");
  std::vector<WantedRange> wanted;
  for (size_t i = 0; i < flat.size(); i += 3) wanted.push_back(WantedRange{flat[i], flat[i + 1], flat[i + 2]});
  CheckProgram(program, source_bytes, target_bytes, wanted);
  return info.Env().Undefined();
}

}  // namespace

void InitTransfer(Napi::Env env, Napi::Object exports) {
  Export<RegionAllocate>(env, exports, "regionAllocate");
  Export<RegionBufferOf>(env, exports, "regionBuffer");
  Export<RegionClose>(env, exports, "regionClose");
  Export<ProgramCheck>(env, exports, "programCheck");
  TransportEnvironment* environment = TransportEnvironment::Create(env);
  Export<WakeListen>(env, exports, "wakeListen", environment);
  InitHost(env, exports, environment);
  InitNixl(env, exports, environment);
  InitNccl(env, exports, environment);
  InitCuda(env, exports);
  InitCudaDebug(env, exports);
  InitCudaIpc(env, exports, environment);
}

}  // namespace state_handoff
