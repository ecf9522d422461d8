// What flags that are numbers accept.
#pragma once

#include <CLI/CLI.hpp>

namespace windlass {

// A number from `low` to `high`. CLI11's own ranges take "nan" for one.
CLI::Validator number_in(double low, double high);

// A number above 0, and one that is not below: CLI11's own print the range of their type.
CLI::Validator positive_number();
CLI::Validator nonnegative_number();

}  // namespace windlass
