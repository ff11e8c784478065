// Runs every case of the program, or those whose names contain an argument. test/native/core-program.test.ts runs the
// plain build, `npm run test:sanitize` the ones under ThreadSanitizer and AddressSanitizer.
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  int ran = 0;
  for (const state_handoff::test::Case& each : state_handoff::test::Cases()) {
    bool wanted = argc == 1;
    for (int i = 1; i < argc; ++i) wanted = wanted || std::strstr(each.name, argv[i]) != nullptr;
    if (!wanted) continue;
    std::printf("%s\n", each.name);
    std::fflush(stdout);
    each.body();
    ++ran;
  }
  std::printf("%d cases passed\n", ran);
  return ran == 0 ? 1 : 0;
}
