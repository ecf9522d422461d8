// VGG: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition"
// (2015), as torchvision defines it: five groups of 3 x 3 convolutions with a max pool after each,
// then three linear layers. `depth1` to `depth5` are the convolutions of each group.
//
// vgg-416 is the deep network of vDNN (Rhu et al. 2016) and Harmony (Li et al. 2022): VGG-16 with
// 80 more convolutions in each group, 413 convolutions and 3 linear layers, 577,894,184 parameters.
//
// Images other than 224 x 224 work where a 32nd of their size, rounded down, can be pooled evenly
// to 7 x 7: it is 1, k * 7 or k * 7 + 1.
#include "windlass/base/checked.h"
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

Graph vgg_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  int index = 0;
  const auto feature = [&] { return fmt::format("features.{}", index++); };

  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  for (int group = 1; group <= 5; ++group) {
    const int64_t channels = checked_mul(p.at("width"), int64_t{1} << std::min(group - 1, 3));
    const int64_t depth = p.at(fmt::format("depth{}", group));
    for (int64_t layer = 0; layer < depth; ++layer) {
      x = net.conv(x, channels, {3, 3}, feature(), {.padding = {1, 1}});
      if (p.at("batch_norm") != 0) x = net.batch_norm(x, feature());
      x = net.relu(x, feature());
    }
    x = net.max_pool(x, {2, 2}, feature());
  }
  x = adaptive_average_pool(net, x, 7, "avgpool");
  x = net.reshape(x, {p.at("batch"), checked_mul(net.dim(x, 1), 49)}, "flatten");
  for (int layer = 0; layer < 6; layer += 3) {
    x = net.linear(x, p.at("hidden"), fmt::format("classifier.{}", layer));
    x = net.relu(x, fmt::format("classifier.{}", layer + 1));
    x = net.dropout(x, 0.5, fmt::format("classifier.{}", layer + 2));
  }
  return net.finish_cross_entropy(net.linear(x, p.at("classes"), "classifier.6"));
}

ZooPreset preset(const std::string& size, const Ints& depths) {
  ZooPreset result{.name = "vgg-" + size, .parameters = {}};
  for (size_t i = 0; i < depths.size(); ++i)
    result.parameters[fmt::format("depth{}", i + 1)] = depths[i];
  return result;
}

}  // namespace

ZooFamily zoo_vgg() {
  return {
      .name = "vgg",
      .description = "VGG (Simonyan and Zisserman 2015, torchvision); vgg-416 of vDNN and Harmony",
      .defaults = {{"batch", 1},
                   {"batch_norm", 0},
                   {"classes", 1000},
                   {"depth1", 2},
                   {"depth2", 2},
                   {"depth3", 3},
                   {"depth4", 3},
                   {"depth5", 3},
                   {"hidden", 4096},
                   {"image", 224},
                   {"width", 64}},
      .presets = {preset("11", {1, 1, 2, 2, 2}), preset("13", {2, 2, 2, 2, 2}),
                  preset("16", {2, 2, 3, 3, 3}), preset("19", {2, 2, 4, 4, 4}),
                  preset("416", {82, 82, 83, 83, 83})},
      .build = vgg_graph};
}

}  // namespace windlass
