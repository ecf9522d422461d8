// The version of windlass.
#pragma once

#include <string_view>

namespace windlass {

inline constexpr std::string_view kVersion = "0.1.0";  // of a literal: ends with a zero

}  // namespace windlass
