#include "windlass/base/units.h"

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <optional>
#include <span>
#include <utility>

#include <fmt/format.h>

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

namespace {

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

struct NumberAndUnit {
  double number;
  std::string_view unit;
};

// Splits "12.3 GB/s" into number and unit; `what` and `example` make the message.
NumberAndUnit split_quantity(std::string_view text, std::string_view what,
                             std::string_view example) {
  const std::string_view rest = trimmed(text);
  double number = 0;
  const auto [end, failed] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (failed != std::errc() || !std::isfinite(number) || number < 0)
    fail_input("\"{}\" is not a {}; write it like {}", text, what, example);
  return {number, trimmed(rest.substr(static_cast<size_t>(end - rest.data())))};
}

// 1000^n for "k", "m", "g", "t", "p" (1024^n if `binary`), 1 for "", nothing for other letters.
std::optional<double> prefix_factor(std::string_view prefix, bool binary) {
  if (prefix.empty()) return 1.0;
  static constexpr std::string_view kLetters = "kmgtp";
  const size_t power =
      prefix.size() == 1
          ? kLetters.find(static_cast<char>(std::tolower(static_cast<unsigned char>(prefix[0]))))
          : std::string_view::npos;
  if (power == std::string_view::npos) return std::nullopt;
  return std::pow(binary ? 1024.0 : 1000.0, static_cast<double>(power + 1));
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  constexpr std::string_view kExample = "11GiB, 512MiB, 80GB or 9e9B";
  const auto [number, unit] = split_quantity(text, "size", kExample);
  std::string_view prefix = unit;
  bool binary = true;  // a single letter, as in "1.5g"
  if (!prefix.empty() && (prefix.back() == 'B' || prefix.back() == 'b')) {
    prefix.remove_suffix(1);
    binary = !prefix.empty() && prefix.back() == 'i';
    if (binary) prefix.remove_suffix(1);
  }
  const auto factor = prefix_factor(prefix, binary);
  const bool plausible =
      factor && number * *factor < 9.2e18 && !(binary && prefix.empty() && !unit.empty());
  if (!plausible) fail_input("\"{}\" is not a size; write it like {}", text, kExample);
  return Bytes(static_cast<int64_t>(std::llround(number * *factor)));
}

namespace {

// Beyond these no machine is meant, and the time of a step could not be counted in nanoseconds.
constexpr double kLeastBandwidth = 1e5, kLeastFlopsRate = 1e6, kMostRate = 1e21;
constexpr double kMostSeconds = 3600;

template <class Format>
void check_range(std::string_view text, double value, double least, double most, Format&& format) {
  if (!(value >= least && value <= most))
    fail_input("\"{}\" is out of range; expected {} to {}", text, format(least), format(most));
}

}  // namespace

BytesPerSecond parse_bandwidth(std::string_view text) {
  constexpr std::string_view kExample = "484GB/s or 200Gb/s";
  auto [number, unit] = split_quantity(text, "bandwidth", kExample);
  double factor = 1;
  bool known = unit.empty();
  if (unit.ends_with("/s")) {
    unit.remove_suffix(2);
    const bool bits = unit.ends_with("b");
    if (bits || unit.ends_with("B")) {
      unit.remove_suffix(1);
      const bool binary = unit.ends_with("i");
      if (binary) unit.remove_suffix(1);
      const auto prefix = prefix_factor(unit, binary);
      known = prefix.has_value();
      factor = prefix.value_or(1) / (bits ? 8 : 1);
    }
  }
  if (!known || !(number > 0) || !std::isfinite(number * factor))
    fail_input("\"{}\" is not a bandwidth; write it like {}", text, kExample);
  check_range(text, number * factor, kLeastBandwidth, kMostRate,
              [](double value) { return format_bandwidth(BytesPerSecond(value)); });
  return BytesPerSecond(number * factor);
}

FlopsPerSecond parse_flops_rate(std::string_view text) {
  constexpr std::string_view kExample = "11.3TFLOPS";
  auto [number, unit] = split_quantity(text, "rate of computation", kExample);
  double factor = 1;
  bool known = unit.empty();
  for (std::string_view ending : {"FLOPS", "FLOP/s"}) {
    if (!unit.ends_with(ending)) continue;
    const auto prefix = prefix_factor(unit.substr(0, unit.size() - ending.size()), false);
    known = prefix.has_value();
    factor = prefix.value_or(1);
  }
  if (!known || !(number > 0) || !std::isfinite(number * factor))
    fail_input("\"{}\" is not a rate of computation; write it like {}", text, kExample);
  check_range(text, number * factor, kLeastFlopsRate, kMostRate,
              [](double value) { return format_flops_rate(FlopsPerSecond(value)); });
  return FlopsPerSecond(number * factor);
}

Seconds parse_seconds(std::string_view text) {
  constexpr std::string_view kExample = "5us, 1.5ms or 2s";
  const auto [number, unit] = split_quantity(text, "time", kExample);
  static constexpr std::pair<std::string_view, double> kUnits[] = {
      {"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"ns", 1e-9}, {"min", 60}, {"h", 3600}};
  for (const auto& [name, factor] : kUnits)
    if (name == unit) {
      check_range(text, number * factor, 0, kMostSeconds,
                  [](double value) { return format_seconds(Seconds(value)); });
      return Seconds(number * factor);
    }
  fail_input("\"{}\" is not a time; write it like {}", text, kExample);
}

std::string format_bandwidth(BytesPerSecond rate) {
  static constexpr std::array<std::string_view, 5> kSuffixes = {"KB/s", "MB/s", "GB/s", "TB/s",
                                                                "PB/s"};
  return scaled(rate.value, 1000.0, kSuffixes, "B/s");
}

std::string format_flops_rate(FlopsPerSecond rate) {
  static constexpr std::array<std::string_view, 6> kSuffixes = {"KFLOPS", "MFLOPS", "GFLOPS",
                                                                "TFLOPS", "PFLOPS", "EFLOPS"};
  return scaled(rate.value, 1000.0, kSuffixes, "FLOPS");
}

std::string format_seconds(Seconds seconds) {
  const double value = seconds.value;
  if (value >= 60) {
    const auto total = static_cast<int64_t>(std::llround(value));
    return total >= 3600 ? fmt::format("{} h {} min", total / 3600, total % 3600 / 60)
                         : fmt::format("{} min {} s", total / 60, total % 60);
  }
  static constexpr std::pair<double, std::string_view> kUnits[] = {
      {1, "s"}, {1e-3, "ms"}, {1e-6, "us"}, {1e-9, "ns"}};
  for (const auto& [size, name] : kUnits) {
    const double scaled_value = value / size;
    if (scaled_value < 0.9995 && size > 1e-9) continue;
    const int decimals = scaled_value < 9.995 ? 2 : scaled_value < 99.95 ? 1 : 0;
    return fmt::format("{:.{}f} {}", scaled_value, decimals, name);
  }
  return "0 s";
}

}  // namespace windlass
