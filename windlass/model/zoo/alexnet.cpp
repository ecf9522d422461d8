// AlexNet in its one-tower form: Krizhevsky, "One weird trick for parallelizing convolutional
// neural networks" (2014), as torchvision defines it. 61,100,840 parameters with 1000 classes.
//
// Images other than 224 x 224 work where the features can be pooled evenly to 6 x 6: 63 to 158, 223
// to 286, 415 to 478, 607 to 670, ... pixels a side.
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

struct ConvLayer {
  int64_t channels, kernel, stride;
  bool pooled;
};

constexpr ConvLayer kConvLayers[] = {{64, 11, 4, true},
                                     {192, 5, 1, true},
                                     {384, 3, 1, false},
                                     {256, 3, 1, false},
                                     {256, 3, 1, true}};

Graph alexnet_graph(const std::string& name, const ZooParameters& p) {
  Layers net(name);
  int index = 0;
  const auto feature = [&] { return fmt::format("features.{}", index++); };

  TensorId x = net.image_input(p.at("batch"), 3, p.at("image"), p.at("image"));
  for (const ConvLayer& layer : kConvLayers) {
    // The first layer pads by 2, three less than would keep the size.
    const int64_t padding = std::min<int64_t>(2, (layer.kernel - 1) / 2);
    x = net.conv(x, layer.channels, {layer.kernel, layer.kernel}, feature(),
                 {.stride = {layer.stride, layer.stride}, .padding = {padding, padding}});
    x = net.relu(x, feature());
    if (layer.pooled) x = net.max_pool(x, {3, 3}, feature(), {.stride = {2, 2}});
  }
  x = adaptive_average_pool(net, x, 6, "avgpool");
  x = net.reshape(x, {p.at("batch"), int64_t{256} * 6 * 6}, "flatten");
  x = net.dropout(x, 0.5, "classifier.0");
  x = net.relu(net.linear(x, 4096, "classifier.1"), "classifier.2");
  x = net.dropout(x, 0.5, "classifier.3");
  x = net.relu(net.linear(x, 4096, "classifier.4"), "classifier.5");
  return net.finish_cross_entropy(net.linear(x, p.at("classes"), "classifier.6"));
}

}  // namespace

ZooFamily zoo_alexnet() {
  return {.name = "alexnet",
          .description = "AlexNet, one tower (Krizhevsky 2014, torchvision)",
          .defaults = {{"batch", 1}, {"classes", 1000}, {"image", 224}},
          .presets = {},
          .build = alexnet_graph};
}

}  // namespace windlass
