// U-Net: Ronneberger et al., "U-Net: convolutional networks for biomedical image segmentation"
// (2015). Downwards, `levels` times two 3 x 3 convolutions and a 2 x 2 max pool, channels doubling
// from `width`; upwards, a 2 x 2 transposed convolution, concatenation with the features of the
// same level, and two convolutions; at the end a 1 x 1 convolution and a cross-entropy for each
// pixel. Dropout follows the last two levels of the contracting path.
//
// Unlike the original, convolutions are padded: nothing is cropped, and the output has the size of
// the image, which must be a multiple of 2^levels. With `batch_norm` each 3 x 3 convolution is
// normalised and has no bias. Parameters with 1 channel and 2 classes: 31,030,658; with 3 and 2:
// 31,031,810.
#include "windlass/base/checked.h"
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

constexpr int64_t kMaxLevels = 16;

TensorId two_convs(Layers& net, TensorId x, int64_t channels, bool batch_norm,
                   const std::string& name) {
  for (int i = 1; i <= 2; ++i) {
    ConvOptions options = same_size({3, 3});
    options.bias = !batch_norm;
    x = net.conv(x, channels, {3, 3}, fmt::format("{}.conv{}", name, i), options);
    if (batch_norm) x = net.batch_norm(x, fmt::format("{}.norm{}", name, i));
    x = net.relu(x, fmt::format("{}.relu{}", name, i));
  }
  return x;
}

Graph unet_graph(const std::string& name, const ZooParameters& p) {
  const int64_t levels = p.at("levels"), image = p.at("image");
  if (levels < 1 || levels > kMaxLevels)
    fail_input("parameter levels is {}, expected 1 to {}", levels, kMaxLevels);
  if (image % (int64_t{1} << levels) != 0) {
    fail_input("image size {} is not a multiple of {}, as {} levels need", image,
               int64_t{1} << levels, levels);
  }
  const bool batch_norm = p.at("batch_norm") != 0;
  const auto width = [&](int64_t level) { return checked_mul(p.at("width"), int64_t{1} << level); };

  Layers net(name);
  TensorId x = net.image_input(p.at("batch"), p.at("channels"), image, image);
  std::vector<TensorId> skips;
  for (int64_t level = 0; level <= levels; ++level) {
    const std::string path = fmt::format("down{}", level);
    x = two_convs(net, x, width(level), batch_norm, path);
    if (level + 1 >= levels) x = net.dropout(x, 0.5, path + ".dropout");
    if (level == levels) break;
    skips.push_back(x);
    x = net.max_pool(x, {2, 2}, path + ".pool");
  }
  for (int64_t level = levels - 1; level >= 0; --level) {
    const std::string path = fmt::format("up{}", level);
    x = net.conv(x, width(level), {2, 2}, path + ".transposed",
                 {.stride = {2, 2}, .transposed = true});
    x = net.concat({skips[static_cast<size_t>(level)], x}, 1, path + ".concat");
    x = two_convs(net, x, width(level), batch_norm, path);
  }
  return net.finish_cross_entropy(net.conv(x, p.at("classes"), {1, 1}, "head"));
}

}  // namespace

ZooFamily zoo_unet() {
  return {.name = "unet",
          .description = "U-Net with padded convolutions (Ronneberger et al. 2015)",
          .defaults = {{"batch", 1},
                       {"batch_norm", 0},
                       {"channels", 1},
                       {"classes", 2},
                       {"image", 512},
                       {"levels", 4},
                       {"width", 64}},
          .presets = {},
          .build = unet_graph};
}

}  // namespace windlass
