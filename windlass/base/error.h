// The one exception type of windlass, and the check for its own bugs.
#pragma once

#include <exception>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/core.h>

namespace windlass {

// Why something could not be done. The command line turns kinds into exit codes.
enum class ErrorKind {
  Input,        // a file, flag or value given by the user is wrong
  Unsupported,  // valid, but windlass cannot do it
  OutOfMemory,  // a memory limit would be exceeded
  Runtime,      // a run failed: disk full, peer lost, NaN
  Internal,     // a bug in windlass
};

// A message begins with the thing it is about (`model.onnx: node "Gemm_3": ...`) and says what was
// found, what was expected and what to do.
class Error : public std::exception {
 public:
  Error(ErrorKind kind, std::string message) : kind_(kind), message_(std::move(message)) {}

  ErrorKind kind() const { return kind_; }
  const std::string& message() const { return message_; }
  const char* what() const noexcept override { return message_.c_str(); }

  // The same error with `where` and a colon put before the message.
  Error within(std::string_view where) const {
    return Error(kind_, fmt::format("{}: {}", where, message_));
  }

 private:
  ErrorKind kind_;
  std::string message_;
};

template <typename... Args>
[[noreturn]] void fail(ErrorKind kind, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(kind, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_input(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::Input, fmt::format(format, std::forward<Args>(args)...));
}

template <typename... Args>
[[noreturn]] void fail_unsupported(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(ErrorKind::Unsupported, fmt::format(format, std::forward<Args>(args)...));
}

// Throws Error{Internal} unless `condition` holds. For bugs only: nothing a user types may reach
// it.
inline void ensure(bool condition, std::string_view what) {
  if (!condition) throw Error(ErrorKind::Internal, fmt::format("internal error: {}", what));
}

}  // namespace windlass
