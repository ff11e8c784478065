#include "nixl_api.h"

#include <cstdlib>
#include <mutex>

#include "../core/dynamic_library.h"
#include "../core/error_codes.h"

namespace state_handoff {

namespace {

// UCX reads its environment when it is loaded. What the user has set stays.
void SetDefaults() {
  // Otherwise UCX takes over the handlers of signals that belong to the process: SIGSEGV and the like, and SIGHUP.
  setenv("UCX_ERROR_SIGNALS", "", 0);
  setenv("UCX_DEBUG_SIGNO", "0", 0);
  // A cache of memory kinds that goes wrong where somebody else frees GPU memory (spec 7.3).
  setenv("UCX_MEMTYPE_CACHE", "n", 0);
  // Otherwise UCX patches brk, mmap and munmap of the running process and tries them out beside the other threads'
  // malloc, which now and then loses the heap's last page under them. Memory here is deregistered before it is
  // unmapped.
  setenv("UCX_MEM_MMAP_HOOK_MODE", "none", 0);
  setenv("UCX_LOG_LEVEL", "fatal", 0);
  setenv("NIXL_LOG_LEVEL", "FATAL", 0);
}

std::shared_ptr<const NixlApi> Bind(const std::vector<std::string>& candidates) {
  SetDefaults();
  const DynamicLibrary library = DynamicLibrary::Open("NIXL (libnixl_capi.so)", candidates);
  using IsStub = bool();
  IsStub* is_stub = nullptr;
  library.BindIfPresent(is_stub, "nixl_capi_is_stub");
  if (is_stub != nullptr && is_stub()) {
    throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE,
                      "the NIXL at " + library.path() + " is a stub that moves nothing; name a real one");
  }
  auto api = std::make_shared<NixlApi>();
  api->path = library.path();
#define STATE_HANDOFF_NIXL_BIND(name, arguments) library.Bind(api->name, "nixl_capi_" #name);
  STATE_HANDOFF_NIXL_FUNCTIONS(STATE_HANDOFF_NIXL_BIND)
#undef STATE_HANDOFF_NIXL_BIND
  return api;
}

}  // namespace

std::shared_ptr<const NixlApi> NixlApi::Load(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static std::shared_ptr<const NixlApi>* loaded = nullptr;  // outlives every thread of the library
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) loaded = new std::shared_ptr<const NixlApi>(Bind(candidates));
  return *loaded;
}

std::string NixlStatusText(int status) {
  const char* words = "an unknown status";
  switch (status) {
    case kNixlSuccess:
      words = "success";
      break;
    case kNixlInProgress:
      words = "in progress";
      break;
    case kNixlInvalidParameter:
      words = "invalid parameter";
      break;
    case kNixlBackendError:
      words = "backend error";
      break;
    case kNixlInvalidState:
      words = "invalid state";
      break;
    case kNixlNotFound:
      words = "not found";
      break;
  }
  return std::string(words) + " (" + std::to_string(status) + ")";
}

}  // namespace state_handoff
