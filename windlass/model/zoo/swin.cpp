// Swin Transformer: Liu et al., "Swin Transformer: hierarchical vision transformer using shifted
// windows" (2021), with the details and names of torchvision; swin-l is the paper's large network
// at window 7. Four stages of `depth1` to `depth4` blocks; between stages 2 x 2 patches are merged,
// which halves the sides and doubles the width. `embed` is the width of the first stage, `heads` =
// 0 means one for each 32 of it. Stochastic depth is left out.
//
// Attention is within windows of `window` x `window` patches; in every other block the image is
// rolled by half a window first, and patches that are no neighbours in the image do not see each
// other.
#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/checked.h"
#include "windlass/model/huggingface/transformer_blocks.h"
#include "windlass/model/layers.h"
#include "windlass/model/zoo/transformers.h"

namespace windlass {
namespace {

constexpr int64_t kMaxWindow = 24;
constexpr int64_t kMaxWindows = int64_t{1} << 22;  // of an image

class Swin {
 public:
  Swin(const std::string& name, const ZooParameters& p)
      : net_(name), p_(p), batch_(p.at("batch")), window_(p.at("window")) {}

  Graph build() {
    if (window_ > kMaxWindow)
      fail_input("parameter window is {}, expected 1 to {}", window_, kMaxWindow);
    int64_t heads = parameter_or(p_, "heads", std::max<int64_t>(1, p_.at("embed") / 32));
    TensorId x = patches();
    for (int stage = 0; stage < 4; ++stage) {
      if (stage > 0) {
        x = merge_patches(x, fmt::format("features.{}", 2 * stage));
        heads = checked_mul(heads, 2);
      }
      const int64_t depth = p_.at(fmt::format("depth{}", stage + 1));
      for (int64_t i = 0; i < depth; ++i)
        x = block(x, heads, i % 2 == 1, fmt::format("features.{}.{}", 2 * stage + 1, i));
    }
    x = net_.layer_norm(x, "norm");
    x = net_.reduce(x, ReduceFn::Mean, {1, 2}, false, "avgpool");
    return net_.finish_cross_entropy(net_.linear(x, p_.at("classes"), "head"));
  }

 private:
  // [b, h, w, c] from here on.
  TensorId patches() {
    const int64_t image = p_.at("image");
    TensorId x = net_.image_input(batch_, 3, image, image);
    x = net_.conv(x, p_.at("embed"), {4, 4}, "features.0.0", {.stride = {4, 4}});
    x = net_.transpose(x, {0, 2, 3, 1}, "features.0.1");
    return net_.layer_norm(x, "features.0.2");
  }

  // Zeros below and to the right up to multiples of `unit`.
  TensorId pad_to(TensorId x, int64_t unit, const std::string& name) {
    const auto missing = [&](int64_t axis) { return (unit - net_.dim(x, axis) % unit) % unit; };
    const Ints end = {0, missing(1), missing(2), 0};
    if (end[1] == 0 && end[2] == 0) return x;
    return net_.builder().op(OpKind::Pad, PadAttrs{.begin = {0, 0, 0, 0}, .end = end}, {x}, name);
  }

  // Each 2 x 2 patches side by side in channels: of the even rows, then the odd ones, column by
  // column.
  TensorId merge_patches(TensorId x, const std::string& name) {
    x = pad_to(x, 2, name + ".pad");
    const int64_t height = net_.dim(x, 1) / 2, width = net_.dim(x, 2) / 2,
                  channels = net_.dim(x, 3);
    x = net_.reshape(x, {batch_, height, 2, width, 2, channels}, name + ".pairs");
    x = net_.transpose(x, {0, 1, 3, 4, 2, 5}, name + ".collect");
    x = net_.reshape(x, {batch_, height, width, checked_mul(4, channels)}, name + ".join");
    x = net_.layer_norm(x, name + ".norm");
    return net_.linear(x, checked_mul(2, channels), name + ".reduction", false);
  }

  TensorId block(TensorId x, int64_t heads, bool shifted, const std::string& name) {
    TensorId y = net_.layer_norm(x, name + ".norm1");
    x = net_.add(x, window_attention(y, heads, shifted, name + ".attn"), name + ".add_1");
    y = net_.layer_norm(x, name + ".norm2");
    y = net_.linear(y, checked_mul(4, net_.dim(y, -1)), name + ".mlp.0");
    y = net_.unary(y, UnaryFn::Gelu, name + ".mlp.1");
    y = net_.linear(y, net_.dim(x, -1), name + ".mlp.3");
    return net_.add(x, y, name + ".add_2");
  }

  // Moves rows and columns up and left by `shift`, those at the border to the other side.
  TensorId roll(TensorId x, int64_t shift, const std::string& name) {
    for (int64_t axis : {1, 2}) {
      const int64_t size = net_.dim(x, axis);
      const std::string path = fmt::format("{}.{}", name, axis);
      x = net_.concat({net_.slice(x, axis, shift, size, path + ".tail"),
                       net_.slice(x, axis, 0, shift, path + ".head")},
                      axis, path);
    }
    return x;
  }

  TensorId window_attention(TensorId x, int64_t heads, bool shifted, const std::string& name) {
    const Shape original = net_.shape(x);
    x = pad_to(x, window_, name + ".pad");
    const Shape padded = net_.shape(x);
    const int64_t channels = padded[3], area = window_ * window_;
    const int64_t rows = padded[1] / window_, columns = padded[2] / window_;
    const int64_t windows = checked_mul(rows, columns);
    if (windows > kMaxWindows)
      fail_input("an image of {} has {} windows of {}, more than {}", p_.at("image"), windows,
                 window_, kMaxWindows);
    // A single window along an axis has no border to shift across; images are square.
    const int64_t shift = shifted && rows > 1 ? window_ / 2 : 0;
    if (shift > 0) x = roll(x, shift, name + ".roll");

    x = net_.reshape(x, {batch_, rows, window_, columns, window_, channels}, name + ".grid");
    x = net_.transpose(x, {0, 1, 3, 2, 4, 5}, name + ".windows");
    // Windows with masks of their own count as heads, others as samples.
    const int64_t samples = shift > 0 ? batch_ : checked_mul(batch_, windows);
    const int64_t groups = shift > 0 ? windows : 1;
    x = net_.reshape(x, {samples, groups, area, channels}, name + ".tokens");
    TensorId bias = position_bias(heads, name);
    if (shift > 0) {
      bias = net_.add(bias, shift_mask(rows, columns, shift), name + ".bias");
      bias = net_.reshape(bias, {checked_mul(groups, heads), area, area}, name + ".bias.flat");
    }
    x = attention(x, heads, bias, name);

    x = net_.reshape(x, {batch_, rows, columns, window_, window_, channels}, name + ".back.tokens");
    x = net_.transpose(x, {0, 1, 3, 2, 4, 5}, name + ".back.windows");
    x = net_.reshape(x, padded, name + ".back.grid");
    if (shift > 0) x = roll(x, padded[1] - shift, name + ".back.roll");
    if (padded != original) {
      x = net_.slice(x, 1, 0, original[1], name + ".crop.1");
      x = net_.slice(x, 2, 0, original[2], name + ".crop.2");
    }
    return x;
  }

  // Over x [samples, groups, area, channels].
  TensorId attention(TensorId x, int64_t heads, TensorId bias, const std::string& name) {
    const Shape sizes = net_.shape(x);
    const int64_t channels = sizes[3], width = head_size(channels, heads);
    const TensorId fused = net_.linear(x, checked_mul(3, channels), name + ".qkv");
    const auto parts = net_.split(fused, {channels, channels, channels}, 3, name + ".split");
    const auto split_heads = [&](TensorId part, const std::string& path) {
      part = net_.reshape(part, {sizes[0], sizes[1], sizes[2], heads, width}, path + ".split");
      part = net_.transpose(part, {0, 1, 3, 2, 4}, path + ".heads_first");
      return net_.reshape(part, {sizes[0], checked_mul(sizes[1], heads), sizes[2], width},
                          path + ".flat");
    };
    const TensorId q = split_heads(parts[0], name + ".query");
    const TensorId k = split_heads(parts[1], name + ".key");
    const TensorId v = split_heads(parts[2], name + ".value");
    const AttentionAttrs attrs{.scale = 1 / std::sqrt(static_cast<double>(width))};
    x = net_.attention(q, k, v, attrs, name, bias);
    x = net_.reshape(x, {sizes[0], sizes[1], heads, sizes[2], width}, name + ".groups");
    x = net_.transpose(x, {0, 1, 3, 2, 4}, name + ".heads_last");
    x = net_.reshape(x, sizes, name + ".merge");
    return net_.linear(x, channels, name + ".proj");
  }

  // A learned bias by relative position: row (dy + window - 1) (2 window - 1) + dx + window - 1 of
  // a table, spread to [heads, area, area].
  TensorId position_bias(int64_t heads, const std::string& name) {
    const int64_t area = window_ * window_, side = 2 * window_ - 1;
    if (!position_index_.valid()) {
      std::vector<double> index;
      for (int64_t i = 0; i < area; ++i) {
        for (int64_t j = 0; j < area; ++j) {
          const int64_t dy = i / window_ - j / window_, dx = i % window_ - j % window_;
          index.push_back(static_cast<double>((dy + window_ - 1) * side + dx + window_ - 1));
        }
      }
      position_index_ = net_.builder().constant("relative_position_index",
                                                {DType::I64, {area, area}}, std::move(index));
    }
    const std::string path = name + ".relative_position_bias";
    const TensorId table = net_.weight(path + "_table", {side * side, heads});
    return net_.transpose(net_.gather(table, position_index_, 0, path), {2, 0, 1},
                          path + ".heads_first");
  }

  // -100 between patches of a window that the roll brought together: [windows, 1, area, area]. Only
  // the last row and the last column of windows have any, so there are four kinds of windows.
  TensorId shift_mask(int64_t rows, int64_t columns, int64_t shift) {
    const auto [found, is_new] = masks_.try_emplace({rows, columns});
    if (!is_new) return found->second;
    const int64_t area = window_ * window_;
    const auto region = [&](int64_t kind, int64_t patch) {
      const int64_t below = kind / 2 == 1 && patch / window_ >= window_ - shift ? 2 : 0;
      return below + (kind % 2 == 1 && patch % window_ >= window_ - shift ? 1 : 0);
    };
    std::vector<double> values;
    for (int64_t kind = 0; kind < 4; ++kind)
      for (int64_t i = 0; i < area; ++i)
        for (int64_t j = 0; j < area; ++j)
          values.push_back(region(kind, i) == region(kind, j) ? 0 : -100);
    std::vector<double> kinds;
    for (int64_t row = 0; row < rows; ++row)
      for (int64_t column = 0; column < columns; ++column)
        kinds.push_back((row + 1 == rows ? 2 : 0) + (column + 1 == columns ? 1 : 0));
    const std::string name = fmt::format("shift_mask.{}x{}", rows, columns);
    GraphBuilder& builder = net_.builder();
    const TensorId table =
        builder.constant(name + ".kinds", {DType::F32, {4, 1, area, area}}, std::move(values));
    const TensorId index = builder.constant(
        name + ".index", {DType::I64, {checked_mul(rows, columns)}}, std::move(kinds));
    return found->second = net_.gather(table, index, 0, name);
  }

  Layers net_;
  const ZooParameters& p_;
  int64_t batch_, window_;
  TensorId position_index_;
  std::map<std::pair<int64_t, int64_t>, TensorId> masks_;
};

ZooPreset preset(const std::string& size, int64_t embed, int64_t depth3, const std::string& alias) {
  return {.name = "swin-" + size,
          .parameters = {{"depth3", depth3}, {"embed", embed}},
          .aliases = {alias}};
}

}  // namespace

ZooFamily zoo_swin() {
  return {.name = "swin",
          .description = "Swin Transformer (Liu et al. 2021, torchvision)",
          .defaults = {{"batch", 1},
                       {"classes", 1000},
                       {"depth1", 2},
                       {"depth2", 2},
                       {"depth3", 6},
                       {"depth4", 2},
                       {"embed", 96},
                       {"heads", 0},
                       {"image", 224},
                       {"window", 7}},
          .presets = {preset("t", 96, 6, "swin-tiny"), preset("s", 96, 18, "swin-small"),
                      preset("b", 128, 18, "swin-base"), preset("l", 192, 18, "swin-large")},
          .build = [](const std::string& name, const ZooParameters& p) {
            return Swin(name, p).build();
          }};
}

}  // namespace windlass
