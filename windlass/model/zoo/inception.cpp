// Inception-v3: Szegedy et al., "Rethinking the inception architecture for computer vision" (2016),
// as torchvision defines it and without its auxiliary head: 23,834,568 parameters with 1000
// classes. Images are 299 x 299, and at least 75 x 75.
#include "windlass/model/zoo.h"
#include "windlass/model/zoo/convnet.h"

namespace windlass {
namespace {

class InceptionV3 {
 public:
  InceptionV3(const std::string& name, const ZooParameters& p) : net_(name), p_(p) {}

  Graph build() {
    TensorId x = net_.image_input(p_.at("batch"), 3, p_.at("image"), p_.at("image"));
    x = reducing(x, 32, "Conv2d_1a_3x3");
    x = conv(x, 32, {3, 3}, "Conv2d_2a_3x3", {.bias = false});
    x = conv(x, 64, {3, 3}, "Conv2d_2b_3x3");
    x = net_.max_pool(x, {3, 3}, "maxpool1", {.stride = {2, 2}});
    x = conv(x, 80, {1, 1}, "Conv2d_3b_1x1");
    x = conv(x, 192, {3, 3}, "Conv2d_4a_3x3", {.bias = false});
    x = net_.max_pool(x, {3, 3}, "maxpool2", {.stride = {2, 2}});
    x = small_kernels(x, 32, "Mixed_5b.");
    x = small_kernels(x, 64, "Mixed_5c.");
    x = small_kernels(x, 64, "Mixed_5d.");
    x = first_reduction(x, "Mixed_6a.");
    x = factorised(x, 128, "Mixed_6b.");
    x = factorised(x, 160, "Mixed_6c.");
    x = factorised(x, 160, "Mixed_6d.");
    x = factorised(x, 192, "Mixed_6e.");
    x = second_reduction(x, "Mixed_7a.");
    x = wide(x, "Mixed_7b.");
    x = wide(x, "Mixed_7c.");
    x = net_.global_average_pool(x, "avgpool");
    x = net_.dropout(x, 0.5, "dropout");
    return net_.finish_cross_entropy(net_.linear(x, p_.at("classes"), "fc"));
  }

 private:
  TensorId conv(TensorId x, int64_t channels, const Ints& kernel, const std::string& name,
                const ConvOptions& options) {
    x = conv_norm(net_, x, channels, kernel, name + ".conv", name + ".bn", options, 1e-3);
    return net_.relu(x, name + ".relu");
  }
  TensorId conv(TensorId x, int64_t channels, const Ints& kernel, const std::string& name) {
    return conv(x, channels, kernel, name, same_size(kernel));
  }
  // 3 x 3, stride 2, no padding.
  TensorId reducing(TensorId x, int64_t channels, const std::string& name) {
    return conv(x, channels, {3, 3}, name, {.stride = {2, 2}, .bias = false});
  }

  TensorId pooled(TensorId x, int64_t channels, const std::string& m) {
    x = net_.average_pool(x, {3, 3}, m + "pool", {.stride = {1, 1}, .padding = {1, 1}});
    return conv(x, channels, {1, 1}, m + "branch_pool");
  }
  TensorId max_pooled(TensorId x, const std::string& m) {
    return net_.max_pool(x, {3, 3}, m + "pool", {.stride = {2, 2}});
  }

  // Modules A to E of torchvision; figures 5, 10, 6, 10 and 7 of the paper.
  TensorId small_kernels(TensorId x, int64_t pool_channels, const std::string& m) {
    const TensorId a = conv(x, 64, {1, 1}, m + "branch1x1");
    TensorId b = conv(x, 48, {1, 1}, m + "branch5x5_1");
    b = conv(b, 64, {5, 5}, m + "branch5x5_2");
    TensorId c = conv(x, 64, {1, 1}, m + "branch3x3dbl_1");
    c = conv(c, 96, {3, 3}, m + "branch3x3dbl_2");
    c = conv(c, 96, {3, 3}, m + "branch3x3dbl_3");
    return net_.concat({a, b, c, pooled(x, pool_channels, m)}, 1, m + "concat");
  }

  TensorId first_reduction(TensorId x, const std::string& m) {
    const TensorId a = reducing(x, 384, m + "branch3x3");
    TensorId b = conv(x, 64, {1, 1}, m + "branch3x3dbl_1");
    b = conv(b, 96, {3, 3}, m + "branch3x3dbl_2");
    b = reducing(b, 96, m + "branch3x3dbl_3");
    return net_.concat({a, b, max_pooled(x, m)}, 1, m + "concat");
  }

  TensorId factorised(TensorId x, int64_t inner, const std::string& m) {
    const TensorId a = conv(x, 192, {1, 1}, m + "branch1x1");
    TensorId b = conv(x, inner, {1, 1}, m + "branch7x7_1");
    b = conv(b, inner, {1, 7}, m + "branch7x7_2");
    b = conv(b, 192, {7, 1}, m + "branch7x7_3");
    TensorId c = conv(x, inner, {1, 1}, m + "branch7x7dbl_1");
    c = conv(c, inner, {7, 1}, m + "branch7x7dbl_2");
    c = conv(c, inner, {1, 7}, m + "branch7x7dbl_3");
    c = conv(c, inner, {7, 1}, m + "branch7x7dbl_4");
    c = conv(c, 192, {1, 7}, m + "branch7x7dbl_5");
    return net_.concat({a, b, c, pooled(x, 192, m)}, 1, m + "concat");
  }

  TensorId second_reduction(TensorId x, const std::string& m) {
    TensorId a = conv(x, 192, {1, 1}, m + "branch3x3_1");
    a = reducing(a, 320, m + "branch3x3_2");
    TensorId b = conv(x, 192, {1, 1}, m + "branch7x7x3_1");
    b = conv(b, 192, {1, 7}, m + "branch7x7x3_2");
    b = conv(b, 192, {7, 1}, m + "branch7x7x3_3");
    b = reducing(b, 192, m + "branch7x7x3_4");
    return net_.concat({a, b, max_pooled(x, m)}, 1, m + "concat");
  }

  TensorId wide(TensorId x, const std::string& m) {
    const TensorId a = conv(x, 320, {1, 1}, m + "branch1x1");
    const TensorId b = fork(conv(x, 384, {1, 1}, m + "branch3x3_1"), m + "branch3x3_2");
    TensorId c = conv(x, 448, {1, 1}, m + "branch3x3dbl_1");
    c = fork(conv(c, 384, {3, 3}, m + "branch3x3dbl_2"), m + "branch3x3dbl_3");
    return net_.concat({a, b, c, pooled(x, 192, m)}, 1, m + "concat");
  }
  TensorId fork(TensorId x, const std::string& name) {
    const TensorId a = conv(x, 384, {1, 3}, name + "a");
    const TensorId b = conv(x, 384, {3, 1}, name + "b");
    return net_.concat({a, b}, 1, name + ".concat");
  }

  Layers net_;
  const ZooParameters& p_;
};

}  // namespace

ZooFamily zoo_inception() {
  return {.name = "inception-v3",
          .description = "Inception-v3 without auxiliary head (Szegedy et al. 2016, torchvision)",
          .defaults = {{"batch", 1}, {"classes", 1000}, {"image", 299}},
          .presets = {},
          .build = [](const std::string& name, const ZooParameters& p) {
            return InceptionV3(name, p).build();
          }};
}

}  // namespace windlass
