// Multi-layer perceptron: `layers` linear layers, all but the last followed by a ReLU.
#include <fmt/format.h>

#include "windlass/model/layers.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

Graph mlp_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  const int64_t layers = p.at("layers");
  TensorId x = net.builder().input("input", {DType::F32, {p.at("batch"), p.at("inputs")}});
  for (int64_t i = 0; i < layers; ++i) {
    const bool is_last = i + 1 == layers;
    x = net.linear(x, is_last ? p.at("classes") : p.at("hidden"), fmt::format("layers.{}", i));
    if (!is_last) x = net.relu(x, fmt::format("relu.{}", i));
  }
  return net.finish_cross_entropy(x);
}

}  // namespace

ZooFamily zoo_mlp() {
  return {.name = "mlp",
          .description = "multi-layer perceptron",
          .defaults =
              {{"batch", 64}, {"classes", 10}, {"hidden", 1024}, {"inputs", 784}, {"layers", 4}},
          .presets = {},
          .build = mlp_graph};
}

}  // namespace windlass
