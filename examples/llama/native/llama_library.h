// llama.cpp as it lies in a folder: loads it by absolute path, binds what llama_api.h names, and refuses every release
// but the one whose structs that file declares.
#pragma once

#include <string>

#include "llama_api.h"

namespace state_handoff::llama {

// Loads the library once a process; a second call with another folder throws std::runtime_error, as does anything that
// is missing or of another release.
const Api& LoadLibrary(const std::string& folder);

// The error lines that llama.cpp has logged since the last call; it reports nothing else of its failures.
std::string TakeLoggedErrors();

}  // namespace state_handoff::llama
