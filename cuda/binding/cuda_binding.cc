// GPUs, their memory and fences, as JavaScript sees them. Names and order as in lib/native/cuda-types.ts.
#include "../core/kernel_image.h"
#include "cuda_objects.h"

namespace state_handoff {

const CudaDriver& DriverArgument(const Napi::CallbackInfo& info, size_t index) {
  std::string path;
  if (!info[index].IsNull()) path = TextArgument(info, index, "driver", 4096);
  std::string why;
  const CudaDriver* driver = CudaDriver::Load(path.empty() ? nullptr : path.c_str(), &why);
  if (driver == nullptr) throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE, why);
  return *driver;
}

uint64_t AddressArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  if (info[index].IsBigInt()) {
    bool lossless = false;
    const uint64_t value = info[index].As<Napi::BigInt>().Uint64Value(&lossless);
    if (lossless) return value;
  }
  ThrowArgument(name, "a bigint from 0 to 2^64 - 1");
}

std::string KernelsArgument(const Napi::CallbackInfo& info, size_t index) {
  constexpr size_t kKernelBytesMax = 64 << 20;
  if (info[index].IsNull()) return {};
  const Elements<uint8_t> image = BytesArgument(info, index, "kernels");
  if (image.count == 0 || image.count > kKernelBytesMax) ThrowArgument("kernels", "from 1 byte to 64 MiB");
  return std::string(reinterpret_cast<const char*>(image.data), image.count);
}

std::shared_ptr<CudaDevice> DeviceArgument(const Napi::CallbackInfo& info, size_t driver_index, size_t index) {
  const CudaDriver& driver = DriverArgument(info, driver_index);
  return CudaDevice::Open(driver, static_cast<CudaOrdinal>(WholeArgument(info, index, "device", 0, 1023)));
}

namespace {

constexpr int64_t kBytesMax = int64_t{1} << 52;

struct FenceHandle {
  static constexpr napi_type_tag kTag{0x2ac95e07b16d4f38, 0x8153f7d90e2b64ca};
  static constexpr const char* kExpected = "a native CUDA fence";
  std::unique_ptr<CudaFence> fence;
};

std::string HexOf(const CudaUuid& uuid) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text;
  for (const uint8_t byte : uuid.bytes) {
    text += kDigits[byte >> 4];
    text += kDigits[byte & 15];
  }
  return text;
}

Napi::Value CudaDescribe(const Napi::CallbackInfo& info) {
  const CudaDriver& driver = DriverArgument(info, 0);
  Napi::Env env = info.Env();
  Napi::Object described = Napi::Object::New(env);
  described.Set("path", driver.path());
  described.Set("version", driver.version());
  Napi::Array devices = Napi::Array::New(env);
  for (CudaOrdinal ordinal = 0; ordinal < driver.device_count(); ++ordinal) {
    char name[128] = {};
    CudaUuid uuid{};
    size_t bytes = 0;
    int major = 0;
    int minor = 0;
    driver.Check(driver.DeviceGetName(name, sizeof(name), ordinal), "asking for a GPU's name");
    driver.Check(driver.DeviceGetUuid(&uuid, ordinal), "asking for a GPU's identity");
    driver.Check(driver.DeviceTotalMem(&bytes, ordinal), "asking for a GPU's memory");
    driver.Check(driver.DeviceGetAttribute(&major, kCudaAttributeCapabilityMajor, ordinal), "asking for a capability");
    driver.Check(driver.DeviceGetAttribute(&minor, kCudaAttributeCapabilityMinor, ordinal), "asking for a capability");
    Napi::Object device = Napi::Object::New(env);
    device.Set("ordinal", ordinal);
    device.Set("name", std::string(name));
    device.Set("uuid", HexOf(uuid));
    device.Set("bytes", static_cast<double>(bytes));
    device.Set("capability", std::to_string(major) + "." + std::to_string(minor));
    Napi::Array reads = Napi::Array::New(env);
    Napi::Array links = Napi::Array::New(env);
    for (CudaOrdinal other = 0; other < driver.device_count(); ++other) {
      int can = other == ordinal ? 1 : 0;
      if (other != ordinal && driver.DeviceCanAccessPeer(&can, ordinal, other) != kCudaSuccess) can = 0;
      if (can == 0) continue;
      reads.Set(reads.Length(), other);
      // Only NVLink carries atomics of another device.
      int atomics = 0;
      if (other != ordinal && driver.DeviceGetP2PAttribute != nullptr &&
          driver.DeviceGetP2PAttribute(&atomics, kCudaPeerNativeAtomics, ordinal, other) == kCudaSuccess &&
          atomics != 0) {
        links.Set(links.Length(), other);
      }
    }
    device.Set("reads", reads);
    device.Set("links", links);
    devices.Set(static_cast<uint32_t>(ordinal), device);
  }
  described.Set("devices", devices);
  return described;
}

// Null when the addon carries kernels, or why it does not. Needs no driver.
Napi::Value CudaKernelsMissing(const Napi::CallbackInfo& info) {
  std::string why;
  if (EmbeddedKernels(&why) != nullptr) return info.Env().Null();
  return Napi::String::New(info.Env(), why);
}

Napi::Value WrapRegion(Napi::Env env, std::shared_ptr<CudaRegion> region) {
  auto handle = std::make_unique<CudaRegionHandle>();
  handle->region = std::move(region);
  return WrapHandle(env, std::move(handle));
}

CudaRegion& RegionArgument(const Napi::CallbackInfo& info) {
  return *HandleArgument<CudaRegionHandle>(info, 0, "region").region;
}

Napi::Value CudaRegionAllocate(const Napi::CallbackInfo& info) {
  const auto bytes = static_cast<size_t>(WholeArgument(info, 2, "bytes", 1, kBytesMax));
  const bool virtual_memory = FlagArgument(info, 3, "virtualMemory");
  return WrapRegion(info.Env(), CudaRegion::Allocate(DeviceArgument(info, 0, 1), bytes, virtual_memory));
}

Napi::Value CudaRegionImport(const Napi::CallbackInfo& info) {
  const CudaPointer address = AddressArgument(info, 1, "address");
  const auto bytes = static_cast<size_t>(WholeArgument(info, 2, "bytes", 1, kBytesMax));
  return WrapRegion(info.Env(), CudaRegion::Import(DriverArgument(info, 0), address, bytes));
}

Napi::Value CudaRegionPlace(const Napi::CallbackInfo& info) {
  const CudaRegion& region = RegionArgument(info);
  Napi::Object place = Napi::Object::New(info.Env());
  place.Set("address", Napi::BigInt::New(info.Env(), region.address()));
  place.Set("device", region.device()->ordinal());
  return place;
}

Napi::Value CudaRegionClose(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), RegionArgument(info).TryClose());
}

// The bytes of `region` from an offset on that a Uint8Array of the caller stands for.
struct Window {
  CudaRegionUse use;
  CudaPointer address;
  Elements<uint8_t> bytes;
};

Window WindowArgument(const Napi::CallbackInfo& info) {
  const std::shared_ptr<CudaRegion>& region = HandleArgument<CudaRegionHandle>(info, 0, "region").region;
  const auto offset = static_cast<size_t>(WholeArgument(info, 1, "offset", 0, static_cast<int64_t>(region->bytes())));
  const Elements<uint8_t> bytes = BytesArgument(info, 2, "bytes");
  if (bytes.count > region->bytes() - offset) {
    ThrowArgument("bytes", "at most the " + std::to_string(region->bytes() - offset) +
                               " bytes from the offset on, got " + std::to_string(bytes.count));
  }
  return Window{CudaRegionUse(region, "region"), region->address() + offset, bytes};
}

Napi::Value CudaRegionRead(const Napi::CallbackInfo& info) {
  const Window window = WindowArgument(info);
  if (window.bytes.count == 0) return info.Env().Undefined();
  window.use.region().device()->CopyToHost(const_cast<uint8_t*>(window.bytes.data), window.address, window.bytes.count);
  return info.Env().Undefined();
}

Napi::Value CudaRegionWrite(const Napi::CallbackInfo& info) {
  const Window window = WindowArgument(info);
  if (window.bytes.count == 0) return info.Env().Undefined();
  window.use.region().device()->CopyToDevice(window.address, window.bytes.data, window.bytes.count);
  return info.Env().Undefined();
}

Napi::Value CudaFenceRecord(const Napi::CallbackInfo& info) {
  const auto stream = reinterpret_cast<CudaStream>(AddressArgument(info, 2, "stream"));
  auto handle = std::make_unique<FenceHandle>();
  handle->fence = std::make_unique<CudaFence>(DeviceArgument(info, 0, 1), stream);
  return WrapHandle(info.Env(), std::move(handle));
}

Napi::Value CudaFenceIsComplete(const Napi::CallbackInfo& info) {
  return Napi::Boolean::New(info.Env(), HandleArgument<FenceHandle>(info, 0, "fence").fence->IsComplete());
}

}  // namespace

void InitCuda(Napi::Env env, Napi::Object exports) {
  Export<CudaDescribe>(env, exports, "cudaDescribe");
  Export<CudaKernelsMissing>(env, exports, "cudaKernelsMissing");
  Export<CudaRegionAllocate>(env, exports, "cudaRegionAllocate");
  Export<CudaRegionImport>(env, exports, "cudaRegionImport");
  Export<CudaRegionPlace>(env, exports, "cudaRegionPlace");
  Export<CudaRegionClose>(env, exports, "cudaRegionClose");
  Export<CudaRegionRead>(env, exports, "cudaRegionRead");
  Export<CudaRegionWrite>(env, exports, "cudaRegionWrite");
  Export<CudaFenceRecord>(env, exports, "cudaFenceRecord");
  Export<CudaFenceIsComplete>(env, exports, "cudaFenceIsComplete");
}

}  // namespace state_handoff
