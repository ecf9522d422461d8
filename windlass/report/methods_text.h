// Which way to save memory pays: for people, for programs, and drawn.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/method_advice.h"

namespace windlass {

// Verdicts, throughput at each batch, the models behind them and PAPAYA's beside; with a plot.
std::string methods_text(const MethodsReport& report);
nlohmann::ordered_json methods_json(const MethodsReport& report);

// Throughput over batch, batches logarithmic: in characters, and as an SVG file. Points that do
// not fit are left out.
std::string methods_plot(const MethodsReport& report, size_t width = 72, size_t height = 16);
std::string methods_svg(const MethodsReport& report);

}  // namespace windlass
