// EfficientNet: Tan and Le, "EfficientNet: rethinking model scaling for convolutional neural
// networks" (2019), as torchvision defines B0 to B7, without stochastic depth. Channels are scaled
// by `width_percent` and rounded to a multiple of 8, blocks by `depth_percent` and rounded up;
// `dropout` is in percent. Normalisation uses epsilon 1e-5 throughout, torchvision 1e-3 from B5 on.
#include "windlass/base/checked.h"
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

// Table 1 of the paper, for B0.
struct Stage {
  int64_t expansion, kernel, stride, channels, blocks;
};
constexpr Stage kStages[] = {{1, 3, 1, 16, 1}, {6, 3, 2, 24, 2},  {6, 5, 2, 40, 2},
                             {6, 3, 2, 80, 3}, {6, 5, 1, 112, 3}, {6, 5, 2, 192, 4},
                             {6, 3, 1, 320, 1}};

class EfficientNet {
 public:
  EfficientNet(const std::string& name, const ZooParameters& p) : net_(name), p_(p) {}

  Graph build() {
    TensorId x = net_.image_input(p_.at("batch"), 3, p_.at("image"), p_.at("image"));
    x = conv(x, scaled(32), 3, "features.0", 2);
    int index = 1;
    for (const Stage& stage : kStages) {
      const int64_t blocks = ceil_div(checked_mul(stage.blocks, p_.at("depth_percent")), 100);
      for (int64_t i = 0; i < blocks; ++i)
        x = block(x, stage, i == 0 ? stage.stride : 1, fmt::format("features.{}.{}", index, i));
      ++index;
    }
    x = conv(x, 4 * net_.dim(x, 1), 1, "features.8");
    x = net_.global_average_pool(x, "avgpool");
    x = net_.dropout(x, static_cast<double>(p_.at("dropout")) / 100, "classifier.0");
    return net_.finish_cross_entropy(net_.linear(x, p_.at("classes"), "classifier.1"));
  }

 private:
  // Nearest multiple of 8, but never 10 % or more below the exact number.
  int64_t scaled(int64_t channels) const {
    const int64_t hundredfold = checked_mul(channels, p_.at("width_percent"));
    const int64_t nearest = std::max<int64_t>(8, (hundredfold + 400) / 800 * 8);
    return 1000 * nearest < 9 * hundredfold ? nearest + 8 : nearest;
  }

  // Convolution, normalisation and SiLU.
  TensorId conv(TensorId x, int64_t channels, int64_t kernel, const std::string& name,
                int64_t stride = 1, int64_t groups = 1) {
    x = plain_conv(x, channels, kernel, name, stride, groups);
    return net_.unary(x, UnaryFn::Silu, name + ".2");
  }
  TensorId plain_conv(TensorId x, int64_t channels, int64_t kernel, const std::string& name,
                      int64_t stride = 1, int64_t groups = 1) {
    return conv_norm(net_, x, channels, {kernel, kernel}, name + ".0", name + ".1",
                     same_size({kernel, kernel}, stride, groups));
  }

  // Weighs channels by a small network on their means.
  TensorId squeeze_excite(TensorId x, int64_t squeezed, const std::string& name) {
    TensorId gate = net_.reduce(x, ReduceFn::Mean, {2, 3}, true, name + ".avgpool");
    gate = net_.conv(gate, squeezed, {1, 1}, name + ".fc1");
    gate = net_.unary(gate, UnaryFn::Silu, name + ".activation");
    gate = net_.conv(gate, net_.dim(x, 1), {1, 1}, name + ".fc2");
    gate = net_.unary(gate, UnaryFn::Sigmoid, name + ".scale_activation");
    return net_.mul(gate, x, name + ".mul");
  }

  TensorId block(TensorId x, const Stage& stage, int64_t stride, const std::string& name) {
    const int64_t in = net_.dim(x, 1), inner = in * stage.expansion, out = scaled(stage.channels);
    int index = 0;
    const auto part = [&] { return fmt::format("{}.block.{}", name, index++); };
    TensorId y = x;
    if (stage.expansion != 1) y = conv(y, inner, 1, part());
    y = conv(y, inner, stage.kernel, part(), stride, inner);
    y = squeeze_excite(y, std::max<int64_t>(1, in / 4), part());
    y = plain_conv(y, out, 1, part());
    return stride == 1 && in == out ? net_.add(y, x, name + ".add") : y;
  }

  Layers net_;
  const ZooParameters& p_;
};

ZooPreset preset(int number, int64_t width, int64_t depth, int64_t image, int64_t dropout) {
  return {.name = fmt::format("efficientnet-b{}", number),
          .parameters = {{"width_percent", width},
                         {"depth_percent", depth},
                         {"image", image},
                         {"dropout", dropout}}};
}

}  // namespace

ZooFamily zoo_efficientnet() {
  return {.name = "efficientnet",
          .description = "EfficientNet without stochastic depth (Tan and Le 2019, torchvision)",
          .defaults = {{"batch", 1},
                       {"classes", 1000},
                       {"depth_percent", 100},
                       {"dropout", 20},
                       {"image", 224},
                       {"width_percent", 100}},
          .presets = {preset(0, 100, 100, 224, 20), preset(1, 100, 110, 240, 20),
                      preset(2, 110, 120, 288, 30), preset(3, 120, 140, 300, 30),
                      preset(4, 140, 180, 380, 40), preset(5, 160, 220, 456, 40),
                      preset(6, 180, 260, 528, 50), preset(7, 200, 310, 600, 50)},
          .build = [](const std::string& name, const ZooParameters& p) {
            return EfficientNet(name, p).build();
          }};
}

}  // namespace windlass
