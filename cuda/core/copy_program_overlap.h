// Whether two rectangles in normal form write a common byte: decided exactly, without expanding either.
//
// Two bytes meet when sum(x[d] * d) + r = distance of the bases, where x[d] is the difference of the two digits of
// stride d and r the difference inside the fragments. The strides are walked from the largest down; in a common nest at
// most two values of each x[d] can still succeed, and a step whose remainder no multiple of the strides left can reach
// ends at once. Tables come in at the end: do two rows with just these differences exist?
#pragma once

#include <cstdint>

#include "copy_program_shape.h"

namespace state_handoff {

enum class Meeting { kApart, kMeet, kUnproven };

// Steps one pair may take: a full walk over a common nest of 14 strides. Only shapes without a common nest need more.
inline constexpr int64_t kPairStepsMax = int64_t{1} << 15;

// Takes the steps it used, one a node of the walk and one a row looked at, from `budget`; kUnproven when either ends.
Meeting DecideMeeting(const Shape& a, const Shape& b, int64_t& budget);

}  // namespace state_handoff
