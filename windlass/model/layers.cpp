#include "windlass/model/layers.h"

#include <utility>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"

namespace windlass {

int64_t Layers::dim(TensorId x, int64_t axis) const {
  const Shape& sizes = shape(x);
  return sizes[normalize_axis(axis, sizes.size())];
}

TensorId Layers::image_input(int64_t batch, int64_t channels, int64_t height, int64_t width) {
  return builder_.input("image", {DType::F32, {batch, channels, height, width}});
}

TensorId Layers::token_input(const std::string& name, int64_t batch, int64_t sequence) {
  return builder_.input(name, {DType::I64, {batch, sequence}});
}

TensorId Layers::weight(const std::string& name, Shape shape) {
  if (const auto found = weights_.find(name); found != weights_.end()) {
    ensure(builder_.shape(found->second) == shape, "shared weight asked for with another shape");
    return found->second;
  }
  element_count(shape);  // refuses sizes that overflow
  const TensorId id = builder_.weight(name, {DType::F32, std::move(shape)});
  weights_.emplace(name, id);
  return id;
}

TensorId Layers::linear(TensorId x, int64_t out_features, const std::string& name, bool bias) {
  const TensorId matrix = weight(name + ".weight", {out_features, dim(x, -1)});
  return linear_with(x, matrix, bias ? weight(name + ".bias", {out_features}) : TensorId(), name);
}

TensorId Layers::linear_input_major(TensorId x, int64_t out_features, const std::string& name,
                                    bool bias) {
  std::vector<TensorId> inputs = {x, weight(name + ".weight", {dim(x, -1), out_features})};
  if (bias) inputs.push_back(weight(name + ".bias", {out_features}));
  return builder_.op(OpKind::Linear, LinearAttrs{.input_major = true}, std::move(inputs), name);
}

TensorId Layers::linear_with(TensorId x, TensorId matrix, TensorId bias, const std::string& name) {
  std::vector<TensorId> inputs = {x, matrix};
  if (bias.valid()) inputs.push_back(bias);
  return builder_.op(OpKind::Linear, LinearAttrs{}, std::move(inputs), name);
}

TensorId Layers::conv(TensorId x, int64_t out_channels, Ints kernel, const std::string& name,
                      const ConvOptions& options) {
  const int64_t in_channels = dim(x, 1);
  if (options.groups < 1 || in_channels % options.groups != 0 || out_channels % options.groups != 0)
    fail_input("{}: {} input and {} output channels cannot be split into {} groups", name,
               in_channels, out_channels, options.groups);
  Shape matrix = options.transposed ? Shape{in_channels, out_channels / options.groups}
                                    : Shape{out_channels, in_channels / options.groups};
  matrix.insert(matrix.end(), kernel.begin(), kernel.end());
  std::vector<TensorId> inputs = {x, weight(name + ".weight", std::move(matrix))};
  if (options.bias) inputs.push_back(weight(name + ".bias", {out_channels}));
  ConvAttrs attrs{.stride = options.stride,
                  .dilation = options.dilation,
                  .pad_begin = options.padding,
                  .pad_end = options.padding,
                  .output_padding = options.output_padding,
                  .groups = options.groups,
                  .transposed = options.transposed};
  return builder_.op(OpKind::Conv, std::move(attrs), std::move(inputs), name);
}

TensorId Layers::batch_norm(TensorId x, const std::string& name, double epsilon) {
  const int64_t channels = dim(x, 1);
  const auto buffer = [&](const std::string& buffer_name) {
    const auto [found, is_new] = weights_.try_emplace(buffer_name);
    if (is_new) found->second = builder_.buffer(buffer_name, {DType::F32, {channels}});
    return found->second;
  };
  const TensorId scale = weight(name + ".weight", {channels});
  const TensorId bias = weight(name + ".bias", {channels});
  const TensorId mean = buffer(name + ".running_mean");
  const TensorId variance = buffer(name + ".running_var");
  return builder_.op(OpKind::BatchNorm, BatchNormAttrs{.epsilon = epsilon},
                     {x, scale, bias, mean, variance}, name);
}

TensorId Layers::layer_norm(TensorId x, const std::string& name, double epsilon, bool bias) {
  const int64_t width = dim(x, -1);
  const auto axis = static_cast<int64_t>(shape(x).size()) - 1;
  std::vector<TensorId> inputs = {x, weight(name + ".weight", {width})};
  if (bias) inputs.push_back(weight(name + ".bias", {width}));
  return builder_.op(OpKind::LayerNorm, LayerNormAttrs{.axis = axis, .epsilon = epsilon},
                     std::move(inputs), name);
}

TensorId Layers::rms_norm(TensorId x, const std::string& name, double epsilon,
                          double scale_offset) {
  const auto axis = static_cast<int64_t>(shape(x).size()) - 1;
  return builder_.op(OpKind::RmsNorm,
                     LayerNormAttrs{.axis = axis, .epsilon = epsilon, .scale_offset = scale_offset},
                     {x, weight(name + ".weight", {dim(x, -1)})}, name);
}

TensorId Layers::embedding(TensorId ids, int64_t count, int64_t width, const std::string& name) {
  return embedding_with(ids, weight(name + ".weight", {count, width}), name);
}

TensorId Layers::embedding_with(TensorId ids, TensorId table, const std::string& name) {
  return builder_.op(OpKind::Embedding, NoAttrs{}, {ids, table}, name);
}

TensorId Layers::lstm(TensorId x, int64_t hidden, const std::string& name, bool bidirectional) {
  const int64_t directions = bidirectional ? 2 : 1;
  const int64_t gates = checked_mul(4, hidden);
  const int64_t steps = dim(x, 0), batch = dim(x, 1);
  const TensorId from_input = weight(name + ".weight_ih", {directions, gates, dim(x, 2)});
  const TensorId from_state = weight(name + ".weight_hh", {directions, gates, hidden});
  const TensorId bias = weight(name + ".bias", {directions, checked_mul(2, gates)});
  TensorId y =
      builder_.op(OpKind::Lstm, RecurrentAttrs{.hidden = hidden, .bidirectional = bidirectional},
                  {x, from_input, from_state, bias}, name);
  if (bidirectional) y = transpose(y, {0, 2, 1, 3}, name + ".swap");
  return reshape(y, {steps, batch, checked_mul(directions, hidden)}, name + ".join");
}

TensorId Layers::unary(TensorId x, UnaryFn fn, const std::string& name, double alpha, double beta) {
  return builder_.op(OpKind::Unary, UnaryAttrs{.fn = fn, .alpha = alpha, .beta = beta}, {x}, name);
}

TensorId Layers::binary(BinaryFn fn, TensorId a, TensorId b, const std::string& name) {
  return builder_.op(OpKind::Binary, BinaryAttrs{.fn = fn}, {a, b}, name);
}

TensorId Layers::scale(TensorId x, double factor, const std::string& name) {
  return factor == 1 ? x : unary(x, UnaryFn::Affine, name, factor, 0);
}

TensorId Layers::dropout(TensorId x, double ratio, const std::string& name) {
  if (ratio == 0) return x;
  return builder_.op(OpKind::Dropout, DropoutAttrs{.ratio = ratio}, {x}, name);
}

namespace {

PoolAttrs pool_attrs(PoolFn fn, Ints kernel, const PoolOptions& options) {
  PoolAttrs attrs{.fn = fn,
                  .kernel = std::move(kernel),
                  .stride = options.stride,
                  .dilation = {},
                  .pad_begin = options.padding,
                  .pad_end = options.padding,
                  .ceil_mode = options.ceil_mode,
                  .count_include_pad = fn == PoolFn::Average && options.count_include_pad};
  if (attrs.stride.empty()) attrs.stride = attrs.kernel;
  attrs.dilation.assign(attrs.kernel.size(), 1);
  return attrs;
}

}  // namespace

TensorId Layers::max_pool(TensorId x, Ints kernel, const std::string& name,
                          const PoolOptions& options) {
  return builder_.op(OpKind::Pool, pool_attrs(PoolFn::Max, std::move(kernel), options), {x}, name);
}

TensorId Layers::average_pool(TensorId x, Ints kernel, const std::string& name,
                              const PoolOptions& options) {
  return builder_.op(OpKind::Pool, pool_attrs(PoolFn::Average, std::move(kernel), options), {x},
                     name);
}

TensorId Layers::global_average_pool(TensorId x, const std::string& name) {
  return reduce(x, ReduceFn::Mean, {2, 3}, false, name);
}

TensorId Layers::softmax(TensorId x, int64_t axis, const std::string& name) {
  const auto from_front = static_cast<int64_t>(normalize_axis(axis, shape(x).size()));
  return builder_.op(OpKind::Softmax, SoftmaxAttrs{.axis = from_front}, {x}, name);
}

TensorId Layers::matmul(TensorId a, TensorId b, const std::string& name, bool transpose_a,
                        bool transpose_b) {
  return builder_.op(OpKind::MatMul,
                     MatMulAttrs{.transpose_a = transpose_a, .transpose_b = transpose_b}, {a, b},
                     name);
}

TensorId Layers::reshape(TensorId x, Shape shape, const std::string& name) {
  return builder_.op(OpKind::Reshape, ShapeAttrs{.shape = std::move(shape)}, {x}, name);
}

TensorId Layers::transpose(TensorId x, Ints order, const std::string& name) {
  return builder_.op(OpKind::Transpose, TransposeAttrs{.order = std::move(order)}, {x}, name);
}

TensorId Layers::concat(std::vector<TensorId> parts, int64_t axis, const std::string& name) {
  ensure(!parts.empty(), "concatenation of nothing");
  const auto from_front = static_cast<int64_t>(normalize_axis(axis, shape(parts[0]).size()));
  return builder_.op(OpKind::Concat, AxisAttrs{.axis = from_front}, std::move(parts), name);
}

std::vector<TensorId> Layers::split(TensorId x, Ints sizes, int64_t axis, const std::string& name) {
  const auto from_front = static_cast<int64_t>(normalize_axis(axis, shape(x).size()));
  return builder_.add(OpKind::Split, SplitAttrs{.axis = from_front, .sizes = std::move(sizes)}, {x},
                      name);
}

TensorId Layers::slice(TensorId x, int64_t axis, int64_t begin, int64_t end,
                       const std::string& name) {
  Shape size = shape(x);
  const size_t sliced = normalize_axis(axis, size.size());
  if (begin < 0 || begin >= end || end > size[sliced])
    fail_input("{}: no indices [{}, {}) on an axis of {}", name, begin, end, size[sliced]);
  SliceAttrs attrs{.start = Ints(size.size(), 0), .step = Ints(size.size(), 1), .size = size};
  attrs.start[sliced] = begin;
  attrs.size[sliced] = end - begin;
  return builder_.op(OpKind::Slice, std::move(attrs), {x}, name);
}

TensorId Layers::gather(TensorId x, TensorId indices, int64_t axis, const std::string& name) {
  const auto from_front = static_cast<int64_t>(normalize_axis(axis, shape(x).size()));
  return builder_.op(OpKind::Gather, AxisAttrs{.axis = from_front}, {x, indices}, name);
}

TensorId Layers::expand(TensorId x, Shape shape, const std::string& name) {
  return builder_.op(OpKind::Expand, ShapeAttrs{.shape = std::move(shape)}, {x}, name);
}

TensorId Layers::reduce(TensorId x, ReduceFn fn, Ints axes, bool keep_dims,
                        const std::string& name) {
  return builder_.op(OpKind::Reduce,
                     ReduceAttrs{.fn = fn, .axes = std::move(axes), .keep_dims = keep_dims}, {x},
                     name);
}

TensorId Layers::split_heads(TensorId x, int64_t heads, const std::string& name) {
  const int64_t width = dim(x, -1);
  if (heads < 1 || width % heads != 0)
    fail_input("{}: a width of {} cannot be split into {} heads", name, width, heads);
  const TensorId parts = reshape(x, {dim(x, 0), dim(x, 1), heads, width / heads}, name + ".split");
  return transpose(parts, {0, 2, 1, 3}, name + ".heads_first");
}

TensorId Layers::merge_heads(TensorId x, const std::string& name) {
  const Shape sizes = shape(x);
  const TensorId parts = transpose(x, {0, 2, 1, 3}, name + ".heads_last");
  return reshape(parts, {sizes[0], sizes[2], checked_mul(sizes[1], sizes[3])}, name + ".merge");
}

TensorId Layers::rotary(TensorId x, const RotaryAttrs& attrs, const std::string& name) {
  return builder_.op(OpKind::Rotary, attrs, {x}, name);
}

TensorId Layers::attention(TensorId q, TensorId k, TensorId v, const AttentionAttrs& attrs,
                           const std::string& name, TensorId mask) {
  std::vector<TensorId> inputs = {q, k, v};
  if (mask.valid()) inputs.push_back(mask);
  return builder_.op(OpKind::Attention, attrs, std::move(inputs), name);
}

Graph Layers::finish_cross_entropy(TensorId logits) {
  builder_.set_output(logits);
  builder_.set_loss(builder_.attach_cross_entropy(logits));
  return builder_.finish();
}

Graph Layers::finish_mean_squared_error(TensorId prediction) {
  builder_.set_output(prediction);
  builder_.set_loss(builder_.attach_mean_squared_error(prediction));
  return builder_.finish();
}

}  // namespace windlass
