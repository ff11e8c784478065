// The proof that a copy program writes every target byte at most once and touches nothing outside its regions.
//
// The same decision as lib/transfer/check-program.ts, made again here before an address is formed. Its cost depends on
// the numbers of rectangles and table rows, never on the number of fragments.
#pragma once

#include <cstdint>
#include <span>

#include "copy_program.h"

namespace state_handoff {

struct WantedRange {
  int64_t region;
  int64_t offset;
  int64_t bytes;
};

// Steps all pairs of one program may take together; a row that is looked at counts as one.
inline constexpr int64_t kProgramStepsMax = int64_t{1} << 26;

// Throws PROGRAM_OUT_OF_RANGE, PROGRAM_NOT_NORMAL, PROGRAM_OVERLAP or PROGRAM_INCOMPLETE, naming the rectangle; and
// ARGUMENT_INVALID for a region size or wanted range that is none.
void CheckProgram(const CopyProgram& program, std::span<const int64_t> source_bytes,
                  std::span<const int64_t> target_bytes, std::span<const WantedRange> wanted);

// Bytes the program moves. The program has been checked.
int64_t ProgramBytes(const CopyProgram& program);

}  // namespace state_handoff
