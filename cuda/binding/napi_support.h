// The one place that includes napi.h, so that its configuration always applies; and the one translation of errors.
#pragma once

#include <napi.h>

#include "../core/error_codes.h"

namespace state_handoff {

// A JavaScript error with `code`; TypeScript's addon-errors.ts makes a HandoffError of it.
inline Napi::Error MakeJsError(Napi::Env env, ErrorCode code, const std::string& message) {
  Napi::Error error = Napi::Error::New(env, message);
  error.Value().Set("code", Napi::String::New(env, ErrorCodeName(code)));
  return error;
}

// Runs a binding function; a NativeError leaves as a JavaScript error of the same code.
template <typename Function>
auto Guarded(Napi::Env env, Function&& function) -> decltype(function()) {
  try {
    return function();
  } catch (const NativeError& error) {
    throw MakeJsError(env, error.code(), error.what());
  }
}

void InitMemory(Napi::Env env, Napi::Object exports);    // memory.cc
void InitTransfer(Napi::Env env, Napi::Object exports);  // transfer.cc

}  // namespace state_handoff
