// Residual networks: He et al., "Deep residual learning for image recognition" (2016), as
// torchvision defines them (stride on the 3 x 3 convolution of a bottleneck). `depth1` to `depth4`
// are the blocks of each stage; `bottleneck` chooses between blocks of three and of two
// convolutions.
//
// Bottlenecks may be wide (`width` = 128: Zagoruyko and Komodakis, "Wide residual networks", 2016)
// or grouped (`groups` = 32, `width` = 4 channels a group: Xie et al., ResNeXt, 2017).
//
// resnet-1026 is the network of Harmony (Li et al. 2022): two-convolution blocks, 128 in each
// stage, 1 + 4 * 128 * 2 + 1 = 1026 layers.
#include "windlass/base/checked.h"
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

class ResNet {
 public:
  ResNet(const std::string& name, const ZooParameters& p) : net_(name), p_(p) {}

  Graph build() {
    TensorId x = net_.image_input(p_.at("batch"), 3, p_.at("image"), p_.at("image"));
    x = conv_norm(net_, x, 64, {7, 7}, "conv1", "bn1", same_size({7, 7}, 2));
    x = net_.relu(x, "relu");
    x = net_.max_pool(x, {3, 3}, "maxpool", {.stride = {2, 2}, .padding = {1, 1}});
    for (int stage = 1; stage <= 4; ++stage) {
      const int64_t depth = p_.at(fmt::format("depth{}", stage));
      for (int64_t i = 0; i < depth; ++i) {
        x = block(x, int64_t{32} << stage, stage > 1 && i == 0 ? 2 : 1,
                  fmt::format("layer{}.{}", stage, i));
      }
    }
    x = net_.global_average_pool(x, "avgpool");
    return net_.finish_cross_entropy(net_.linear(x, p_.at("classes"), "fc"));
  }

 private:
  TensorId block(TensorId x, int64_t planes, int64_t stride, const std::string& name) {
    const bool bottleneck = p_.at("bottleneck") != 0;
    const int64_t channels = bottleneck ? 4 * planes : planes;
    TensorId y =
        bottleneck ? three_layers(x, planes, stride, name) : two_layers(x, planes, stride, name);
    TensorId shortcut = x;
    if (stride != 1 || net_.dim(x, 1) != channels) {
      shortcut = conv_norm(net_, x, channels, {1, 1}, name + ".downsample.0",
                           name + ".downsample.1", same_size({1, 1}, stride));
    }
    return net_.relu(net_.add(y, shortcut, name + ".add"), name + ".relu");
  }

  TensorId two_layers(TensorId x, int64_t planes, int64_t stride, const std::string& name) {
    if (p_.at("groups") != 1 || p_.at("width") != 64)
      fail_input("groups and width apply to bottleneck blocks only; set bottleneck=1");
    TensorId y = layer(x, planes, 3, stride, 1, name, 1);
    y = net_.relu(y, name + ".relu1");
    return layer(y, planes, 3, 1, 1, name, 2);
  }

  TensorId three_layers(TensorId x, int64_t planes, int64_t stride, const std::string& name) {
    const int64_t groups = p_.at("groups");
    const int64_t inner = checked_mul(checked_mul(planes, p_.at("width")) / 64, groups);
    TensorId y = net_.relu(layer(x, inner, 1, 1, 1, name, 1), name + ".relu1");
    y = net_.relu(layer(y, inner, 3, stride, groups, name, 2), name + ".relu2");
    return layer(y, 4 * planes, 1, 1, 1, name, 3);
  }

  TensorId layer(TensorId x, int64_t channels, int64_t kernel, int64_t stride, int64_t groups,
                 const std::string& block, int number) {
    return conv_norm(net_, x, channels, {kernel, kernel}, fmt::format("{}.conv{}", block, number),
                     fmt::format("{}.bn{}", block, number),
                     same_size({kernel, kernel}, stride, groups));
  }

  Layers net_;
  const ZooParameters& p_;
};

ZooParameters depths(int64_t a, int64_t b, int64_t c, int64_t d, ZooParameters others = {}) {
  others.insert({{"depth1", a}, {"depth2", b}, {"depth3", c}, {"depth4", d}});
  return others;
}

}  // namespace

ZooFamily zoo_resnet() {
  const ZooParameters basic = {{"bottleneck", 0}};
  return {.name = "resnet",
          .description =
              "ResNet, Wide ResNet, ResNeXt (He et al. 2016, torchvision); resnet-1026 of Harmony",
          .defaults = depths(3, 4, 6, 3,
                             {{"batch", 1},
                              {"bottleneck", 1},
                              {"classes", 1000},
                              {"groups", 1},
                              {"image", 224},
                              {"width", 64}}),
          .presets = {{"resnet-18", depths(2, 2, 2, 2, basic)},
                      {"resnet-34", depths(3, 4, 6, 3, basic)},
                      {"resnet-50", depths(3, 4, 6, 3)},
                      {"resnet-101", depths(3, 4, 23, 3)},
                      {"resnet-152", depths(3, 8, 36, 3)},
                      {"resnet-1026", depths(128, 128, 128, 128, basic)},
                      {"wide-resnet-50-2", depths(3, 4, 6, 3, {{"width", 128}})},
                      {"wide-resnet-101-2", depths(3, 4, 23, 3, {{"width", 128}})},
                      {"resnext-50-32x4d", depths(3, 4, 6, 3, {{"groups", 32}, {"width", 4}})},
                      {"resnext-101-32x8d", depths(3, 4, 23, 3, {{"groups", 32}, {"width", 8}})}},
          .build = [](const std::string& name, const ZooParameters& p) {
            return ResNet(name, p).build();
          }};
}

}  // namespace windlass
