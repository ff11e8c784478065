// What all native transports of one environment share: the one thread-safe function, which only says "look at the
// rings", and the list of what is closed when the environment is torn down.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "napi_support.h"

namespace state_handoff {

// Wakes JavaScript from any thread; does nothing once the environment is going away.
class WakeBell {
 public:
  void Listen(Napi::Env env, Napi::Function callback);
  void Ring();
  void Close();

 private:
  std::mutex mutex_;
  Napi::ThreadSafeFunction function_;
  bool open_ = false;
  bool over_ = false;
};

class TransportEnvironment {
 public:
  // Lives until the environment is torn down; then closes every transport, which finalizers find closed.
  static TransportEnvironment* Create(Napi::Env env);

  const std::shared_ptr<WakeBell>& bell() const { return bell_; }

  // Adds what to call, coalesced, when a ring may hold something.
  void Listen(Napi::Env env, Napi::Function listener);

  // `endpoint` is closed with the environment, if it lives then. Its Close() waits for its threads.
  template <typename Endpoint>
  void Add(const std::shared_ptr<Endpoint>& endpoint) {
    Remember(Known{endpoint, [](void* known) { static_cast<Endpoint*>(known)->Close(); }});
  }

 private:
  struct Known {
    std::weak_ptr<void> endpoint;
    void (*close)(void*);
  };

  void Remember(Known known);
  void TearDown();

  const std::shared_ptr<WakeBell> bell_ = std::make_shared<WakeBell>();
  std::vector<Known> endpoints_;
  // One for each copy of the SDK's JavaScript that this environment has loaded.
  std::vector<Napi::FunctionReference> listeners_;
};

// The environment of a function that was exported with one.
inline TransportEnvironment& EnvironmentOf(const Napi::CallbackInfo& info) {
  return *static_cast<TransportEnvironment*>(info.Data());
}

// The binding of `wakeListen`.
Napi::Value WakeListen(const Napi::CallbackInfo& info);

}  // namespace state_handoff
