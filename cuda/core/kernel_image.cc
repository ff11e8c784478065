#include "kernel_image.h"

#include <cstdint>

#if __has_include("kernel_image_bytes.inc")
#include "kernel_image_bytes.inc"
#else
// A build without the addon's recipe, as those of the C++ tests are.
alignas(64) static const uint64_t kKernelImage[] = {0};
static const char kKernelImageMissing[] = "this build made none";
#endif

namespace state_handoff {

const void* EmbeddedKernels(std::string* why) {
  *why = kKernelImageMissing;
  return sizeof(kKernelImage) > sizeof(uint64_t) ? kKernelImage : nullptr;
}

}  // namespace state_handoff
