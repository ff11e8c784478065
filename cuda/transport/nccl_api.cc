#include "nccl_api.h"

#include <mutex>

#include "../core/dynamic_library.h"
#include "../core/error_codes.h"

namespace state_handoff {

namespace {

std::shared_ptr<const NcclApi> Bind(const std::vector<std::string>& candidates) {
  const DynamicLibrary library = DynamicLibrary::Open("NCCL (libnccl.so.2)", candidates);
  auto api = std::make_shared<NcclApi>();
  api->path = library.path();
#define STATE_HANDOFF_NCCL_BIND(name, arguments) library.Bind(api->name, "nccl" #name);
  STATE_HANDOFF_NCCL_FUNCTIONS(STATE_HANDOFF_NCCL_BIND)
#undef STATE_HANDOFF_NCCL_BIND
  using ErrorString = const char*(int);
  ErrorString* text = nullptr;
  library.Bind(text, "ncclGetErrorString");
  api->GetErrorString = text;
  if (api->GetVersion(&api->version) != kNcclSuccess || api->version < kNcclVersionLeast) {
    throw NativeError(
        ErrorCode::kTRANSPORT_UNAVAILABLE,
        "the NCCL at " + api->path + " is of version " + std::to_string(api->version) + "; 2.18 or newer is needed");
  }
  return api;
}

}  // namespace

std::shared_ptr<const NcclApi> NcclApi::Load(const std::vector<std::string>& candidates) {
  static std::mutex mutex;
  static std::shared_ptr<const NcclApi>* loaded = nullptr;  // outlives every thread of the library
  const std::lock_guard lock(mutex);
  if (loaded == nullptr) loaded = new std::shared_ptr<const NcclApi>(Bind(candidates));
  return *loaded;
}

std::string NcclApi::Describe(int result) const {
  const char* text = GetErrorString(result);
  return std::string(text == nullptr ? "an unknown error" : text) + " (" + std::to_string(result) + ")";
}

}  // namespace state_handoff
