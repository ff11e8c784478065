#include "napi_support.h"

namespace state_handoff {

void InitTransfer(Napi::Env env, Napi::Object exports) {}

}  // namespace state_handoff
