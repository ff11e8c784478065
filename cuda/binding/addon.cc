// The addon's entry. One context per environment: nothing here is shared between worker threads.
#include "napi_support.h"

namespace state_handoff {

Napi::Object Init(Napi::Env env, Napi::Object exports) {
  InitMemory(env, exports);
  InitTransfer(env, exports);
  return exports;
}

NODE_API_MODULE(state_handoff, Init)

}  // namespace state_handoff
