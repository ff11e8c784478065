// Errors about arguments: what they say and how they are found.
#include "memory_arguments.h"

#include "../core/number_text.h"

namespace state_handoff {

namespace {

const char* TypedArrayName(napi_typedarray_type type) {
  switch (type) {
    case napi_int8_array:
      return "an Int8Array";
    case napi_uint8_array:
      return "a Uint8Array";
    case napi_uint8_clamped_array:
      return "a Uint8ClampedArray";
    case napi_int16_array:
      return "an Int16Array";
    case napi_uint16_array:
      return "a Uint16Array";
    case napi_int32_array:
      return "an Int32Array";
    case napi_uint32_array:
      return "a Uint32Array";
    case napi_float32_array:
      return "a Float32Array";
    case napi_float64_array:
      return "a Float64Array";
    case napi_bigint64_array:
      return "a BigInt64Array";
    case napi_biguint64_array:
      return "a BigUint64Array";
    default:
      return "a typed array";
  }
}

}  // namespace

std::string DescribeArgument(const Napi::Value& value) {
  switch (value.Type()) {
    case napi_undefined:
      return "undefined";
    case napi_null:
      return "null";
    case napi_boolean:
      return value.As<Napi::Boolean>().Value() ? "true" : "false";
    case napi_number:
      return NumberText(value.As<Napi::Number>().DoubleValue());
    case napi_string:
      return "a string";
    case napi_symbol:
      return "a symbol";
    case napi_bigint:
      return "a bigint";
    case napi_function:
      return "a function";
    case napi_external:
      return "a native handle";
    default:
      break;
  }
  if (value.IsTypedArray()) {
    const Napi::TypedArray array = value.As<Napi::TypedArray>();
    return std::string(TypedArrayName(array.TypedArrayType())) + " of " + std::to_string(array.ElementLength());
  }
  if (value.IsArray()) return "an array of " + std::to_string(value.As<Napi::Array>().Length());
  return "an object";
}

void RefuseArgument(const std::string& path, const std::string& expected, const Napi::Value& got) {
  throw NativeError(ErrorCode::kARGUMENT_INVALID, path + ": expected " + expected + ", got " + DescribeArgument(got));
}

void RefuseDetached(const Napi::Value& value, napi_value buffer, const char* path) {
  bool detached = false;
  // A shared buffer cannot be detached; asking about one is refused, which leaves the answer at false.
  napi_is_detached_arraybuffer(value.Env(), buffer, &detached);
  if (detached) {
    throw NativeError(ErrorCode::kARGUMENT_INVALID,
                      std::string(path) + ": expected an array in memory, got one whose buffer was detached");
  }
}

}  // namespace state_handoff
