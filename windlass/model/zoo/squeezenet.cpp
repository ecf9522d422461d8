// SqueezeNet: Iandola et al., "SqueezeNet: AlexNet-level accuracy with 50x fewer parameters"
// (2016), as torchvision defines versions 1.0 (1,248,424 parameters with 1000 classes) and 1.1
// (1,235,496), which has a smaller first kernel and pools earlier. `version` is 10 or 11.
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

// A 1 x 1 convolution to few channels, then 1 x 1 and 3 x 3 convolutions side by side.
TensorId fire(Layers& net, TensorId x, int64_t squeezed, int64_t expanded,
              const std::string& name) {
  x = net.relu(net.conv(x, squeezed, {1, 1}, name + ".squeeze"), name + ".squeeze_activation");
  TensorId a = net.conv(x, expanded, {1, 1}, name + ".expand1x1");
  a = net.relu(a, name + ".expand1x1_activation");
  TensorId b = net.conv(x, expanded, {3, 3}, name + ".expand3x3", {.padding = {1, 1}});
  b = net.relu(b, name + ".expand3x3_activation");
  return net.concat({a, b}, 1, name + ".concat");
}

Graph squeezenet_graph(const std::string& name, const ZooParameters& p) {
  if (p.at("version") != 10 && p.at("version") != 11)
    fail_input("parameter version is {}, expected 10 or 11", p.at("version"));
  const bool first = p.at("version") == 10;
  constexpr int64_t kSqueezed[] = {16, 16, 32, 32, 48, 48, 64, 64};

  Layers net(name);
  int index = 0;
  const auto feature = [&] { return fmt::format("features.{}", index++); };
  const auto pool = [&](TensorId x) {
    return net.max_pool(x, {3, 3}, feature(), {.stride = {2, 2}, .ceil_mode = true});
  };
  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  x = net.conv(x, first ? 96 : 64, first ? Ints{7, 7} : Ints{3, 3}, feature(), {.stride = {2, 2}});
  x = pool(net.relu(x, feature()));
  for (int i = 0; i < 8; ++i) {
    x = fire(net, x, kSqueezed[i], 4 * kSqueezed[i], feature());
    if (first ? i == 2 || i == 6 : i == 1 || i == 3) x = pool(x);
  }
  x = net.dropout(x, 0.5, "classifier.0");
  x = net.relu(net.conv(x, p.at("classes"), {1, 1}, "classifier.1"), "classifier.2");
  return net.finish_cross_entropy(net.global_average_pool(x, "classifier.3"));
}

}  // namespace

ZooFamily zoo_squeezenet() {
  return {.name = "squeezenet",
          .description = "SqueezeNet (Iandola et al. 2016, torchvision)",
          .defaults = {{"batch", 1}, {"classes", 1000}, {"image", 224}, {"version", 11}},
          .presets = {{"squeezenet-1.0", {{"version", 10}}}, {"squeezenet-1.1", {}}},
          .build = squeezenet_graph};
}

}  // namespace windlass
