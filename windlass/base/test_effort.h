// How much a test tries: all of it takes longer than anybody waits for after each change.
#pragma once

#include <algorithm>
#include <concepts>
#include <cstdlib>

namespace windlass {

// Whether this is a sanitizer's tree, where a test takes five to ten times as long
// (cmake/Tests.cmake).
#ifdef WINDLASS_SANITIZED
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

// Whether everything is tried, however long it takes: `make test-slow` sets WINDLASS_THOROUGH.
inline bool thorough() { return std::getenv("WINDLASS_THOROUGH") != nullptr; }

// Whether a test that takes long tries a sample.
inline bool hurried() { return !thorough(); }

// How many of `all` random cases are tried where it is hurried: a third of them, under a sanitizer
// a fourteenth. What is expected of their number shrinks by the same.
template <std::integral Count>
Count sampled(Count all) {
  return hurried() ? std::max<Count>(1, all / (kSanitized ? 14 : 3)) : all;
}

}  // namespace windlass
