// What tests and benchmarks need of GPUs and nobody else does: a stream that can be held up, and plain copies with
// their times. Names and order as in lib/native/cuda-types.ts.
#include <algorithm>

#include "../core/copy_plan.h"
#include "../core/copy_program_check.h"
#include "../core/dynamic_library.h"
#include "../transport/cuda_ipc_source.h"
#include "cuda_objects.h"

namespace state_handoff {

namespace {

// A stream as a host engine has one. Held up, it waits for a word that only a release writes.
struct DebugStream {
  static constexpr napi_type_tag kTag{0x70be42d1895c4fa6, 0xa6123fd7c09e5b84};
  static constexpr const char* kExpected = "a debug stream";
  std::shared_ptr<CudaDevice> device;
  CudaStream stream = nullptr;
  CudaPointer word = 0;
  uint32_t held = 0;

  ~DebugStream() {
    if (stream == nullptr) return;
    const CudaDriver& driver = device->driver();
    if (held > 0) device->CopyToDevice(word, &held, sizeof(held));
    if (driver.ContextPush(device->context()) != kCudaSuccess) return;
    driver.StreamDestroy(stream);
    CudaContext popped;
    driver.ContextPop(&popped);
  }
};

DebugStream& StreamArgument(const Napi::CallbackInfo& info) { return HandleArgument<DebugStream>(info, 0, "stream"); }

Napi::Value DebugCudaStreamOpen(const Napi::CallbackInfo& info) {
  auto handle = std::make_unique<DebugStream>();
  handle->device = DeviceArgument(info, 0, 1);
  const CudaDriver& driver = handle->device->driver();
  if (driver.StreamWaitValue32 == nullptr) {
    throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE, "this CUDA driver has no cuStreamWaitValue32");
  }
  {
    const CudaContextScope current(driver, handle->device->context());
    driver.Check(driver.MemAlloc(&handle->word, 256), "allocating GPU memory");
    handle->stream = handle->device->MakeStream();
  }
  handle->device->Fill(handle->word, 0, 256);
  return WrapHandle(info.Env(), std::move(handle));
}

Napi::Value DebugCudaStreamAddress(const Napi::CallbackInfo& info) {
  return Napi::BigInt::New(info.Env(), reinterpret_cast<uint64_t>(StreamArgument(info).stream));
}

Napi::Value DebugCudaStreamHold(const Napi::CallbackInfo& info) {
  DebugStream& debug = StreamArgument(info);
  const CudaDriver& driver = debug.device->driver();
  const CudaContextScope current(driver, debug.device->context());
  driver.Check(driver.StreamWaitValue32(debug.stream, debug.word, ++debug.held, kCudaWaitValueGreaterOrEqual),
               "holding up a stream");
  return info.Env().Undefined();
}

Napi::Value DebugCudaStreamRelease(const Napi::CallbackInfo& info) {
  DebugStream& debug = StreamArgument(info);
  debug.device->CopyToDevice(debug.word, &debug.held, sizeof(debug.held));
  return info.Env().Undefined();
}

// After all earlier work of the stream: every byte of the region from `offset` on, `bytes` long, becomes `value`.
Napi::Value DebugCudaStreamFill(const Napi::CallbackInfo& info) {
  DebugStream& debug = StreamArgument(info);
  const CudaRegion& region = *HandleArgument<CudaRegionHandle>(info, 1, "region").region;
  const int64_t size = static_cast<int64_t>(region.bytes());
  const int64_t offset = WholeArgument(info, 2, "offset", 0, size);
  const int64_t bytes = WholeArgument(info, 3, "bytes", 0, size - offset);
  const int64_t value = WholeArgument(info, 4, "value", 0, 255);
  const CudaDriver& driver = debug.device->driver();
  const CudaContextScope current(driver, debug.device->context());
  driver.Check(driver.FillAsync(region.address() + static_cast<uint64_t>(offset), static_cast<unsigned char>(value),
                                static_cast<size_t>(bytes), debug.stream),
               "filling GPU memory");
  return info.Env().Undefined();
}

// Times work of one stream with events, `rounds` times after one that does not count; the median in microseconds.
template <typename Work>
double Time(CudaDevice& device, int64_t rounds, Work&& work) {
  const CudaDriver& driver = device.driver();
  const CudaContextScope current(driver, device.context());
  const CudaStream stream = device.MakeStream();
  CudaEvent begin = nullptr;
  CudaEvent end = nullptr;
  driver.Check(driver.EventCreate(&begin, 0), "making a CUDA event");
  driver.Check(driver.EventCreate(&end, 0), "making a CUDA event");
  std::vector<double> times;
  for (int64_t round = 0; round <= rounds; ++round) {
    driver.Check(driver.EventRecord(begin, stream), "recording a CUDA event");
    driver.Check(work(stream), "timed work");
    driver.Check(driver.EventRecord(end, stream), "recording a CUDA event");
    driver.Check(driver.EventSynchronize(end), "timed work");
    float milliseconds = 0;
    driver.Check(driver.EventElapsedTime(&milliseconds, begin, end), "reading a CUDA event");
    if (round > 0) times.push_back(milliseconds * 1000.0);
  }
  driver.EventDestroy(begin);
  driver.EventDestroy(end);
  driver.StreamDestroy(stream);
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

// Source and target region, source offset, target offset and length triples; `batch`: one cuMemcpyBatchAsync, else one
// cuMemcpyDtoDAsync each.
Napi::Value DebugCudaTimeCopies(const Napi::CallbackInfo& info) {
  const CudaRegion& source = *HandleArgument<CudaRegionHandle>(info, 0, "source").region;
  const CudaRegion& target = *HandleArgument<CudaRegionHandle>(info, 1, "target").region;
  const Elements<double> triples = DoublesArgument(info, 2, "fragments");
  const bool batch = FlagArgument(info, 3, "batch");
  const int64_t rounds = WholeArgument(info, 4, "rounds", 1, 1000);
  std::vector<CudaPointer> sources;
  std::vector<CudaPointer> targets;
  std::vector<size_t> bytes;
  const auto inside = [](double offset, double length, size_t size) {
    return offset >= 0 && length >= 1 && offset + length <= static_cast<double>(size);
  };
  for (size_t i = 0; i + 2 < triples.count; i += 3) {
    const double length = triples.data[i + 2];
    if (!inside(triples.data[i], length, source.bytes()) || !inside(triples.data[i + 1], length, target.bytes())) {
      ThrowArgument("fragments", "bytes inside both regions");
    }
    sources.push_back(source.address() + static_cast<uint64_t>(triples.data[i]));
    targets.push_back(target.address() + static_cast<uint64_t>(triples.data[i + 1]));
    bytes.push_back(static_cast<size_t>(length));
  }
  const CudaDriver& driver = target.device()->driver();
  if (batch && driver.CopyBatchAsync == nullptr) {
    throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE, "this CUDA driver has no cuMemcpyBatchAsync");
  }
  target.device()->AllowReading(*source.device());
  const double time = Time(*target.device(), rounds, [&](CudaStream stream) {
    if (batch) {
      CudaCopyAttributes attributes{};
      attributes.source_access_order = kCudaCopyStreamOrder;
      size_t first = 0;
      return driver.CopyBatchAsync(targets.data(), sources.data(), bytes.data(), bytes.size(), &attributes, &first, 1,
                                   stream);
    }
    CudaResult result = kCudaSuccess;
    for (size_t i = 0; i < bytes.size() && result == kCudaSuccess; ++i) {
      result = driver.CopyOnDeviceAsync(targets[i], sources[i], bytes[i], stream);
    }
    return result;
  });
  return Napi::Number::New(info.Env(), time);
}

// The kernel alone: one launch of one program between a source and a target region of this process, by all of the
// device or by so many blocks of threads.
Napi::Value DebugCudaTimeKernel(const Napi::CallbackInfo& info) {
  const CudaRegion& source = *HandleArgument<CudaRegionHandle>(info, 0, "source").region;
  const CudaRegion& target = *HandleArgument<CudaRegionHandle>(info, 1, "target").region;
  const CopyProgram program = ProgramArgument(info, 2);
  const int64_t rounds = WholeArgument(info, 5, "rounds", 1, 1000);
  const auto blocks = static_cast<uint32_t>(WholeArgument(info, 6, "blocks", 0, 65535));
  const auto source_bytes = static_cast<int64_t>(source.bytes());
  const auto target_bytes = static_cast<int64_t>(target.bytes());
  CheckProgram(program, std::vector<int64_t>{source_bytes}, std::vector<int64_t>{target_bytes}, {});
  CudaDevice& device = *target.device();
  device.LoadKernels("");
  device.AllowReading(*source.device());
  const CopyPlan plan(program, {PlanRegion{source.address(), source_bytes}},
                      {PlanRegion{target.address(), target_bytes}}, PlanLimits{.chunk_bytes = kRegionBytesMax});
  std::vector<uint8_t> image(plan.image_bytes());
  plan.WriteImage(image.data());
  const std::shared_ptr<CudaRegion> memory = CudaRegion::Allocate(target.device(), image.size(), false);
  device.CopyToDevice(memory->address(), image.data(), image.size());
  const double time = Time(device, rounds, [&](CudaStream stream) {
    CudaResult result = kCudaSuccess;
    for (const PlanChunk& chunk : plan.chunks()) {
      if (result != kCudaSuccess) break;
      const CopyLaunch launch = plan.Launch(memory->address(), chunk);
      result = blocks == 0 ? device.LaunchCopy(launch, chunk.tiles, stream)
                           : device.LaunchCopyByFew(launch, chunk.tiles, blocks, stream);
    }
    return result;
  });
  return Napi::Number::New(info.Env(), time);
}

// cuBLAS as far as a benchmark needs it.
struct Cublas {
  int (*Create)(void** handle) = nullptr;
  int (*SetStream)(void* handle, CudaStream stream) = nullptr;
  int (*GemmEx)(void* handle, int a_operation, int b_operation, int m, int n, int k, const void* alpha, const void* a,
                int a_type, int a_lead, const void* b, int b_type, int b_lead, const void* beta, void* c, int c_type,
                int c_lead, int compute, int algorithm) = nullptr;
};

// Products of two square matrices of half floats, one behind the other on a stream of their own, as a model computes.
// What cuBLAS holds ends with the process, which is a benchmark.
struct DebugProducts {
  static constexpr napi_type_tag kTag{0x91c4e07ba36d4f58, 0x8e21d5f60b7ac943};
  static constexpr const char* kExpected = "matrix products";
  std::shared_ptr<CudaRegion> memory;
  Cublas cublas;
  void* handle = nullptr;
  int size = 0;
  CudaStream stream = nullptr;
  CudaEvent begin = nullptr;
  CudaEvent end = nullptr;
};

void RequireCublas(int status, const char* what) {
  if (status == 0) return;
  throw NativeError(ErrorCode::kNATIVE_SYSTEM,
                    std::string(what) + " failed with cuBLAS status " + std::to_string(status));
}

Napi::Value DebugCudaProductsOpen(const Napi::CallbackInfo& info) {
  auto products = std::make_unique<DebugProducts>();
  const std::shared_ptr<CudaDevice> device = DeviceArgument(info, 0, 1);
  const DynamicLibrary library = DynamicLibrary::Open("cuBLAS", LinesArgument(info, 2, "candidates"));
  products->size = static_cast<int>(WholeArgument(info, 3, "size", 16, 32768));
  library.Bind(products->cublas.Create, "cublasCreate_v2");
  library.Bind(products->cublas.SetStream, "cublasSetStream_v2");
  library.Bind(products->cublas.GemmEx, "cublasGemmEx");
  const size_t bytes = size_t{2} * static_cast<size_t>(products->size) * static_cast<size_t>(products->size);
  products->memory = CudaRegion::Allocate(device, 3 * bytes, false);
  device->Fill(products->memory->address(), 0, 3 * bytes);
  const CudaDriver& driver = device->driver();
  const CudaContextScope current(driver, device->context());
  // Of the highest priority there is when nobody asks for another: what a host engine has.
  driver.Check(driver.StreamCreate(&products->stream, kCudaStreamNonBlocking, 0), "making a CUDA stream");
  driver.Check(driver.EventCreate(&products->begin, 0), "making a CUDA event");
  driver.Check(driver.EventCreate(&products->end, 0), "making a CUDA event");
  RequireCublas(products->cublas.Create(&products->handle), "cublasCreate");
  RequireCublas(products->cublas.SetStream(products->handle, products->stream), "cublasSetStream");
  return WrapHandle(info.Env(), std::move(products));
}

// Gives `count` products to the stream and does not wait.
Napi::Value DebugCudaProductsStart(const Napi::CallbackInfo& info) {
  constexpr int kHalf = 2;
  constexpr int kComputeFloat = 68;
  DebugProducts& products = HandleArgument<DebugProducts>(info, 0, "products");
  const int64_t count = WholeArgument(info, 1, "count", 1, 100'000);
  const CudaDriver& driver = products.memory->device()->driver();
  const CudaContextScope current(driver, products.memory->device()->context());
  const int size = products.size;
  const auto matrix = [&products, size](uint64_t index) {
    return reinterpret_cast<void*>(products.memory->address() +
                                   index * 2 * static_cast<uint64_t>(size) * static_cast<uint64_t>(size));
  };
  const float one = 1;
  const float zero = 0;
  driver.Check(driver.EventRecord(products.begin, products.stream), "recording a CUDA event");
  for (int64_t i = 0; i < count; ++i) {
    RequireCublas(products.cublas.GemmEx(products.handle, 0, 0, size, size, size, &one, matrix(0), kHalf, size,
                                         matrix(1), kHalf, size, &zero, matrix(2), kHalf, size, kComputeFloat, -1),
                  "cublasGemmEx");
  }
  driver.Check(driver.EventRecord(products.end, products.stream), "recording a CUDA event");
  return info.Env().Undefined();
}

// Microseconds that they took; -1 while they are not over.
Napi::Value DebugCudaProductsTime(const Napi::CallbackInfo& info) {
  DebugProducts& products = HandleArgument<DebugProducts>(info, 0, "products");
  const CudaDriver& driver = products.memory->device()->driver();
  const CudaContextScope current(driver, products.memory->device()->context());
  const CudaResult result = driver.EventQuery(products.end);
  if (result == kCudaNotReady) return Napi::Number::New(info.Env(), -1);
  driver.Check(result, "multiplying matrices");
  float milliseconds = 0;
  driver.Check(driver.EventElapsedTime(&milliseconds, products.begin, products.end), "reading a CUDA event");
  return Napi::Number::New(info.Env(), milliseconds * 1000.0);
}

// Live objects of the process, for the tests of leaks.
Napi::Value DebugCudaCounters(const Napi::CallbackInfo& info) {
  Napi::Object counters = Napi::Object::New(info.Env());
  counters.Set("regions", Napi::Number::New(info.Env(), static_cast<double>(CudaRegion::live())));
  counters.Set("mappings", Napi::Number::New(info.Env(), static_cast<double>(CudaIpcSource::live_mappings())));
  return counters;
}

}  // namespace

void InitCudaDebug(Napi::Env env, Napi::Object exports) {
  Export<DebugCudaStreamOpen>(env, exports, "debugCudaStreamOpen");
  Export<DebugCudaStreamAddress>(env, exports, "debugCudaStreamAddress");
  Export<DebugCudaStreamHold>(env, exports, "debugCudaStreamHold");
  Export<DebugCudaStreamRelease>(env, exports, "debugCudaStreamRelease");
  Export<DebugCudaStreamFill>(env, exports, "debugCudaStreamFill");
  Export<DebugCudaTimeCopies>(env, exports, "debugCudaTimeCopies");
  Export<DebugCudaTimeKernel>(env, exports, "debugCudaTimeKernel");
  Export<DebugCudaProductsOpen>(env, exports, "debugCudaProductsOpen");
  Export<DebugCudaProductsStart>(env, exports, "debugCudaProductsStart");
  Export<DebugCudaProductsTime>(env, exports, "debugCudaProductsTime");
  Export<DebugCudaCounters>(env, exports, "debugCudaCounters");
}

}  // namespace state_handoff
