// Finding the CUDA driver: what is missing is said, and a library that is something else is turned away.
#include "../../cuda/core/cuda_driver.h"

#include "check.h"

namespace state_handoff::test {

TEST(CudaDriverSaysWhichFileDoesNotLoad) {
  std::string why;
  CHECK(CudaDriver::Load("./no-such-driver.so", &why) == nullptr);
  CHECK(why.find("no-such-driver.so") != std::string::npos);
  // Asked again, it answers the same without trying again.
  std::string again;
  CHECK(CudaDriver::Load("./no-such-driver.so", &again) == nullptr);
  CHECK_EQUAL(why, again);
}

TEST(CudaDriverTurnsAwayAnotherLibrary) {
  std::string why;
  CHECK(CudaDriver::Load("libc.so.6", &why) == nullptr);
  CHECK(why.find("has no cuInit") != std::string::npos);
}

}  // namespace state_handoff::test
