// Runs every case of the program, or those whose names contain an argument; `-word` leaves out those with it.
// test/native/core-program.test.ts runs the plain build, `npm run test:sanitize` the ones under ThreadSanitizer and
// AddressSanitizer.
#include <cstring>

#include "check.h"

int main(int argc, char** argv) {
  int ran = 0;
  for (const state_handoff::test::Case& each : state_handoff::test::Cases()) {
    bool named = false;
    bool wanted = false;
    bool unwanted = false;
    for (int i = 1; i < argc; ++i) {
      const bool leaves_out = argv[i][0] == '-';
      const bool matches = std::strstr(each.name, argv[i] + (leaves_out ? 1 : 0)) != nullptr;
      named = named || !leaves_out;
      (leaves_out ? unwanted : wanted) |= matches;
    }
    wanted = (wanted || !named) && !unwanted;
    if (!wanted) continue;
    std::printf("%s\n", each.name);
    std::fflush(stdout);
    each.body();
    ++ran;
  }
  std::printf("%d cases passed\n", ran);
  return ran == 0 ? 1 : 0;
}
