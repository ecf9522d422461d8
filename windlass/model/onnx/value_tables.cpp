#include "windlass/model/onnx/value_tables.h"

#include <algorithm>
#include <cmath>
#include <set>

namespace windlass {
namespace {

// Axes of one element say nothing.
Shape squeezed(const Shape& shape) {
  Shape result;
  for (int64_t size : shape)
    if (size != 1) result.push_back(size);
  return result;
}

enum class Line : uint8_t { Other, Still, Wave };

// What the values v[0], v[stride], ... are, `count` in all.
Line classify(const double* v, int64_t stride, int64_t count, double tolerance) {
  constexpr double kSlowest = 1.99;  // 2 cos of a tenth of a radian a place: a wave one can see
  double largest = 0, products = 0, squares = 0;
  const auto at = [&](int64_t i) { return v[i * stride]; };
  for (int64_t i = 0; i < count; ++i) largest = std::max(largest, std::abs(at(i)));
  if (largest == 0) return Line::Still;
  for (int64_t i = 1; i + 1 < count; ++i) {
    products += (at(i - 1) + at(i + 1)) * at(i);
    squares += at(i) * at(i);
  }
  if (squares == 0) return Line::Other;
  const double k = products / squares;
  if (std::abs(k) > 2 + tolerance) return Line::Other;
  for (int64_t i = 1; i + 1 < count; ++i)
    if (!(std::abs(at(i - 1) + at(i + 1) - k * at(i)) <= tolerance * largest)) return Line::Other;
  return k < kSlowest ? Line::Wave : Line::Still;
}

}  // namespace

bool has_infinities(const std::vector<double>& values) {
  return std::any_of(values.begin(), values.end(), [](double v) { return !std::isfinite(v); });
}

bool is_wave_table(const Shape& full, const std::vector<double>& values, DType stored) {
  // Fewer equations than this could hold by accident.
  constexpr int64_t kShortest = 5, kEquations = 16;
  const double tolerance = element_bytes(stored) < 4 ? 3e-2 : 2e-3;
  const Shape shape = squeezed(full);
  const auto count = static_cast<int64_t>(values.size());
  if (shape.size() < 2 || count == 0) return false;
  int64_t inner = count;
  for (int64_t size : shape) {
    const int64_t outer_stride = inner;
    inner /= size;
    const int64_t lines = count / size;
    if (size < kShortest || (size - 3) * lines < kEquations) continue;
    bool all = true, waves = false;
    for (int64_t line = 0; all && line < lines; ++line) {
      const int64_t begin = line / inner * outer_stride + line % inner;
      const Line kind = classify(values.data() + begin, inner, size, tolerance);
      all = kind != Line::Other;
      waves = waves || kind == Line::Wave;
    }
    if (all && waves) return true;
  }
  return false;
}

bool is_zeros_and_ones(const std::vector<double>& values) {
  const auto ones = std::count(values.begin(), values.end(), 1.0);
  const auto zeros = std::count(values.begin(), values.end(), 0.0);
  return ones > 0 && zeros > 0 && ones + zeros == static_cast<std::ptrdiff_t>(values.size());
}

bool is_zero_one_mask(const Shape& shape, const std::vector<double>& values) {
  return squeezed(shape).size() >= 2 && is_zeros_and_ones(values);
}

bool is_distance_table(const Shape& shape, const std::vector<double>& values) {
  constexpr int64_t kSmallest = 4;
  constexpr double kTolerance = 1e-4;
  if (shape.size() < 2 || shape.back() != shape[shape.size() - 2] || shape.back() < kSmallest)
    return false;
  const int64_t n = shape.back();
  const int64_t squares = static_cast<int64_t>(values.size()) / (n * n);
  for (int64_t s = 0; s < squares; ++s) {
    const double* square = values.data() + s * n * n;
    const double step = square[1] - square[0];
    if (step == 0) return false;
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        if (!(std::abs(square[i * n + j] - step * static_cast<double>(j - i)) <=
              kTolerance * std::abs(step) * static_cast<double>(n)))
          return false;
  }
  return squares > 0;
}

bool is_grid(const Shape& full, const std::vector<double>& values) {
  constexpr int64_t kShortest = 3;
  constexpr double kTolerance = 1e-5;
  const Shape shape = squeezed(full);
  const auto count = static_cast<int64_t>(values.size());
  if (shape.size() < 2 || count == 0) return false;
  double largest = 0;
  for (double v : values) largest = std::max(largest, std::abs(v));
  int64_t inner = count;
  int varying = 0;
  for (int64_t size : shape) {
    const int64_t outer_stride = inner;
    inner /= size;
    if (size < kShortest) continue;
    bool rises = false;
    for (int64_t line = 0; line < count / size; ++line) {
      const double* v = values.data() + line / inner * outer_stride + line % inner;
      const double step = (v[(size - 1) * inner] - v[0]) / static_cast<double>(size - 1);
      for (int64_t i = 0; i < size; ++i)
        if (!(std::abs(v[i * inner] - v[0] - step * static_cast<double>(i)) <=
              kTolerance * largest))
          return false;
      rises = rises || std::abs(step) > kTolerance * largest;
    }
    if (rises) ++varying;
  }
  return varying >= 2;
}

bool is_repeated_filter(const Shape& shape, const std::vector<double>& values) {
  constexpr size_t kFewest = 3;  // different sizes of a filter's elements
  if (shape.size() < 3 || shape[0] < 2 || shape[1] != 1 || values.empty()) return false;
  const auto size = static_cast<std::ptrdiff_t>(values.size()) / shape[0];
  for (int64_t c = 1; c < shape[0]; ++c)
    if (!std::equal(values.begin(), values.begin() + size, values.begin() + c * size)) return false;
  std::set<double> sizes;
  for (std::ptrdiff_t i = 0; i < size; ++i) sizes.insert(std::abs(values[static_cast<size_t>(i)]));
  return sizes.size() >= kFewest;
}

}  // namespace windlass
