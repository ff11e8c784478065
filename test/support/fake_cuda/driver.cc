// A stand-in for libcuda.so.1 over host memory, for tests on machines without a GPU: allocations are shared memory that
// other processes open by handle, streams are queues, the copy kernel is the host's own walk of the same launch.
//
// Two devices (FAKE_CUDA_DEVICES changes that). FAKE_CUDA_LOSE_AFTER=n makes every event fail after n launches. Work of
// a stream runs when the stream or an event is asked, in order, and stops at a wait for a word that is not written yet.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include "../../../cuda/core/cuda_driver.h"
#include "../../cpp/device_copy.h"

using namespace state_handoff;

namespace {

struct Stream {
  std::deque<std::function<bool()>> work;
};
struct Event {
  bool pending = false;
  Stream* stream = nullptr;  // that it was recorded on last
};
struct Allocation {
  int fd;
  size_t bytes;
  bool foreign;
};
struct Handle {
  int pid;
  int fd;
  uint64_t bytes;
};

std::recursive_mutex mutex;
std::map<CudaPointer, Allocation> allocations;
Stream default_stream;
thread_local std::deque<CudaContext> contexts;
int launches = 0;

int DeviceCount() {
  const char* text = std::getenv("FAKE_CUDA_DEVICES");
  return text == nullptr ? 2 : std::atoi(text);
}
bool Lost() {
  const char* text = std::getenv("FAKE_CUDA_LOSE_AFTER");
  return text != nullptr && launches > std::atoi(text);
}
Stream& Of(CudaStream stream) { return stream == nullptr ? default_stream : *reinterpret_cast<Stream*>(stream); }
void Pump(Stream& stream) {
  while (!stream.work.empty() && stream.work.front()()) stream.work.pop_front();
}
CudaResult Enqueue(CudaStream stream, std::function<bool()> work) {
  const std::lock_guard lock(mutex);
  if (contexts.empty()) return 201;
  Of(stream).work.push_back(std::move(work));
  Pump(Of(stream));
  return 0;
}
std::map<CudaPointer, Allocation>::iterator Find(CudaPointer pointer) {
  auto after = allocations.upper_bound(pointer);
  if (after == allocations.begin()) return allocations.end();
  --after;
  return pointer < after->first + after->second.bytes ? after : allocations.end();
}
CudaResult Map(int fd, size_t bytes, bool foreign, CudaPointer* pointer) {
  void* data = mmap(nullptr, bytes, PROT_READ | (foreign ? 0 : PROT_WRITE), MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) return kCudaOutOfMemory;
  *pointer = reinterpret_cast<CudaPointer>(data);
  const std::lock_guard lock(mutex);
  allocations[*pointer] = Allocation{fd, bytes, foreign};
  return 0;
}

}  // namespace

extern "C" {

CudaResult cuInit(unsigned) { return 0; }
CudaResult cuDriverGetVersion(int* version) { return *version = 13000, 0; }
CudaResult cuGetErrorName(CudaResult result, const char** name) {
  *name = result == 700   ? "CUDA_ERROR_ILLEGAL_ADDRESS"
          : result == 400 ? "CUDA_ERROR_INVALID_HANDLE"
                          : "CUDA_ERROR_OTHER";
  return 0;
}
CudaResult cuGetErrorString(CudaResult, const char** text) { return *text = "as the stand-in has it", 0; }
CudaResult cuDeviceGetCount(int* count) { return *count = DeviceCount(), 0; }
CudaResult cuDeviceGet(int* device, int ordinal) { return *device = ordinal, 0; }
CudaResult cuDeviceGetName(char* name, int bytes, int) { return std::strncpy(name, "stand-in", bytes), 0; }
CudaResult cuDeviceGetUuid_v2(CudaUuid* uuid, int device) { return std::memset(uuid, device + 1, 16), 0; }
CudaResult cuDeviceGetAttribute(int* value, int, int) { return *value = 9, 0; }
CudaResult cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = size_t{1} << 30, 0; }
CudaResult cuDeviceCanAccessPeer(int* can, int, int) { return *can = 1, 0; }
// Device 0 and 1 are linked; device 2 and others would not be.
CudaResult cuDeviceGetP2PAttribute(int* value, int, int device, int peer) {
  return *value = device < 2 && peer < 2 ? 1 : 0, 0;
}
CudaResult cuDevicePrimaryCtxRetain(CudaContext* context, int device) {
  *context = reinterpret_cast<CudaContext>(static_cast<uintptr_t>(device) + 1);
  return 0;
}
CudaResult cuDevicePrimaryCtxRelease_v2(int) { return 0; }
CudaResult cuCtxPushCurrent_v2(CudaContext context) { return contexts.push_back(context), 0; }
CudaResult cuCtxPopCurrent_v2(CudaContext* context) {
  if (contexts.empty()) return 201;
  *context = contexts.back();
  contexts.pop_back();
  return 0;
}
CudaResult cuCtxSetCurrent(CudaContext) { return 0; }
CudaResult cuCtxEnablePeerAccess(CudaContext, unsigned) { return 0; }
CudaResult cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = 0, *greatest = -5, 0; }
CudaResult cuMemAlloc_v2(CudaPointer* pointer, size_t bytes) {
  if (contexts.empty()) return 201;
  const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) return kCudaOutOfMemory;
  return Map(fd, bytes, false, pointer);
}
CudaResult cuMemFree_v2(CudaPointer pointer) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(pointer);
  if (found == allocations.end() || found->second.foreign) return 1;
  munmap(reinterpret_cast<void*>(pointer), found->second.bytes);
  close(found->second.fd);
  allocations.erase(found);
  return 0;
}
CudaResult cuMemGetInfo_v2(size_t* free, size_t* total) { return *free = *total = size_t{1} << 30, 0; }
CudaResult cuMemHostAlloc(void** pointer, size_t bytes, unsigned) {
  return (*pointer = std::malloc(bytes)) == nullptr ? kCudaOutOfMemory : 0;
}
CudaResult cuMemFreeHost(void* pointer) { return std::free(pointer), 0; }
CudaResult cuMemGetAddressRange_v2(CudaPointer* base, size_t* bytes, CudaPointer pointer) {
  const std::lock_guard lock(mutex);
  const auto found = Find(pointer);
  if (found == allocations.end()) return 1;
  *base = found->first;
  *bytes = found->second.bytes;
  return 0;
}
CudaResult cuPointerGetAttribute(void* value, int attribute, CudaPointer pointer) {
  const std::lock_guard lock(mutex);
  if (Find(pointer) == allocations.end()) return 1;
  *static_cast<int*>(value) = attribute == kCudaPointerMemoryType ? kCudaMemoryTypeDevice : 0;
  return 0;
}
CudaResult cuMemcpyHtoDAsync_v2(CudaPointer target, const void* source, size_t bytes, CudaStream stream) {
  return Enqueue(stream, [=] { return std::memcpy(reinterpret_cast<void*>(target), source, bytes), true; });
}
CudaResult cuMemcpyDtoHAsync_v2(void* target, CudaPointer source, size_t bytes, CudaStream stream) {
  return Enqueue(stream, [=] { return std::memcpy(target, reinterpret_cast<void*>(source), bytes), true; });
}
CudaResult cuMemcpyDtoDAsync_v2(CudaPointer target, CudaPointer source, size_t bytes, CudaStream stream) {
  return cuMemcpyHtoDAsync_v2(target, reinterpret_cast<void*>(source), bytes, stream);
}
CudaResult cuMemsetD8Async(CudaPointer target, unsigned char value, size_t bytes, CudaStream stream) {
  return Enqueue(stream, [=] { return std::memset(reinterpret_cast<void*>(target), value, bytes), true; });
}
CudaResult cuIpcGetMemHandle(CudaIpcMemory* handle, CudaPointer pointer) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(pointer);
  if (found == allocations.end()) return 1;
  const Handle made{getpid(), found->second.fd, found->second.bytes};
  std::memset(handle, 0, sizeof(*handle));
  std::memcpy(handle, &made, sizeof(made));
  return 0;
}
CudaResult cuIpcOpenMemHandle_v2(CudaPointer* pointer, CudaIpcMemory handle, unsigned) {
  Handle made;
  std::memcpy(&made, &handle, sizeof(made));
  if (made.pid == getpid()) return 201;
  const std::string path = "/proc/" + std::to_string(made.pid) + "/fd/" + std::to_string(made.fd);
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 400;
  return Map(fd, made.bytes, true, pointer);
}
CudaResult cuIpcCloseMemHandle(CudaPointer pointer) {
  const std::lock_guard lock(mutex);
  const auto found = allocations.find(pointer);
  if (found == allocations.end() || !found->second.foreign) return 1;
  munmap(reinterpret_cast<void*>(pointer), found->second.bytes);
  close(found->second.fd);
  allocations.erase(found);
  return 0;
}
CudaResult cuIpcGetEventHandle(CudaIpcEvent*, CudaEvent) { return 801; }
CudaResult cuIpcOpenEventHandle(CudaEvent*, CudaIpcEvent) { return 801; }
CudaResult cuStreamCreateWithPriority(CudaStream* stream, unsigned, int) {
  if (contexts.empty()) return 201;
  return *stream = reinterpret_cast<CudaStream>(new Stream()), 0;
}
CudaResult cuStreamDestroy_v2(CudaStream stream) { return delete reinterpret_cast<Stream*>(stream), 0; }
CudaResult cuStreamSynchronize(CudaStream stream) {
  for (;;) {
    {
      const std::lock_guard lock(mutex);
      Pump(Of(stream));
      if (Of(stream).work.empty()) return 0;
    }
    usleep(100);
  }
}
CudaResult cuStreamWaitEvent(CudaStream stream, CudaEvent event, unsigned) {
  return Enqueue(stream, [event] { return !reinterpret_cast<Event*>(event)->pending; });
}
CudaResult cuStreamWaitValue32_v2(CudaStream stream, CudaPointer address, uint32_t value, unsigned) {
  return Enqueue(stream, [=] { return *reinterpret_cast<volatile uint32_t*>(address) >= value; });
}
CudaResult cuEventCreate(CudaEvent* event, unsigned) { return *event = reinterpret_cast<CudaEvent>(new Event()), 0; }
CudaResult cuEventRecord(CudaEvent event, CudaStream stream) {
  const std::lock_guard lock(mutex);
  auto* recorded = reinterpret_cast<Event*>(event);
  recorded->pending = true;
  recorded->stream = &Of(stream);
  return Enqueue(stream, [recorded] { return recorded->pending = false, true; });
}
CudaResult cuEventQuery(CudaEvent event) {
  const std::lock_guard lock(mutex);
  if (Lost()) return 700;
  auto* asked = reinterpret_cast<Event*>(event);
  if (asked->pending) Pump(*asked->stream);
  return asked->pending ? kCudaNotReady : 0;
}
CudaResult cuEventSynchronize(CudaEvent) { return 0; }
CudaResult cuEventElapsedTime(float* milliseconds, CudaEvent, CudaEvent) { return *milliseconds = 1, 0; }
CudaResult cuEventDestroy_v2(CudaEvent event) { return delete reinterpret_cast<Event*>(event), 0; }
CudaResult cuModuleLoadData(CudaModule* module, const void*) {
  return *module = reinterpret_cast<CudaModule>(uintptr_t{1}), 0;
}
CudaResult cuModuleUnload(CudaModule) { return 0; }
CudaResult cuModuleGetFunction(CudaFunction* function, CudaModule, const char* name) {
  const bool by_few = std::strcmp(name, "state_handoff_copy_by_few") == 0;
  *function = reinterpret_cast<CudaFunction>(uintptr_t{by_few ? 2u : 1u});
  return by_few || std::strcmp(name, "state_handoff_copy") == 0 ? 0 : 500;
}
CudaResult cuLaunchKernel(CudaFunction function, unsigned blocks, unsigned, unsigned, unsigned, unsigned, unsigned,
                          unsigned, CudaStream stream, void** parameters, void**) {
  ++launches;
  const CopyLaunch launch = *static_cast<CopyLaunch*>(parameters[0]);
  const bool by_few = function == reinterpret_cast<CudaFunction>(uintptr_t{2});
  const unsigned tiles = by_few ? *static_cast<uint32_t*>(parameters[1]) : blocks;
  return Enqueue(stream, [=] { return state_handoff::test::RunLaunchOnHost(launch, tiles), true; });
}
}
