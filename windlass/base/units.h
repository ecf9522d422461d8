// Quantities that do not mix silently: bytes, seconds, flops and the rates between them.
//
// GiB is 2^30, GB is 10^9. Bytes are exact integers; the others are doubles.
#pragma once

#include <compare>
#include <cstdint>
#include <string>
#include <string_view>

namespace windlass {

// A number with a unit. Sums and differences need the same unit; scaling needs a plain number; the
// ratio of two equal units is a plain number.
template <typename Tag, typename Rep>
struct Quantity {
  Rep value{};

  constexpr Quantity() = default;
  constexpr explicit Quantity(Rep v) : value(v) {}

  constexpr auto operator<=>(const Quantity&) const = default;

  constexpr Quantity& operator+=(Quantity other) {
    value += other.value;
    return *this;
  }
  constexpr Quantity& operator-=(Quantity other) {
    value -= other.value;
    return *this;
  }
  constexpr Quantity& operator*=(Rep factor) {
    value *= factor;
    return *this;
  }

  friend constexpr Quantity operator+(Quantity a, Quantity b) {
    return Quantity(a.value + b.value);
  }
  friend constexpr Quantity operator-(Quantity a, Quantity b) {
    return Quantity(a.value - b.value);
  }
  friend constexpr Quantity operator*(Quantity a, Rep f) { return Quantity(a.value * f); }
  friend constexpr Quantity operator*(Rep f, Quantity a) { return Quantity(a.value * f); }
  friend constexpr Quantity operator/(Quantity a, Rep f) { return Quantity(a.value / f); }
  friend constexpr double operator/(Quantity a, Quantity b) {
    return static_cast<double>(a.value) / static_cast<double>(b.value);
  }
};

using Bytes = Quantity<struct BytesTag, int64_t>;
using Seconds = Quantity<struct SecondsTag, double>;
using Flops = Quantity<struct FlopsTag, double>;  // floating-point operations, not a rate
using BytesPerSecond = Quantity<struct BytesPerSecondTag, double>;
using FlopsPerSecond = Quantity<struct FlopsPerSecondTag, double>;

constexpr Seconds operator/(Bytes b, BytesPerSecond r) {
  return Seconds(static_cast<double>(b.value) / r.value);
}
constexpr Seconds operator/(Flops f, FlopsPerSecond r) { return Seconds(f.value / r.value); }

constexpr Bytes kKiB{int64_t{1} << 10};
constexpr Bytes kMiB{int64_t{1} << 20};
constexpr Bytes kGiB{int64_t{1} << 30};

// "512 B", "1.50 KiB", "23.4 GiB": three significant digits, binary units.
std::string format_bytes(Bytes bytes);

// "124.4 M", "1.56 B" (billions), plain below a thousand.
std::string format_count(double count);

// "8.18 GFLOP", "1.20 PFLOP".
std::string format_flops(Flops flops);

// "124,439,808".
std::string format_integer(int64_t value);

// Reads "11GiB", "512 MiB", "9e9B", "80GB", "1.5g" (binary when the unit is a single letter), or a
// plain number of bytes. Throws Error{Input} on anything else, on negatives and on overflow.
Bytes parse_bytes(std::string_view text);

// Reads "484GB/s", "200Gb/s" (bits), "12.3 GiB/s", or a plain number of bytes per second, from
// 100 KB/s on.
BytesPerSecond parse_bandwidth(std::string_view text);

// Reads "11.3TFLOPS", "312 TFLOP/s", or a plain number, from 1 MFLOPS on.
FlopsPerSecond parse_flops_rate(std::string_view text);

// Reads "5us", "1.5 ms", "2s", or a plain number of seconds, from 0 to an hour.
Seconds parse_seconds(std::string_view text);

// "484 GB/s": decimal units, three significant digits.
std::string format_bandwidth(BytesPerSecond rate);
// "11.3 TFLOPS".
std::string format_flops_rate(FlopsPerSecond rate);
// "5.00 us", "1.42 s", "3 min 16 s".
std::string format_seconds(Seconds seconds);

}  // namespace windlass
