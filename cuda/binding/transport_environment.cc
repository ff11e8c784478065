#include "transport_environment.h"

#include <utility>

#include "transfer_objects.h"

namespace state_handoff {

void WakeBell::Listen(Napi::Env env, Napi::Function callback) {
  const std::lock_guard lock(mutex_);
  if (over_ || open_) return;
  function_ = Napi::ThreadSafeFunction::New(env, callback, "state-handoff wake", 1, 1);
  function_.Unref(env);
  open_ = true;
}

void WakeBell::Ring() {
  const std::lock_guard lock(mutex_);
  // A full queue has a wake-up in it already. One that is closing may not be touched again.
  if (open_ && function_.NonBlockingCall() == napi_closing) open_ = false;
}

void WakeBell::Close() {
  const std::lock_guard lock(mutex_);
  over_ = true;
  if (open_) function_.Abort();
  open_ = false;
}

TransportEnvironment* TransportEnvironment::Create(Napi::Env env) {
  auto* environment = new TransportEnvironment();
  // Runs before handles are finalized; those close their transports too, and find them closed.
  env.AddCleanupHook([environment] {
    environment->TearDown();
    delete environment;
  });
  return environment;
}

void TransportEnvironment::Remember(Known known) {
  std::erase_if(endpoints_, [](const Known& each) { return each.endpoint.expired(); });
  endpoints_.push_back(std::move(known));
}

void TransportEnvironment::TearDown() {
  for (const Known& known : endpoints_) {
    if (const std::shared_ptr<void> endpoint = known.endpoint.lock()) known.close(endpoint.get());
  }
  bell_->Close();
  listeners_.clear();
}

void TransportEnvironment::Listen(Napi::Env env, Napi::Function listener) {
  listeners_.push_back(Napi::Persistent(listener));
  if (listeners_.size() > 1) return;
  const auto call_all = [](const Napi::CallbackInfo& call) {
    for (const Napi::FunctionReference& each : EnvironmentOf(call).listeners_) each.Call({});
  };
  bell_->Listen(env, Napi::Function::New(env, call_all, "wake", this));
  // Hooks run last first: this one before the thread-safe function's own, so that no thread rings while that closes.
  env.AddCleanupHook([this] { TearDown(); });
}

Napi::Value WakeListen(const Napi::CallbackInfo& info) {
  if (!info[0].IsFunction()) ThrowArgument("callback", "a function");
  EnvironmentOf(info).Listen(info.Env(), info[0].As<Napi::Function>());
  return info.Env().Undefined();
}

}  // namespace state_handoff
