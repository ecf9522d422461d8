#include "windlass/model/onnx/restore.h"

#include <algorithm>
#include <cctype>
#include <cmath>

namespace windlass {

bool is_anonymous_name(std::string_view name) {
  if (name.starts_with("onnx::") || name.starts_with("/") || name.starts_with("_")) return true;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return std::isdigit(static_cast<unsigned char>(c)); });
}

bool is_buffer_name(std::string_view name) {
  static constexpr std::string_view kEndings[] = {"running_mean",
                                                  "running_var",
                                                  "num_batches_tracked",
                                                  "inv_freq",
                                                  "cos_cached",
                                                  "sin_cached",
                                                  "position_ids",
                                                  "token_type_ids",
                                                  "masked_bias",
                                                  "attn_mask",
                                                  "relative_position_index",
                                                  "relative_coords_table"};
  return std::any_of(std::begin(kEndings), std::end(kEndings), [&](std::string_view ending) {
    return name.ends_with(ending) &&
           (name.size() == ending.size() || name[name.size() - ending.size() - 1] == '.');
  });
}

bool is_uniform(const std::vector<double>& values) {
  return std::all_of(values.begin(), values.end(), [&](double v) { return v == values.front(); });
}

bool is_additive_mask(const std::vector<double>& values) {
  constexpr double kLargest = -50;  // Swin hides with -100
  double hidden = 0;
  bool shown = false;
  for (double value : values) {
    if (value == 0) {
      shown = true;
    } else if (value <= kLargest && (hidden == 0 || value == hidden)) {
      hidden = value;
    } else {
      return false;
    }
  }
  return shown && hidden != 0;
}

std::optional<RelativeBias> find_relative_bias(const Shape& shape, const std::vector<double>& values) {
  constexpr int64_t kMaxSide = 64;
  if (shape.size() < 3 || shape.size() > 4 || (shape.size() == 4 && shape[0] != 1)) return std::nullopt;
  const int64_t heads = shape[shape.size() - 3], n = shape.back();
  const auto side = static_cast<int64_t>(std::lround(std::sqrt(static_cast<double>(n))));
  if (shape[shape.size() - 2] != n || side * side != n || side < 2 || side > kMaxSide || heads < 1)
    return std::nullopt;
  const int64_t span = 2 * side - 1;
  RelativeBias result{side, heads, std::vector<double>(static_cast<size_t>(span * span * heads)),
                      std::vector<double>(static_cast<size_t>(n * n))};
  std::vector<bool> known(result.table.size());
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      const int64_t dy = i / side - j / side + side - 1, dx = i % side - j % side + side - 1;
      const int64_t row = dy * span + dx;
      result.index[static_cast<size_t>(i * n + j)] = static_cast<double>(row);
      for (int64_t h = 0; h < heads; ++h) {
        const double value = values[static_cast<size_t>((h * n + i) * n + j)];
        const auto place = static_cast<size_t>(row * heads + h);
        if (known[place] && result.table[place] != value) return std::nullopt;
        known[place] = true;
        result.table[place] = value;
      }
    }
  }
  if (is_uniform(result.table)) return std::nullopt;
  return result;
}

}  // namespace windlass
