// How the memory objects read their arguments. What a typed array holds is copied before it is looked at, since its
// buffer may be shared with another thread. Nothing here runs JavaScript code of the caller.
#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "napi_support.h"

namespace state_handoff {

// `got` part of an error message, as describeValue of lib/errors.ts words it.
std::string DescribeArgument(const Napi::Value& value);

[[noreturn]] void RefuseArgument(const std::string& path, const std::string& expected, const Napi::Value& got);

// An integer in [least, most], both within the safe range.
inline int64_t WholeNumber(const Napi::Value& value, const char* path, int64_t least, int64_t most) {
  double number = 0;
  if (napi_get_value_double(value.Env(), value, &number) == napi_ok && number == std::floor(number) &&
      number >= static_cast<double>(least) && number <= static_cast<double>(most)) {
    return static_cast<int64_t>(number);
  }
  RefuseArgument(path, "an integer in [" + std::to_string(least) + ", " + std::to_string(most) + "]", value);
}

constexpr int64_t kSafeInteger = 9007199254740991;

template <typename T>
struct ElementType;
template <>
struct ElementType<int32_t> {
  static constexpr napi_typedarray_type kType = napi_int32_array;
  static constexpr const char* kName = "an Int32Array";
};
template <>
struct ElementType<int64_t> {
  static constexpr napi_typedarray_type kType = napi_bigint64_array;
  static constexpr const char* kName = "a BigInt64Array";
};
template <>
struct ElementType<uint64_t> {
  static constexpr napi_typedarray_type kType = napi_biguint64_array;
  static constexpr const char* kName = "a BigUint64Array";
};
template <>
struct ElementType<double> {
  static constexpr napi_typedarray_type kType = napi_float64_array;
  static constexpr const char* kName = "a Float64Array";
};
template <>
struct ElementType<uint8_t> {
  static constexpr napi_typedarray_type kType = napi_uint8_array;
  static constexpr const char* kName = "a Uint8Array";
};

template <typename T>
struct Borrowed {
  T* data;
  size_t count;
};

// Throws when the buffer of an empty-looking array was detached: it was full when the caller made it.
void RefuseDetached(const Napi::Value& value, napi_value buffer, const char* path);

// The elements in place, until the call returns.
template <typename T>
Borrowed<T> BorrowElements(const Napi::Value& value, const char* path) {
  napi_typedarray_type type;
  size_t count = 0;
  void* data = nullptr;
  napi_value buffer;
  if (napi_get_typedarray_info(value.Env(), value, &type, &count, &data, &buffer, nullptr) != napi_ok ||
      type != ElementType<T>::kType) {
    RefuseArgument(path, ElementType<T>::kName, value);
  }
  if (count == 0) RefuseDetached(value, buffer, path);
  return {static_cast<T*>(data), count};
}

// A copy of the elements, in a buffer that is used again.
template <typename T>
void CopyElements(const Napi::Value& value, const char* path, std::vector<T>& to) {
  const Borrowed<T> elements = BorrowElements<T>(value, path);
  to.assign(elements.data, elements.data + elements.count);
}

// Elements to be written: exactly `count`, or any number when it is negative.
template <typename T>
Borrowed<T> OutputElements(const Napi::Value& value, const char* path, int64_t count) {
  const Borrowed<T> elements = BorrowElements<T>(value, path);
  if (count >= 0 && elements.count != static_cast<size_t>(count)) {
    RefuseArgument(path, std::string(ElementType<T>::kName) + " of " + std::to_string(count), value);
  }
  return elements;
}

}  // namespace state_handoff
