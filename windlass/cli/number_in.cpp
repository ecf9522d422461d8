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

CLI::Validator positive_number() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool right = CLI::detail::lexical_cast(text, value) && value > 0;
        return right ? std::string() : fmt::format("\"{}\" is no number above 0", text);
      },
      "POSITIVE");
}

CLI::Validator nonnegative_number() {
  return CLI::Validator(
      [](std::string& text) {
        double value = 0;
        const bool right = CLI::detail::lexical_cast(text, value) && value >= 0;
        return right ? std::string() : fmt::format("\"{}\" is no number from 0 on", text);
      },
      "NONNEGATIVE");
}

}  // namespace windlass
