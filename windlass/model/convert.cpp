#include "windlass/model/convert.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "windlass/base/error.h"

namespace windlass {
namespace {

static_assert(std::endian::native == std::endian::little);

// A float of 16 bits: `fraction` bits after the point, smallest normal exponent `least`, bits of
// infinity `infinity`.
uint16_t encode(double value, int fraction, int least, uint16_t infinity) {
  const auto sign = static_cast<uint16_t>(std::signbit(value) ? 0x8000 : 0);
  if (std::isnan(value))
    return static_cast<uint16_t>(sign | infinity | uint16_t{1} << (fraction - 1));
  if (value == 0) return sign;
  if (std::isinf(value)) return static_cast<uint16_t>(sign | infinity);
  const int exponent = std::max(std::ilogb(value), least);
  // In units of the last place. Scaling by a power of two is exact; the default mode rounds ties to
  // even. A carry out of the fraction runs into the exponent, where it belongs.
  const double units = std::nearbyint(std::ldexp(std::abs(value), fraction - exponent));
  const int64_t bits =
      (int64_t{exponent} - least) * (int64_t{1} << fraction) + static_cast<int64_t>(units);
  return static_cast<uint16_t>(sign | std::min<int64_t>(bits, infinity));
}

template <typename T>
T load(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

template <typename T>
void store(std::byte* at, T value) {
  std::memcpy(at, &value, sizeof(T));
}

double decode(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::F64: return load<double>(at);
    case DType::F32: return static_cast<double>(load<float>(at));
    case DType::BF16: return from_bf16(load<uint16_t>(at));
    default: return from_fp16(load<uint16_t>(at));
  }
}

void encode(std::byte* at, DType dtype, double value) {
  switch (dtype) {
    case DType::F64: return store(at, value);
    case DType::F32: return store(at, static_cast<float>(value));
    case DType::BF16: return store(at, to_bf16(value));
    default: return store(at, to_fp16(value));
  }
}

int64_t load_whole(const std::byte* at, DType dtype) {
  switch (dtype) {
    case DType::I64: return load<int64_t>(at);
    case DType::I32: return load<int32_t>(at);
    case DType::I16: return load<int16_t>(at);
    case DType::I8: return load<int8_t>(at);
    default: return load<uint8_t>(at);
  }
}

// As to_bf16, without leaving integers: most checkpoints and most runs differ by this step.
uint16_t float_to_bf16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if (std::isnan(value)) return static_cast<uint16_t>(bits >> 16 | 0x40);
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace

uint16_t to_fp16(double value) { return encode(value, 10, -14, 0x7c00); }
uint16_t to_bf16(double value) { return encode(value, 7, -126, 0x7f80); }

double from_fp16(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  double value = 0;
  if (exponent == 31)
    value = fraction != 0 ? std::nan("") : HUGE_VAL;
  else if (exponent == 0)
    value = std::ldexp(fraction, -24);
  else
    value = std::ldexp(fraction + 1024, exponent - 25);
  return std::copysign(value, (bits & 0x8000) != 0 ? -1.0 : 1.0);
}

double from_bf16(uint16_t bits) {
  return static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(bits) << 16));
}

void convert_values(std::span<const std::byte> from, DType from_type, std::span<std::byte> to,
                    DType to_type) {
  if (from_type == to_type) {
    ensure(from.size() == to.size(), "values are copied to a place of another size");
    std::copy(from.begin(), from.end(), to.begin());
    return;
  }
  const bool widens = to_type == DType::I64 && !is_float(from_type);
  if (!widens && (!is_float(from_type) || !is_float(to_type)))
    fail_unsupported("values of type {} cannot be turned into {}", dtype_name(from_type),
                     dtype_name(to_type));
  const auto width = static_cast<size_t>(element_bytes(from_type));
  const auto to_width = static_cast<size_t>(element_bytes(to_type));
  const size_t count = from.size() / width;
  ensure(count * width == from.size() && count * to_width == to.size(),
         "values are converted to a place of another size");
  if (widens) {
    for (size_t i = 0; i < count; ++i)
      store(&to[to_width * i], load_whole(&from[width * i], from_type));
  } else if (from_type == DType::F32 && to_type == DType::BF16) {
    for (size_t i = 0; i < count; ++i) store(&to[2 * i], float_to_bf16(load<float>(&from[4 * i])));
  } else if (from_type == DType::BF16 && to_type == DType::F32) {
    for (size_t i = 0; i < count; ++i)
      store(&to[4 * i], static_cast<uint32_t>(load<uint16_t>(&from[2 * i])) << 16);
  } else {
    for (size_t i = 0; i < count; ++i)
      encode(&to[i * to_width], to_type, decode(&from[i * width], from_type));
  }
}

void store_values(std::span<const double> values, DType as, std::span<std::byte> out) {
  if (is_float(as)) return convert_values(std::as_bytes(values), DType::F64, out, as);
  const auto each = static_cast<size_t>(element_bytes(as));
  for (size_t i = 0; i < values.size(); ++i) {
    // Little-endian: the low bytes of a wide integer are the narrow one.
    const auto whole = static_cast<int64_t>(values[i]);
    std::memcpy(out.data() + i * each, &whole, each);
  }
}

}  // namespace windlass
