// MobileNetV2: Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks" (2018), as
// torchvision defines it. 3,504,872 parameters with 1000 classes.
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

// Table 2 of the paper: expansion, output channels, blocks, stride of the first block.
struct MobileStage {
  int64_t expansion, channels, blocks, stride;
};
constexpr MobileStage kMobileStages[] = {{1, 16, 1, 1}, {6, 24, 2, 2}, {6, 32, 3, 2},
                                         {6, 64, 4, 2}, {6, 96, 3, 1}, {6, 160, 3, 2},
                                         {6, 320, 1, 1}};

// Convolution, normalisation and ReLU6.
TensorId mobile_conv(Layers& net, TensorId x, int64_t channels, int64_t kernel,
                     const std::string& name, int64_t stride = 1, int64_t groups = 1) {
  x = conv_norm(net, x, channels, {kernel, kernel}, name + ".0", name + ".1",
                same_size({kernel, kernel}, stride, groups));
  return net.unary(x, UnaryFn::Clip, name + ".2", 0, 6);
}

TensorId inverted_residual(Layers& net, TensorId x, const MobileStage& stage, int64_t stride,
                           const std::string& name) {
  const int64_t inner = net.dim(x, 1) * stage.expansion;
  int index = 0;
  const auto part = [&] { return fmt::format("{}.conv.{}", name, index++); };
  TensorId y = x;
  if (stage.expansion != 1) y = mobile_conv(net, y, inner, 1, part());
  y = mobile_conv(net, y, inner, 3, part(), stride, inner);
  const std::string project = part();
  y = conv_norm(net, y, stage.channels, {1, 1}, project, part(), same_size({1, 1}));
  const bool residual = stride == 1 && net.dim(x, 1) == stage.channels;
  return residual ? net.add(x, y, name + ".add") : y;
}

Graph mobilenet_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  int index = 0;
  const auto feature = [&] { return fmt::format("features.{}", index++); };
  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  x = mobile_conv(net, x, 32, 3, feature(), 2);
  for (const MobileStage& stage : kMobileStages) {
    for (int64_t i = 0; i < stage.blocks; ++i)
      x = inverted_residual(net, x, stage, i == 0 ? stage.stride : 1, feature());
  }
  x = mobile_conv(net, x, 1280, 1, feature());
  x = net.global_average_pool(x, "avgpool");
  x = net.dropout(x, 0.2, "classifier.0");
  return net.finish_cross_entropy(net.linear(x, p.at("classes"), "classifier.1"));
}

}  // namespace

ZooFamily zoo_mobilenet() {
  return {.name = "mobilenet-v2",
          .description = "MobileNetV2 (Sandler et al. 2018, torchvision)",
          .defaults = {{"batch", 1}, {"classes", 1000}, {"image", 224}},
          .presets = {},
          .build = mobilenet_graph};
}

}  // namespace windlass
