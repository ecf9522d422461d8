// GoogLeNet: Szegedy et al., "Going deeper with convolutions" (2015), as torchvision defines it:
// with batch normalisation, 3 x 3 kernels in the place of 5 x 5, and here without auxiliary heads.
// 6,624,904 parameters with 1000 classes.
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

// Output channels of the branches of a module, and of the 1 x 1 convolutions before the second and
// third.
struct Module {
  const char* name;
  int64_t one, before_second, second, before_third, third, pooled;
  int64_t pool_after;  // kernel of the max pool that follows, 0 if none
};

constexpr Module kModules[] = {
    {"3a", 64, 96, 128, 16, 32, 32, 0},     {"3b", 128, 128, 192, 32, 96, 64, 3},
    {"4a", 192, 96, 208, 16, 48, 64, 0},    {"4b", 160, 112, 224, 24, 64, 64, 0},
    {"4c", 128, 128, 256, 24, 64, 64, 0},   {"4d", 112, 144, 288, 32, 64, 64, 0},
    {"4e", 256, 160, 320, 32, 128, 128, 2}, {"5a", 256, 160, 320, 32, 128, 128, 0},
    {"5b", 384, 192, 384, 48, 128, 128, 0}};

TensorId conv(Layers& net, TensorId x, int64_t channels, int64_t kernel, const std::string& name,
              int64_t stride = 1) {
  x = conv_norm(net, x, channels, {kernel, kernel}, name + ".conv", name + ".bn",
                same_size({kernel, kernel}, stride), 1e-3);
  return net.relu(x, name + ".relu");
}

TensorId halve(Layers& net, TensorId x, int64_t kernel, const std::string& name) {
  return net.max_pool(x, {kernel, kernel}, name, {.stride = {2, 2}, .ceil_mode = true});
}

TensorId module(Layers& net, TensorId x, const Module& m) {
  const std::string path = fmt::format("inception{}.", m.name);
  const TensorId a = conv(net, x, m.one, 1, path + "branch1");
  TensorId b = conv(net, x, m.before_second, 1, path + "branch2.0");
  b = conv(net, b, m.second, 3, path + "branch2.1");
  TensorId c = conv(net, x, m.before_third, 1, path + "branch3.0");
  c = conv(net, c, m.third, 3, path + "branch3.1");
  TensorId d = net.max_pool(x, {3, 3}, path + "branch4.0",
                            {.stride = {1, 1}, .padding = {1, 1}, .ceil_mode = true});
  d = conv(net, d, m.pooled, 1, path + "branch4.1");
  return net.concat({a, b, c, d}, 1, path + "concat");
}

Graph googlenet_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  x = halve(net, conv(net, x, 64, 7, "conv1", 2), 3, "maxpool1");
  x = conv(net, x, 64, 1, "conv2");
  x = halve(net, conv(net, x, 192, 3, "conv3"), 3, "maxpool2");
  int pools = 2;
  for (const Module& m : kModules) {
    x = module(net, x, m);
    if (m.pool_after != 0) x = halve(net, x, m.pool_after, fmt::format("maxpool{}", ++pools));
  }
  x = net.global_average_pool(x, "avgpool");
  x = net.dropout(x, 0.2, "dropout");
  return net.finish_cross_entropy(net.linear(x, p.at("classes"), "fc"));
}

}  // namespace

ZooFamily zoo_googlenet() {
  return {.name = "googlenet",
          .description = "GoogLeNet without auxiliary heads (Szegedy et al. 2015, torchvision)",
          .defaults = {{"batch", 1}, {"classes", 1000}, {"image", 224}},
          .presets = {},
          .build = googlenet_graph};
}

}  // namespace windlass
