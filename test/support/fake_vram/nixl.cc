// The real NIXL, told that GPU memory is host memory: stands before libnixl_capi.so, for tests on machines without a
// GPU, where the memory of the stand-in for the CUDA driver is host memory indeed and UCX would refuse it.
//
// Overrides the two functions that name a kind of memory; every other one is found in the library behind it.
#include <dlfcn.h>

#include <cstdlib>

namespace {

using MakeList = int (*)(int memory, void** list);

int MakeHostList(const char* name, void** list) {
  const auto make = reinterpret_cast<MakeList>(dlsym(RTLD_NEXT, name));
  if (make == nullptr) std::abort();
  return make(0, list);
}

}  // namespace

extern "C" {

int nixl_capi_create_reg_dlist(int, void** list) { return MakeHostList("nixl_capi_create_reg_dlist", list); }
int nixl_capi_create_xfer_dlist(int, void** list) { return MakeHostList("nixl_capi_create_xfer_dlist", list); }
}
