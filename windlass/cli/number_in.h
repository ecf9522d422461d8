// What flags that are numbers accept.
#pragma once

#include <CLI/CLI.hpp>

namespace windlass {

// A number from `low` to `high`. CLI11's own ranges take "nan" for one.
CLI::Validator number_in(double low, double high);

}  // namespace windlass
