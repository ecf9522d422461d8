#include "windlass/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <span>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// `value` scaled to the largest suffix that leaves at least 1, with three significant digits.
std::string scaled(double value, double base, std::span<const std::string_view> suffixes,
                   std::string_view plain) {
  size_t step = 0;
  double magnitude = std::abs(value);
  // 999.5 would print as "1000": move on to the next suffix before that.
  while (step < suffixes.size() && magnitude >= (base == 1000.0 ? 999.5 : base)) {
    magnitude /= base;
    value /= base;
    ++step;
  }
  if (step == 0) return fmt::format("{:.0f}{}{}", value, plain.empty() ? "" : " ", plain);
  const int decimals = magnitude < 9.995 ? 2 : magnitude < 99.95 ? 1 : 0;
  return fmt::format("{:.{}f} {}", value, decimals, suffixes[step - 1]);
}

}  // namespace

std::string format_bytes(Bytes bytes) {
  static constexpr std::array<std::string_view, 6> kSuffixes = {"KiB", "MiB", "GiB",
                                                                "TiB", "PiB", "EiB"};
  return scaled(static_cast<double>(bytes.value), 1024.0, kSuffixes, "B");
}

std::string format_count(double count) {
  static constexpr std::array<std::string_view, 4> kSuffixes = {"K", "M", "B", "T"};
  return scaled(count, 1000.0, kSuffixes, "");
}

std::string format_flops(Flops flops) {
  static constexpr std::array<std::string_view, 6> kSuffixes = {"KFLOP", "MFLOP", "GFLOP",
                                                                "TFLOP", "PFLOP", "EFLOP"};
  return scaled(flops.value, 1000.0, kSuffixes, "FLOP");
}

std::string format_integer(int64_t value) {
  std::string digits = std::to_string(value);
  const size_t first = value < 0 ? 1 : 0;
  for (size_t position = digits.size(); position > first + 3;) {
    position -= 3;
    digits.insert(position, 1, ',');
  }
  return digits;
}

Bytes parse_bytes(std::string_view text) {
  const auto bad = [&]() {
    fail_input("\"{}\" is not a size; write it like 11GiB, 512MiB, 80GB or 9e9B", text);
  };
  std::string_view rest = text;
  const auto trim = [&] {
    while (!rest.empty() && rest.front() == ' ') rest.remove_prefix(1);
    while (!rest.empty() && rest.back() == ' ') rest.remove_suffix(1);
  };
  trim();
  double number = 0;
  const auto [end, failed] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (failed != std::errc() || !std::isfinite(number) || number < 0) bad();
  rest.remove_prefix(static_cast<size_t>(end - rest.data()));
  trim();

  std::string unit;
  for (char c : rest) unit += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  static constexpr std::string_view kLetters = "kmgtp";
  double factor = 1;
  if (!unit.empty() && unit != "b") {
    const size_t power = kLetters.find(unit[0]);
    if (power == std::string_view::npos) bad();
    const std::string_view tail = std::string_view(unit).substr(1);
    if (tail != "" && tail != "b" && tail != "ib") bad();
    factor = std::pow(tail == "b" ? 1000.0 : 1024.0, static_cast<double>(power + 1));
  }
  const double bytes = number * factor;
  if (bytes >= 9.2e18) bad();
  return Bytes(static_cast<int64_t>(std::llround(bytes)));
}

}  // namespace windlass
