// A test program without a framework: CHECK ends it with the place and what was seen; TEST adds a case to the list that
// main.cc runs. Exit status 0 only when every case has run.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <vector>

#include "../../cuda/core/error_codes.h"

namespace state_handoff::test {

struct Case {
  const char* name;
  void (*body)();
};

inline std::vector<Case>& Cases() {
  static std::vector<Case> cases;
  return cases;
}

struct Register {
  Register(const char* name, void (*body)()) { Cases().push_back(Case{name, body}); }
};

[[noreturn]] inline void Stop(const char* file, int line, const std::string& what) {
  std::fprintf(stderr, "%s:%d: %s\n", file, line, what.c_str());
  std::exit(1);
}

template <typename Left, typename Right>
void CheckEqual(const char* file, int line, const char* text, const Left& left, const Right& right) {
  if (left == right) return;
  std::ostringstream words;
  words << text << ": " << left << " against " << right;
  Stop(file, line, words.str());
}

// The code of the NativeError that `call` throws, or "nothing".
template <typename Call>
std::string CodeOf(Call&& call) {
  try {
    call();
    return "nothing";
  } catch (const NativeError& error) {
    return ErrorCodeName(error.code());
  }
}

}  // namespace state_handoff::test

#define CHECK(condition) \
  if (!(condition)) ::state_handoff::test::Stop(__FILE__, __LINE__, "expected " #condition)
#define CHECK_EQUAL(left, right) ::state_handoff::test::CheckEqual(__FILE__, __LINE__, #left " == " #right, left, right)
#define TEST(name)                                                            \
  static void name();                                                         \
  static const ::state_handoff::test::Register register_##name(#name, &name); \
  static void name()
