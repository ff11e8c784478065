// The CUDA driver API as far as the SDK uses it, with our own declarations: found at run time, so that the addon builds
// without a CUDA toolkit and loads on a machine without a GPU.
//
// Every function is bound by the exact name of its binary interface (`_v2` where there is one), which no newer driver
// changes. Opened for good, by path or by the loader's name, once for each path.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace state_handoff {

// CUresult; the names of the few that are told apart.
using CudaResult = int;
inline constexpr CudaResult kCudaSuccess = 0;
inline constexpr CudaResult kCudaOutOfMemory = 2;
inline constexpr CudaResult kCudaPeerAccessAlreadyEnabled = 704;
inline constexpr CudaResult kCudaNotReady = 600;

// Handles as wide as the driver's. CudaPointer is a device address.
using CudaOrdinal = int;
using CudaPointer = uint64_t;
using CudaContext = struct CudaContextObject*;
using CudaStream = struct CudaStreamObject*;
using CudaEvent = struct CudaEventObject*;
using CudaModule = struct CudaModuleObject*;
using CudaFunction = struct CudaFunctionObject*;
using CudaAllocation = uint64_t;  // CUmemGenericAllocationHandle

struct CudaUuid {
  uint8_t bytes[16];
};
// CUipcMemHandle and CUipcEventHandle, which the driver takes by value.
struct CudaIpcMemory {
  uint8_t bytes[64];
};
struct CudaIpcEvent {
  uint8_t bytes[64];
};
static_assert(sizeof(CudaUuid) == 16 && sizeof(CudaIpcMemory) == 64 && sizeof(CudaIpcEvent) == 64);

struct CudaLocation {
  int type;
  int id;
};
// CUmemAllocationProp.
struct CudaAllocationProperties {
  int type;
  int requested_handle_types;
  CudaLocation location;
  void* win32_meta_data;
  uint8_t compression_type;
  uint8_t gpu_direct_rdma_capable;
  uint16_t usage;
  uint8_t reserved[4];
};
static_assert(sizeof(CudaAllocationProperties) == 32);
struct CudaAccess {
  CudaLocation location;
  int flags;
};
// CUmemcpyAttributes.
struct CudaCopyAttributes {
  int source_access_order;
  CudaLocation source_hint;
  CudaLocation target_hint;
  unsigned flags;
};

// Values of the driver's enumerations, under its own names in the comments.
inline constexpr int kCudaAttributeMultiprocessors = 16;     // CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT
inline constexpr int kCudaAttributeCapabilityMajor = 75;     // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR
inline constexpr int kCudaAttributeCapabilityMinor = 76;     // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR
inline constexpr int kCudaAttributeVirtualMemory = 102;      // ..._VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
inline constexpr int kCudaAttributeRdmaWithVirtual = 110;    // ..._GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED
inline constexpr int kCudaPointerMemoryType = 2;             // CU_POINTER_ATTRIBUTE_MEMORY_TYPE
inline constexpr int kCudaPointerOrdinal = 9;                // CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
inline constexpr int kCudaPointerLegacyIpc = 10;             // CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE
inline constexpr int kCudaMemoryTypeDevice = 2;              // CU_MEMORYTYPE_DEVICE
inline constexpr int kCudaPeerNativeAtomics = 3;             // CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED
inline constexpr unsigned kCudaStreamNonBlocking = 1;        // CU_STREAM_NON_BLOCKING
inline constexpr unsigned kCudaEventDisableTiming = 2;       // CU_EVENT_DISABLE_TIMING
inline constexpr unsigned kCudaEventInterprocess = 4;        // CU_EVENT_INTERPROCESS
inline constexpr unsigned kCudaIpcLazyPeerAccess = 1;        // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
inline constexpr unsigned kCudaWaitValueGreaterOrEqual = 0;  // CU_STREAM_WAIT_VALUE_GEQ
inline constexpr unsigned kCudaHostAllocPortable = 1;        // CU_MEMHOSTALLOC_PORTABLE
inline constexpr int kCudaAllocationPinned = 1;              // CU_MEM_ALLOCATION_TYPE_PINNED
inline constexpr int kCudaLocationDevice = 1;                // CU_MEM_LOCATION_TYPE_DEVICE
inline constexpr int kCudaHandlePosixDescriptor = 1;         // CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
inline constexpr int kCudaAccessReadWrite = 3;               // CU_MEM_ACCESS_FLAGS_PROT_READWRITE
inline constexpr int kCudaCopyStreamOrder = 1;               // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

// X(member, symbol, parameters): functions every usable driver has.
#define STATE_HANDOFF_CUDA_FUNCTIONS(X)                                                                            \
  X(Init, cuInit, (unsigned flags))                                                                                \
  X(DriverGetVersion, cuDriverGetVersion, (int* version))                                                          \
  X(GetErrorName, cuGetErrorName, (CudaResult result, const char** name))                                          \
  X(GetErrorString, cuGetErrorString, (CudaResult result, const char** text))                                      \
  X(DeviceGetCount, cuDeviceGetCount, (int* count))                                                                \
  X(DeviceGet, cuDeviceGet, (CudaOrdinal * device, int ordinal))                                                   \
  X(DeviceGetName, cuDeviceGetName, (char* name, int bytes, CudaOrdinal device))                                   \
  X(DeviceGetUuid, cuDeviceGetUuid_v2, (CudaUuid * uuid, CudaOrdinal device))                                      \
  X(DeviceGetAttribute, cuDeviceGetAttribute, (int* value, int attribute, CudaOrdinal device))                     \
  X(DeviceTotalMem, cuDeviceTotalMem_v2, (size_t * bytes, CudaOrdinal device))                                     \
  X(DeviceCanAccessPeer, cuDeviceCanAccessPeer, (int* can, CudaOrdinal device, CudaOrdinal peer))                  \
  X(PrimaryContextRetain, cuDevicePrimaryCtxRetain, (CudaContext * context, CudaOrdinal device))                   \
  X(PrimaryContextRelease, cuDevicePrimaryCtxRelease_v2, (CudaOrdinal device))                                     \
  X(ContextPush, cuCtxPushCurrent_v2, (CudaContext context))                                                       \
  X(ContextPop, cuCtxPopCurrent_v2, (CudaContext * context))                                                       \
  X(ContextSetCurrent, cuCtxSetCurrent, (CudaContext context))                                                     \
  X(ContextEnablePeerAccess, cuCtxEnablePeerAccess, (CudaContext peer, unsigned flags))                            \
  X(StreamPriorityRange, cuCtxGetStreamPriorityRange, (int* least, int* greatest))                                 \
  X(MemAlloc, cuMemAlloc_v2, (CudaPointer * pointer, size_t bytes))                                                \
  X(MemFree, cuMemFree_v2, (CudaPointer pointer))                                                                  \
  X(MemGetInfo, cuMemGetInfo_v2, (size_t * free, size_t * total))                                                  \
  X(MemHostAlloc, cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                                  \
  X(MemFreeHost, cuMemFreeHost, (void* pointer))                                                                   \
  X(MemGetAddressRange, cuMemGetAddressRange_v2, (CudaPointer * base, size_t * bytes, CudaPointer pointer))        \
  X(PointerGetAttribute, cuPointerGetAttribute, (void* value, int attribute, CudaPointer pointer))                 \
  X(CopyToDeviceAsync, cuMemcpyHtoDAsync_v2,                                                                       \
    (CudaPointer target, const void* source, size_t bytes, CudaStream stream))                                     \
  X(CopyToHostAsync, cuMemcpyDtoHAsync_v2, (void* target, CudaPointer source, size_t bytes, CudaStream stream))    \
  X(CopyOnDeviceAsync, cuMemcpyDtoDAsync_v2,                                                                       \
    (CudaPointer target, CudaPointer source, size_t bytes, CudaStream stream))                                     \
  X(FillAsync, cuMemsetD8Async, (CudaPointer target, unsigned char value, size_t bytes, CudaStream stream))        \
  X(IpcGetMemory, cuIpcGetMemHandle, (CudaIpcMemory * handle, CudaPointer pointer))                                \
  X(IpcOpenMemory, cuIpcOpenMemHandle_v2, (CudaPointer * pointer, CudaIpcMemory handle, unsigned flags))           \
  X(IpcCloseMemory, cuIpcCloseMemHandle, (CudaPointer pointer))                                                    \
  X(IpcGetEvent, cuIpcGetEventHandle, (CudaIpcEvent * handle, CudaEvent event))                                    \
  X(IpcOpenEvent, cuIpcOpenEventHandle, (CudaEvent * event, CudaIpcEvent handle))                                  \
  X(StreamCreate, cuStreamCreateWithPriority, (CudaStream * stream, unsigned flags, int priority))                 \
  X(StreamDestroy, cuStreamDestroy_v2, (CudaStream stream))                                                        \
  X(StreamSynchronize, cuStreamSynchronize, (CudaStream stream))                                                   \
  X(StreamWaitEvent, cuStreamWaitEvent, (CudaStream stream, CudaEvent event, unsigned flags))                      \
  X(EventCreate, cuEventCreate, (CudaEvent * event, unsigned flags))                                               \
  X(EventRecord, cuEventRecord, (CudaEvent event, CudaStream stream))                                              \
  X(EventQuery, cuEventQuery, (CudaEvent event))                                                                   \
  X(EventSynchronize, cuEventSynchronize, (CudaEvent event))                                                       \
  X(EventElapsedTime, cuEventElapsedTime, (float* milliseconds, CudaEvent start, CudaEvent end))                   \
  X(EventDestroy, cuEventDestroy_v2, (CudaEvent event))                                                            \
  X(ModuleLoadData, cuModuleLoadData, (CudaModule * module, const void* image))                                    \
  X(ModuleUnload, cuModuleUnload, (CudaModule module))                                                             \
  X(ModuleGetFunction, cuModuleGetFunction, (CudaFunction * function, CudaModule module, const char* name))        \
  X(LaunchKernel, cuLaunchKernel,                                                                                  \
    (CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y, \
     unsigned block_z, unsigned shared_bytes, CudaStream stream, void** parameters, void** extra))

// Null where a driver lacks them.
#define STATE_HANDOFF_CUDA_NEWER_FUNCTIONS(X)                                                                          \
  X(DeviceGetP2PAttribute, cuDeviceGetP2PAttribute, (int* value, int attribute, CudaOrdinal device, CudaOrdinal peer)) \
  X(StreamWaitValue32, cuStreamWaitValue32_v2,                                                                         \
    (CudaStream stream, CudaPointer address, uint32_t value, unsigned flags))                                          \
  X(StreamWriteValue32, cuStreamWriteValue32_v2,                                                                       \
    (CudaStream stream, CudaPointer address, uint32_t value, unsigned flags))                                          \
  X(CopyBatchAsync, cuMemcpyBatchAsync_v2,                                                                             \
    (CudaPointer * targets, CudaPointer * sources, size_t * bytes, size_t count, CudaCopyAttributes * attributes,      \
     size_t * attribute_starts, size_t attribute_count, CudaStream stream))                                            \
  X(AllocationGranularity, cuMemGetAllocationGranularity,                                                              \
    (size_t * bytes, const CudaAllocationProperties* properties, int flags))                                           \
  X(AllocationCreate, cuMemCreate,                                                                                     \
    (CudaAllocation * allocation, size_t bytes, const CudaAllocationProperties* properties, uint64_t flags))           \
  X(AllocationRelease, cuMemRelease, (CudaAllocation allocation))                                                      \
  X(AddressReserve, cuMemAddressReserve,                                                                               \
    (CudaPointer * pointer, size_t bytes, size_t alignment, CudaPointer wanted, uint64_t flags))                       \
  X(AddressFree, cuMemAddressFree, (CudaPointer pointer, size_t bytes))                                                \
  X(AllocationMap, cuMemMap,                                                                                           \
    (CudaPointer pointer, size_t bytes, size_t offset, CudaAllocation allocation, uint64_t flags))                     \
  X(AllocationUnmap, cuMemUnmap, (CudaPointer pointer, size_t bytes))                                                  \
  X(AllocationSetAccess, cuMemSetAccess, (CudaPointer pointer, size_t bytes, const CudaAccess* access, size_t count))

class CudaDriver {
 public:
  // The driver at `path` (null: the loader's own libcuda.so.1), loaded and initialised. Null when it does not load,
  // lacks a function or finds no device it can use; then `why` says which. Never forgotten. Any thread.
  static const CudaDriver* Load(const char* path, std::string* why);

  // Where it was loaded from, as far as the loader tells.
  const std::string& path() const { return path_; }
  // As cuDriverGetVersion has it: 13000 is 13.0.
  int version() const { return version_; }
  int device_count() const { return device_count_; }

  // `CUDA_ERROR_X (text)`, for messages.
  std::string Describe(CudaResult result) const;
  // Throws NATIVE_SYSTEM saying what failed, unless `result` is success.
  void Check(CudaResult result, const char* what) const;

#define STATE_HANDOFF_CUDA_MEMBER(member, symbol, parameters) CudaResult(*member) parameters = nullptr;
  STATE_HANDOFF_CUDA_FUNCTIONS(STATE_HANDOFF_CUDA_MEMBER)
  STATE_HANDOFF_CUDA_NEWER_FUNCTIONS(STATE_HANDOFF_CUDA_MEMBER)
#undef STATE_HANDOFF_CUDA_MEMBER

 private:
  CudaDriver() = default;
  // Empty, or why the driver is of no use.
  std::string Open(const char* path);

  std::string path_;
  int version_ = 0;
  int device_count_ = 0;
};

// Makes a context current on this thread for as long as it lives.
class CudaContextScope {
 public:
  // Throws NATIVE_SYSTEM.
  CudaContextScope(const CudaDriver& driver, CudaContext context) : driver_(driver) {
    driver_.Check(driver_.ContextPush(context), "making a CUDA context current");
  }
  ~CudaContextScope() {
    CudaContext popped;
    driver_.ContextPop(&popped);
  }

  CudaContextScope(const CudaContextScope&) = delete;
  CudaContextScope& operator=(const CudaContextScope&) = delete;

 private:
  const CudaDriver& driver_;
};

}  // namespace state_handoff
