// A double in an error message, as JavaScript would write it (but for the exponent's digits).
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string>

namespace state_handoff {

inline std::string NumberText(double number) {
  if (std::isnan(number)) return "NaN";
  if (std::isinf(number)) return number < 0 ? "-Infinity" : "Infinity";
  char text[40];
  for (int digits = 1; digits <= 17; ++digits) {  // the shortest that reads back as the same number
    std::snprintf(text, sizeof(text), "%.*g", digits, number);
    if (std::strtod(text, nullptr) == number) break;
  }
  return text;
}

}  // namespace state_handoff
