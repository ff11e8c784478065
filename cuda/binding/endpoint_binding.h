// What every native transport shows JavaScript alike: links and transfers by their ids, how it starts, how it closes.
//
// A handle holds the transport as `endpoint`, which is the first argument of every call; an id that is none is refused
// by the endpoint. What only some transports have stands in their own bindings.
#pragma once

#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "transfer_objects.h"
#include "transport_environment.h"

namespace state_handoff {

inline constexpr int64_t kIdMax = 9007199254740991;

inline uint64_t IdArgument(const Napi::CallbackInfo& info, size_t index, const char* name) {
  return static_cast<uint64_t>(WholeArgument(info, index, name, 1, kIdMax));
}

inline Napi::Value IdValue(Napi::Env env, uint64_t id) { return Napi::Number::New(env, static_cast<double>(id)); }

inline Napi::Value FailureValue(Napi::Env env, ErrorCode code, const std::string& message) {
  Napi::Object failure = Napi::Object::New(env);
  failure.Set("code", Napi::String::New(env, ErrorCodeName(code)));
  failure.Set("message", Napi::String::New(env, message));
  return failure;
}

template <typename Subject>
Napi::Value StatusValue(Napi::Env env, const Subject& subject) {
  return Napi::Number::New(env, static_cast<int>(subject.status()));
}

// Why a link or a communicator failed; null while it has not.
template <typename Link>
Napi::Value LinkFailureValue(Napi::Env env, const Link& link) {
  if (link.status() != decltype(link.status())::kFailed) return env.Null();
  return FailureValue(env, link.error_code(), link.error_message());
}

template <typename Handle>
struct EndpointBinding {
  static auto& Endpoint(const Napi::CallbackInfo& info) {
    return *HandleArgument<Handle>(info, 0, "endpoint").endpoint;
  }

  static const auto& Link(const Napi::CallbackInfo& info) { return Endpoint(info).Link(IdArgument(info, 1, "peer")); }

  static const auto& Transfer(const Napi::CallbackInfo& info) {
    return Endpoint(info).Find(IdArgument(info, 1, "transfer"));
  }

  // `endpoint` is closed with the environment.
  template <typename Options>
  static Napi::Value Open(const Napi::CallbackInfo& info, Options options) {
    using EndpointType = typename decltype(Handle::endpoint)::element_type;
    TransportEnvironment& environment = EnvironmentOf(info);
    auto handle = std::make_unique<Handle>();
    handle->endpoint =
        std::make_shared<EndpointType>(std::move(options), [bell = environment.bell()] { bell->Ring(); });
    environment.Add(handle->endpoint);
    return WrapHandle(info.Env(), std::move(handle));
  }

  template <typename Region>
  static Napi::Value Register(const Napi::CallbackInfo& info) {
    return IdValue(info.Env(), Endpoint(info).AddRegion(HandleArgument<Region>(info, 1, "region").region));
  }

  static Napi::Value Readiness(const Napi::CallbackInfo& info) {
    return Napi::Number::New(info.Env(), static_cast<int>(Endpoint(info).readiness()));
  }

  static Napi::Value StartError(const Napi::CallbackInfo& info) {
    const auto& endpoint = Endpoint(info);
    if (endpoint.readiness() != decltype(endpoint.readiness())::kFailed) return info.Env().Null();
    return FailureValue(info.Env(), endpoint.error_code(), endpoint.error_message());
  }

  static Napi::Value PeerStatus(const Napi::CallbackInfo& info) { return StatusValue(info.Env(), Link(info)); }

  static Napi::Value PeerError(const Napi::CallbackInfo& info) { return LinkFailureValue(info.Env(), Link(info)); }

  static Napi::Value Disconnect(const Napi::CallbackInfo& info) {
    Endpoint(info).Disconnect(IdArgument(info, 1, "peer"));
    return info.Env().Undefined();
  }

  static Napi::Value Poll(const Napi::CallbackInfo& info) { return StatusValue(info.Env(), Transfer(info)); }

  static Napi::Value Bytes(const Napi::CallbackInfo& info) {
    return Napi::Number::New(info.Env(), static_cast<double>(Transfer(info).bytes_done()));
  }

  static Napi::Value Error(const Napi::CallbackInfo& info) {
    const auto& transfer = Transfer(info);
    const auto status = transfer.status();
    using Status = std::remove_const_t<decltype(status)>;
    if (status == Status::kActive || status == Status::kDone) return info.Env().Null();
    return FailureValue(info.Env(), transfer.error_code(), transfer.error_message());
  }

  static Napi::Value Cancel(const Napi::CallbackInfo& info) {
    Endpoint(info).Cancel(IdArgument(info, 1, "transfer"));
    return info.Env().Undefined();
  }

  static Napi::Value Take(const Napi::CallbackInfo& info) {
    const std::vector<uint64_t> ids = Endpoint(info).TakeChanged();
    Napi::Float64Array taken = Napi::Float64Array::New(info.Env(), ids.size());
    for (size_t i = 0; i < ids.size(); ++i) taken[i] = static_cast<double>(ids[i]);
    return taken;
  }

  static Napi::Value Forget(const Napi::CallbackInfo& info) {
    Endpoint(info).Forget(IdArgument(info, 1, "transfer"));
    return info.Env().Undefined();
  }

  static Napi::Value Close(const Napi::CallbackInfo& info) {
    Endpoint(info).BeginClose();
    return info.Env().Undefined();
  }

  // Whether all threads of a closing transport have left; joins them then, which does not wait.
  static Napi::Value Quiet(const Napi::CallbackInfo& info) {
    auto& endpoint = Endpoint(info);
    const bool quiet = endpoint.quiet();
    if (quiet) endpoint.Close();
    return Napi::Boolean::New(info.Env(), quiet);
  }
};

}  // namespace state_handoff
