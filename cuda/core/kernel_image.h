// The compiled kernels that the addon carries: made by nvcc when the addon was built, empty when there was none.
#pragma once

#include <string>

namespace state_handoff {

// A fat binary for cuModuleLoadData, or null; then `why` says what was missing when the addon was built.
const void* EmbeddedKernels(std::string* why);

}  // namespace state_handoff
