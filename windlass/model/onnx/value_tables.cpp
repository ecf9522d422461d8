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

// Whether all slices along some axis are the same.
bool repeats_along_an_axis(const Shape& shape, const std::vector<double>& values) {
  const auto count = static_cast<int64_t>(values.size());
  int64_t inner = count;
  for (int64_t size : shape) {
    const int64_t outer_stride = inner;
    inner /= size;
    bool same = true;
    for (int64_t i = 0; same && i < count; ++i) {
      const int64_t first = i / outer_stride * outer_stride + i % inner;
      same = values[static_cast<size_t>(i)] == values[static_cast<size_t>(first)];
    }
    if (same) return true;
  }
  return false;
}

// Whether no row, the first axis counts, has more than one number that is not zero, and all of
// these are the same.
bool has_one_in_a_row(const Shape& shape, const std::vector<double>& values) {
  const size_t row = values.size() / static_cast<size_t>(shape[0]);
  double number = 0;
  for (size_t begin = 0; begin < values.size(); begin += row) {
    bool found = false;
    for (size_t i = begin; i < begin + row; ++i) {
      if (values[i] == 0) continue;
      if (found || (number != 0 && values[i] != number)) return false;
      found = true;
      number = values[i];
    }
  }
  return true;
}

// How many sizes of numbers there are, those that differ by rounding alone being one.
size_t count_sizes(std::vector<double> values) {
  constexpr double kRounding = 1e-6;
  for (double& value : values) value = std::abs(value);
  std::sort(values.begin(), values.end());
  size_t sizes = 0;
  for (size_t i = 0; i < values.size(); ++i)
    sizes += i == 0 || values[i] - values[i - 1] > kRounding * values.back();
  return sizes;
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

bool is_circle_table(const Shape& full, const std::vector<double>& values, DType stored) {
  constexpr int64_t kFewestRows = 4, kFewestColumns = 4;
  const double tolerance = element_bytes(stored) < 4 ? 3e-2 : 1e-4;
  const Shape shape = squeezed(full);
  if (shape.size() < 2) return false;
  const int64_t width = shape.back(), rows = static_cast<int64_t>(values.size()) / width;
  if (width < kFewestColumns || width % 2 != 0) return false;
  // Column i and its partner: neighbours, or half of the row apart, or of each half of it.
  for (const int64_t block : {int64_t{2}, width, width / 2}) {
    if (block % 2 != 0 || width % block != 0) continue;
    int64_t turned = 0;
    bool all = true;
    for (int64_t row = 0; all && row < rows; ++row) {
      const double* v = values.data() + row * width;
      if (std::all_of(v, v + width, [](double x) { return x == 0; })) continue;
      for (int64_t i = 0; all && i < width; ++i) {
        if (i % block >= block / 2) continue;
        const double a = v[i], b = v[i + block / 2];
        all = std::abs(a * a + b * b - 1) <= tolerance;
      }
      ++turned;
    }
    if (all && turned >= kFewestRows && !repeats_along_an_axis(shape, values)) return true;
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

bool is_computed_table(const Shape& full, const std::vector<double>& values, DType stored) {
  // In fewer numbers chance might do it; in more, or in types of 16 bits, sizes meet by chance.
  constexpr size_t kFewest = 8, kMost = 4096;
  const Shape shape = squeezed(full);
  if (shape.size() < 2 || values.size() < kFewest) return false;
  if (repeats_along_an_axis(shape, values) || has_one_in_a_row(shape, values)) return false;
  const auto zeros = static_cast<size_t>(std::count(values.begin(), values.end(), 0.0));
  if (2 * zeros >= values.size()) return true;
  if (is_wave_table(full, values, stored) || is_grid(full, values)) return true;
  return values.size() <= kMost && element_bytes(stored) >= 4 &&
         2 * count_sizes(values) <= values.size();
}

bool is_schedule(const std::vector<double>& values) {
  constexpr size_t kShortest = 8;
  if (values.size() < kShortest) return false;
  const bool rises = values.back() > values.front();
  for (size_t i = 1; i < values.size(); ++i)
    if (!(rises ? values[i] > values[i - 1] : values[i] < values[i - 1])) return false;
  return true;
}

}  // namespace windlass
