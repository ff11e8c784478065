#include "dynamic_library.h"

#include <dlfcn.h>
#include <link.h>

#include <utility>

#include "error_codes.h"

namespace state_handoff {

DynamicLibrary::DynamicLibrary(std::string what, std::string path, void* handle)
    : what_(std::move(what)), path_(std::move(path)), handle_(handle) {}

DynamicLibrary DynamicLibrary::Open(const std::string& what, const std::vector<std::string>& candidates) {
  std::string reasons;
  for (const std::string& candidate : candidates) {
    // Local: what it brings along (an OpenSSL, say) must not take the place of what this process has.
    if (void* handle = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      const link_map* loaded = nullptr;
      const bool known = dlinfo(handle, RTLD_DI_LINKMAP, &loaded) == 0 && loaded != nullptr && *loaded->l_name != '\0';
      return DynamicLibrary(what, known ? loaded->l_name : candidate, handle);
    }
    const char* why = dlerror();
    reasons += (reasons.empty() ? "" : "; ") + std::string(why == nullptr ? "the loader gives no reason" : why);
  }
  throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE,
                    what + " does not load: " + (reasons.empty() ? "no place to look for it" : reasons));
}

void* DynamicLibrary::Find(const char* symbol) const { return dlsym(handle_, symbol); }

void* DynamicLibrary::Require(const char* symbol) const {
  if (void* found = Find(symbol)) return found;
  throw NativeError(ErrorCode::kTRANSPORT_UNAVAILABLE,
                    what_ + " at " + path_ + " has no " + symbol + "; it is another library or of another version");
}

}  // namespace state_handoff
