#include "windlass/cli/number_in.h"

#include <fmt/format.h>

namespace windlass {

CLI::Validator number_in(double low, double high) {
  const std::string range = fmt::format("from {:g} to {:g}", low, high);
  return CLI::Validator(
      [low, high, range](std::string& text) {
        double value = 0;
        const bool inside = CLI::detail::lexical_cast(text, value) && value >= low && value <= high;
        return inside ? std::string() : fmt::format("\"{}\" is no number {}", text, range);
      },
      range);
}

}  // namespace windlass
