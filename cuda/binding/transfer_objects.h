// What JavaScript holds of native transfer objects, and how arguments are read. Used by transfer.cc and
// host_binding.cc.
//
// A handle is an external with a type tag: one of another kind, or of another addon, is refused and never dereferenced.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../core/copy_program.h"
#include "../core/region.h"
#include "napi_support.h"

namespace state_handoff {

// The one ArrayBuffer over a region, and the memory it keeps mapped.
struct RegionBuffer {
  std::shared_ptr<SealedMemory> memory;
};

struct RegionHandle {
  static constexpr napi_type_tag kTag{0x9f1c6d0b7a3e4f52, 0x8a4be21d90c7365e};
  static constexpr const char* kExpected = "a native host region";
  std::shared_ptr<HostRegion> region;
  std::shared_ptr<RegionBuffer> buffer_memory;
  Napi::Reference<Napi::ArrayBuffer> buffer;
};

template <typename Handle>
Napi::Value WrapHandle(Napi::Env env, std::unique_ptr<Handle> handle) {
  auto external = Napi::External<Handle>::New(env, handle.get(), [](Napi::Env, Handle* data) { delete data; });
  handle.release();
  external.TypeTag(&Handle::kTag);
  return external;
}

[[noreturn]] inline void ThrowArgument(const std::string& name, const std::string& expected) {
  throw NativeError(ErrorCode::kARGUMENT_INVALID, name + ": expected " + expected);
}

template <typename Handle>
Handle& HandleArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  if (info[index].IsExternal()) {
    auto external = info[index].As<Napi::External<Handle>>();
    if (external.CheckTypeTag(&Handle::kTag)) return *external.Data();
  }
  ThrowArgument(name, Handle::kExpected);
}

// An integer in [least, most].
int64_t WholeArgument(const Napi::CallbackInfo& info, size_t index, const char* name, int64_t least, int64_t most);
bool FlagArgument(const Napi::CallbackInfo& info, size_t index, const char* name);
// Text of at most `bytes_max` bytes without a NUL.
std::string TextArgument(const Napi::CallbackInfo& info, size_t index, const char* name, size_t bytes_max);

// Paths or names, one a line.
std::vector<std::string> LinesArgument(const Napi::CallbackInfo& info, size_t index, const char* name);

// Borrowed elements of a typed array of exactly this type; valid until the call returns.
template <typename Element>
struct Elements {
  const Element* data;
  size_t count;
  std::vector<Element> Copy() const { return std::vector<Element>(data, data + count); }
};

template <typename Array, typename Element>
Elements<Element> ArrayArgument(const Napi::CallbackInfo& info, size_t index, const char* name,
                                napi_typedarray_type type, const char* expected) {
  if (info[index].IsTypedArray() && info[index].As<Napi::TypedArray>().TypedArrayType() == type) {
    auto array = info[index].As<Array>();
    return Elements<Element>{reinterpret_cast<const Element*>(array.Data()), array.ElementLength()};
  }
  ThrowArgument(name, expected);
}

inline Elements<double> DoublesArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return ArrayArgument<Napi::Float64Array, double>(info, index, name, napi_float64_array, "a Float64Array");
}
inline Elements<int32_t> Int32sArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return ArrayArgument<Napi::Int32Array, int32_t>(info, index, name, napi_int32_array, "an Int32Array");
}
inline Elements<uint64_t> Uint64sArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return ArrayArgument<Napi::BigUint64Array, uint64_t>(info, index, name, napi_biguint64_array, "a BigUint64Array");
}
inline Elements<uint8_t> BytesArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return ArrayArgument<Napi::Uint8Array, uint8_t>(info, index, name, napi_uint8_array, "a Uint8Array");
}

// Three arguments from `index` on: rectangles, tables, rows.
CopyProgram ProgramArgument(const Napi::CallbackInfo& info, size_t index);

using BindingBody = Napi::Value (*)(const Napi::CallbackInfo&);

template <BindingBody kBody>
Napi::Value CallGuarded(const Napi::CallbackInfo& info) {
  return Guarded(info.Env(), [&] { return kBody(info); });
}

template <BindingBody kBody>
void Export(Napi::Env env, Napi::Object exports, const char* name, void* data = nullptr) {
  exports.Set(name, Napi::Function::New<CallGuarded<kBody>>(env, name, data));
}

class TransportEnvironment;

void InitHost(Napi::Env env, Napi::Object exports, TransportEnvironment* environment);     // host_binding.cc
void InitNixl(Napi::Env env, Napi::Object exports, TransportEnvironment* environment);     // nixl_binding.cc
void InitNccl(Napi::Env env, Napi::Object exports, TransportEnvironment* environment);     // nccl_binding.cc
void InitCuda(Napi::Env env, Napi::Object exports);                                        // cuda_binding.cc
void InitCudaDebug(Napi::Env env, Napi::Object exports);                                   // cuda_debug_binding.cc
void InitCudaIpc(Napi::Env env, Napi::Object exports, TransportEnvironment* environment);  // cuda_ipc_binding.cc

}  // namespace state_handoff
