// What the convolutional networks of the zoo have in common.
#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/model/layers.h"

namespace windlass {

// A convolution without bias, padded such that stride 1 keeps the size of the image.
inline ConvOptions same_size(const Ints& kernel, int64_t stride = 1, int64_t groups = 1) {
  ConvOptions options{.stride = {stride, stride}, .groups = groups, .bias = false};
  std::ranges::transform(kernel, options.padding.begin(), [](int64_t k) { return (k - 1) / 2; });
  return options;
}

// Convolution and batch normalisation, for networks that name them apart.
inline TensorId conv_norm(Layers& net, TensorId x, int64_t channels, const Ints& kernel,
                          const std::string& conv, const std::string& norm,
                          const ConvOptions& options, double epsilon = 1e-5) {
  return net.batch_norm(net.conv(x, channels, kernel, conv, options), norm, epsilon);
}

// Average pooling of a square image to size x size, as torch.nn.AdaptiveAvgPool2d: cell i averages
// the pixels from floor(i * in / size) to ceil((i + 1) * in / size). That is an ordinary pool if
// `in` leaves remainder 0 or 1 when divided by `size`, and a repetition of pixels if `in` divides
// `size`; other sizes have cells of unequal extent and throw Error{Input}.
inline TensorId adaptive_average_pool(Layers& net, TensorId x, int64_t size,
                                      const std::string& name) {
  const int64_t in = net.dim(x, 2);
  if (in == size) return x;
  if (size % in == 0) {
    ResizeAttrs attrs{.size = {size, size},
                      .mode = ResizeMode::Nearest,
                      .coordinates = ResizeCoordinates::Asymmetric};
    return net.builder().op(OpKind::Resize, std::move(attrs), {x}, name);
  }
  const int64_t stride = in / size, overlap = in % size;
  if (in < size || overlap > 1) {
    fail_input(
        "{}: {} x {} features cannot be pooled evenly to {} x {}; choose an image size that leaves "
        "k * {} or k * {} + 1 features a side",
        name, in, in, size, size, size, size);
  }
  const int64_t extent = stride + overlap;
  return net.average_pool(x, {extent, extent}, name, {.stride = {stride, stride}});
}

}  // namespace windlass
