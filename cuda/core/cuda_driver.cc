#include "cuda_driver.h"

#include <dlfcn.h>
#include <link.h>

#include <map>
#include <memory>
#include <mutex>

#include "error_codes.h"

namespace state_handoff {

std::string CudaDriver::Open(const char* path) {
  const char* name = path == nullptr ? "libcuda.so.1" : path;
  void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* reason = dlerror();
    return std::string("the CUDA driver does not load: ") + (reason == nullptr ? name : reason);
  }
  const link_map* loaded = nullptr;
  const bool known = dlinfo(library, RTLD_DI_LINKMAP, &loaded) == 0 && loaded != nullptr && *loaded->l_name != '\0';
  path_ = known ? loaded->l_name : name;
#define STATE_HANDOFF_CUDA_BIND(member, symbol, parameters) \
  member = reinterpret_cast<CudaResult(*) parameters>(dlsym(library, #symbol));
#define STATE_HANDOFF_CUDA_DEMAND(member, symbol, parameters) \
  if (member == nullptr) return "the CUDA driver at " + path_ + " has no " #symbol "; it is too old";
  STATE_HANDOFF_CUDA_FUNCTIONS(STATE_HANDOFF_CUDA_BIND)
  STATE_HANDOFF_CUDA_NEWER_FUNCTIONS(STATE_HANDOFF_CUDA_BIND)
  STATE_HANDOFF_CUDA_FUNCTIONS(STATE_HANDOFF_CUDA_DEMAND)
#undef STATE_HANDOFF_CUDA_DEMAND
#undef STATE_HANDOFF_CUDA_BIND
  CudaResult result = Init(0);
  if (result == kCudaSuccess) result = DriverGetVersion(&version_);
  if (result == kCudaSuccess) result = DeviceGetCount(&device_count_);
  if (result != kCudaSuccess) return "the CUDA driver at " + path_ + " does not start: " + Describe(result);
  if (device_count_ == 0) return "the CUDA driver at " + path_ + " sees no device";
  return "";
}

const CudaDriver* CudaDriver::Load(const char* path, std::string* why) {
  struct Known {
    std::unique_ptr<CudaDriver> driver;
    std::string why_not;
  };
  static std::mutex mutex;
  // Never destroyed: threads may call the driver while the process exits.
  static auto* known = new std::map<std::string, Known>();
  const std::lock_guard lock(mutex);
  Known& entry = (*known)[path == nullptr ? "" : path];
  if (entry.driver == nullptr) {
    entry.driver.reset(new CudaDriver());
    entry.why_not = entry.driver->Open(path);
  }
  if (why != nullptr) *why = entry.why_not;
  return entry.why_not.empty() ? entry.driver.get() : nullptr;
}

std::string CudaDriver::Describe(CudaResult result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (GetErrorName(result, &name) != kCudaSuccess || name == nullptr) return "error " + std::to_string(result);
  if (GetErrorString(result, &text) != kCudaSuccess || text == nullptr) return name;
  return std::string(name) + " (" + text + ")";
}

void CudaDriver::Check(CudaResult result, const char* what) const {
  if (result == kCudaSuccess) return;
  throw NativeError(ErrorCode::kNATIVE_SYSTEM, std::string(what) + " failed because of " + Describe(result));
}

}  // namespace state_handoff
