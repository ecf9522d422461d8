// DenseNet: Huang et al., "Densely connected convolutional networks" (2017), as torchvision defines
// it. `depth1` to `depth4` are the layers of each dense block, `growth` the channels each adds,
// `width` the channels of the first convolution. A layer reads the concatenation of the block's
// input and of all layers before it, which is stored anew for each layer.
#include "windlass/base/checked.h"
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

// Batch normalisation, ReLU and convolution: `<prefix>norm<suffix>`, ...
TensorId norm_relu_conv(Layers& net, TensorId x, int64_t channels, int64_t kernel,
                        const std::string& prefix, const std::string& suffix) {
  x = net.batch_norm(x, prefix + "norm" + suffix);
  x = net.relu(x, prefix + "relu" + suffix);
  return net.conv(x, channels, {kernel, kernel}, prefix + "conv" + suffix,
                  same_size({kernel, kernel}));
}

Graph densenet_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  const int64_t growth = p.at("growth");
  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  x = conv_norm(net, x, p.at("width"), {7, 7}, "features.conv0", "features.norm0",
                same_size({7, 7}, 2));
  x = net.relu(x, "features.relu0");
  x = net.max_pool(x, {3, 3}, "features.pool0", {.stride = {2, 2}, .padding = {1, 1}});
  for (int block = 1; block <= 4; ++block) {
    const int64_t depth = p.at(fmt::format("depth{}", block));
    for (int64_t layer = 1; layer <= depth; ++layer) {
      const std::string prefix = fmt::format("features.denseblock{}.denselayer{}.", block, layer);
      TensorId y = norm_relu_conv(net, x, checked_mul(4, growth), 1, prefix, "1");
      y = norm_relu_conv(net, y, growth, 3, prefix, "2");
      x = net.concat({x, y}, 1, prefix + "concat");
    }
    if (block == 4) break;
    const std::string prefix = fmt::format("features.transition{}.", block);
    x = norm_relu_conv(net, x, net.dim(x, 1) / 2, 1, prefix, "");
    x = net.average_pool(x, {2, 2}, prefix + "pool");
  }
  x = net.relu(net.batch_norm(x, "features.norm5"), "relu");
  x = net.global_average_pool(x, "avgpool");
  return net.finish_cross_entropy(net.linear(x, p.at("classes"), "classifier"));
}

}  // namespace

ZooFamily zoo_densenet() {
  return {
      .name = "densenet",
      .description = "DenseNet (Huang et al. 2017, torchvision)",
      .defaults = {{"batch", 1},
                   {"classes", 1000},
                   {"depth1", 6},
                   {"depth2", 12},
                   {"depth3", 24},
                   {"depth4", 16},
                   {"growth", 32},
                   {"image", 224},
                   {"width", 64}},
      .presets = {{"densenet-121", {}},
                  {"densenet-161", {{"depth3", 36}, {"depth4", 24}, {"growth", 48}, {"width", 96}}},
                  {"densenet-169", {{"depth3", 32}, {"depth4", 32}}},
                  {"densenet-201", {{"depth3", 48}, {"depth4", 32}}}},
      .build = densenet_graph};
}

}  // namespace windlass
