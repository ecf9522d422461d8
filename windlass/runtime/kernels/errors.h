// Errors of libtorch and of the libraries it calls, as errors of windlass.
#pragma once

#include <string_view>

namespace windlass {

// For a catch block: throws what is being handled again, as an Error whose message begins with
// `where`. What comes from libtorch keeps the first line of its message and loses the stack of C++
// functions: Error{OutOfMemory} if memory was missing, Error{Runtime} otherwise.
[[noreturn]] void rethrow_within(std::string_view where);

}  // namespace windlass
