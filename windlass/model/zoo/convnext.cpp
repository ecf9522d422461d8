// ConvNeXt: Liu et al., "A ConvNet for the 2020s" (2022), as torchvision defines it, without
// stochastic depth. `depth1` to `depth4` are the blocks of each stage, `width` the channels of the
// first; each stage doubles them.
#include "windlass/base/checked.h"
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

constexpr double kEpsilon = 1e-6;

TensorId channels_last(Layers& net, TensorId x, const std::string& name) {
  return net.transpose(x, {0, 2, 3, 1}, name + ".channels_last");
}
TensorId channels_first(Layers& net, TensorId x, const std::string& name) {
  return net.transpose(x, {0, 3, 1, 2}, name + ".channels_first");
}

// Layer normalisation of each pixel over its channels.
TensorId pixel_norm(Layers& net, TensorId x, const std::string& name) {
  x = net.layer_norm(channels_last(net, x, name), name, kEpsilon);
  return channels_first(net, x, name);
}

TensorId block(Layers& net, TensorId x, const std::string& name) {
  const int64_t channels = net.dim(x, 1);
  TensorId y =
      net.conv(x, channels, {7, 7}, name + ".block.0", {.padding = {3, 3}, .groups = channels});
  y = net.layer_norm(channels_last(net, y, name), name + ".block.2", kEpsilon);
  y = net.linear(y, checked_mul(4, channels), name + ".block.3");
  y = net.unary(y, UnaryFn::Gelu, name + ".block.4");
  y = channels_first(net, net.linear(y, channels, name + ".block.5"), name);
  y = net.mul(net.weight(name + ".layer_scale", {channels, 1, 1}), y, name + ".scale");
  return net.add(y, x, name + ".add");
}

Graph convnext_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  x = net.conv(x, p.at("width"), {4, 4}, "features.0.0", {.stride = {4, 4}});
  x = pixel_norm(net, x, "features.0.1");
  for (int stage = 0; stage < 4; ++stage) {
    if (stage > 0) {
      const std::string halve = fmt::format("features.{}", 2 * stage);
      x = pixel_norm(net, x, halve + ".0");
      x = net.conv(x, checked_mul(2, net.dim(x, 1)), {2, 2}, halve + ".1", {.stride = {2, 2}});
    }
    const int64_t depth = p.at(fmt::format("depth{}", stage + 1));
    for (int64_t i = 0; i < depth; ++i)
      x = block(net, x, fmt::format("features.{}.{}", 2 * stage + 1, i));
  }
  x = net.layer_norm(net.global_average_pool(x, "avgpool"), "classifier.0", kEpsilon);
  return net.finish_cross_entropy(net.linear(x, p.at("classes"), "classifier.2"));
}

}  // namespace

ZooFamily zoo_convnext() {
  return {.name = "convnext",
          .description = "ConvNeXt without stochastic depth (Liu et al. 2022, torchvision)",
          .defaults = {{"batch", 1},
                       {"classes", 1000},
                       {"depth1", 3},
                       {"depth2", 3},
                       {"depth3", 9},
                       {"depth4", 3},
                       {"image", 224},
                       {"width", 96}},
          .presets = {{"convnext-t", {}, {"convnext-tiny"}},
                      {"convnext-s", {{"depth3", 27}}, {"convnext-small"}},
                      {"convnext-b", {{"depth3", 27}, {"width", 128}}, {"convnext-base"}},
                      {"convnext-l", {{"depth3", 27}, {"width", 192}}, {"convnext-large"}}},
          .build = convnext_graph};
}

}  // namespace windlass
