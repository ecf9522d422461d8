// Small files for tests of which stored tensors are trained.
#pragma once

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "windlass/model/onnx/import_testing.h"

namespace windlass::stored {

using namespace proto;

inline constexpr int64_t kPlaces = 12, kWidth = 6;

// cos or sin of place * 100^(-column / width), as rotary embeddings have it.
inline std::vector<float> waves(bool cosine, double amplitude = 1) {
  std::vector<float> values;
  for (int64_t p = 0; p < kPlaces; ++p)
    for (int64_t i = 0; i < kWidth; ++i) {
      const double angle = static_cast<double>(p) *
                           std::pow(100.0, -static_cast<double>(i) / static_cast<double>(kWidth));
      values.push_back(
          static_cast<float>(amplitude * (cosine ? std::cos(angle) : std::sin(angle))));
    }
  return values;
}

inline std::vector<float> noise(size_t count, double scale = 1) {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, scale);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(normal(random));
  return values;
}

// x [2, 12, 6] W, then `op` with a stored tensor of `shape`.
inline std::string combined(const std::string& op, const std::string& name,
                            const std::vector<int64_t>& shape, const std::vector<float>& values) {
  return proto::model(input("x", {2, kPlaces, kWidth}) + output("y", {2, kPlaces, kWidth}) +
                      initializer("w", {kWidth, kWidth}, noise(kWidth * kWidth)) +
                      initializer(name, shape, values) + node("MatMul", {"x", "w"}, {"h"}) +
                      node(op, {"h", name}, {"y"}));
}

inline std::vector<std::string> trained(const std::string& file, const ModelOptions& options = {}) {
  return weight_names(import(file, options).graph);
}

}  // namespace windlass::stored
