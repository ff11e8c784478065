// A library that is bound when the program runs: found by path or by the loader's name, never by the linker.
//
// Opened for good: a library that has started threads cannot be closed under them, so nothing here ever does. Refuses
// one that lacks a symbol which is needed, and says which.
#pragma once

#include <string>
#include <vector>

namespace state_handoff {

class DynamicLibrary {
 public:
  // Opens the first of `candidates` that loads; each is an absolute path or a name that the loader knows. Throws
  // TRANSPORT_UNAVAILABLE with the loader's own words for each that does not.
  static DynamicLibrary Open(const std::string& what, const std::vector<std::string>& candidates);

  // Where it was loaded from, as far as the loader tells; else the candidate that was opened.
  const std::string& path() const { return path_; }

  // Null when the library has no such symbol.
  void* Find(const char* symbol) const;
  // Throws TRANSPORT_UNAVAILABLE when the library has no such symbol.
  void* Require(const char* symbol) const;

  template <typename Function>
  void Bind(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(Require(symbol));
  }

  template <typename Function>
  void BindIfPresent(Function*& function, const char* symbol) const {
    function = reinterpret_cast<Function*>(Find(symbol));
  }

 private:
  DynamicLibrary(std::string what, std::string path, void* handle);

  std::string what_;
  std::string path_;
  void* handle_;
};

}  // namespace state_handoff
