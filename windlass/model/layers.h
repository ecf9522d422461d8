// Layers in the sense of torch.nn: ops with the weights they need, named as PyTorch names them.
//
// `name` is the module path; weights become `name.weight`, `name.bias`, ... A function whose
// weights already exist under that name uses them again (shared weights).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "windlass/graph/builder.h"

namespace windlass {

struct ConvOptions {
  Ints stride = {1, 1};
  Ints padding = {0, 0};
  Ints dilation = {1, 1};
  int64_t groups = 1;
  bool bias = true;
  bool transposed = false;
  Ints output_padding = {0, 0};
};

struct PoolOptions {
  Ints stride = {};  // empty: the kernel
  Ints padding = {0, 0};
  bool ceil_mode = false;
  bool count_include_pad = true;
};

class Layers {
 public:
  explicit Layers(std::string model_name) : builder_(std::move(model_name)) {}

  GraphBuilder& builder() { return builder_; }
  const Shape& shape(TensorId x) const { return builder_.shape(x); }
  // Size of an axis; negative axes count from the end.
  int64_t dim(TensorId x, int64_t axis) const;

  TensorId image_input(int64_t batch, int64_t channels, int64_t height, int64_t width);
  TensorId token_input(const std::string& name, int64_t batch, int64_t sequence);

  // The weight of that exact name, made on first use. Asking again with another shape is a bug.
  TensorId weight(const std::string& name, Shape shape);

  // --- layers with weights
  TensorId linear(TensorId x, int64_t out_features, const std::string& name, bool bias = true);
  // As GPT-2's Conv1D: weight stored [in, out].
  TensorId linear_input_major(TensorId x, int64_t out_features, const std::string& name,
                              bool bias = true);
  TensorId conv(TensorId x, int64_t out_channels, Ints kernel, const std::string& name,
                const ConvOptions& options = {});
  TensorId batch_norm(TensorId x, const std::string& name, double epsilon = 1e-5);
  TensorId layer_norm(TensorId x, const std::string& name, double epsilon = 1e-5, bool bias = true);
  TensorId rms_norm(TensorId x, const std::string& name, double epsilon = 1e-6,
                    double scale_offset = 0);
  TensorId embedding(TensorId ids, int64_t count, int64_t width, const std::string& name);
  // Rows of a `table` [count, width] made elsewhere.
  TensorId embedding_with(TensorId ids, TensorId table, const std::string& name);
  // Linear over weights made elsewhere: `matrix` [out, in], `bias` [out] or none.
  TensorId linear_with(TensorId x, TensorId matrix, TensorId bias, const std::string& name);
  // y [s, b, D h] of one LSTM layer over x [s, b, i]; weights named as torch.nn.LSTM does not: one
  // tensor per matrix, `name.weight_ih`, `name.weight_hh`, `name.bias`.
  TensorId lstm(TensorId x, int64_t hidden, const std::string& name, bool bidirectional = false);

  // --- layers without
  TensorId unary(TensorId x, UnaryFn fn, const std::string& name, double alpha = 0,
                 double beta = 0);
  TensorId relu(TensorId x, const std::string& name) { return unary(x, UnaryFn::Relu, name); }
  TensorId binary(BinaryFn fn, TensorId a, TensorId b, const std::string& name);
  TensorId add(TensorId a, TensorId b, const std::string& name) {
    return binary(BinaryFn::Add, a, b, name);
  }
  TensorId mul(TensorId a, TensorId b, const std::string& name) {
    return binary(BinaryFn::Mul, a, b, name);
  }
  // Multiplies by a number; nothing is added to the graph for 1.
  TensorId scale(TensorId x, double factor, const std::string& name);
  TensorId dropout(TensorId x, double ratio, const std::string& name);  // ratio 0: x itself
  TensorId max_pool(TensorId x, Ints kernel, const std::string& name, const PoolOptions& = {});
  TensorId average_pool(TensorId x, Ints kernel, const std::string& name, const PoolOptions& = {});
  TensorId global_average_pool(TensorId x, const std::string& name);  // [b, c, h, w] -> [b, c]
  TensorId softmax(TensorId x, int64_t axis, const std::string& name);
  TensorId matmul(TensorId a, TensorId b, const std::string& name, bool transpose_a = false,
                  bool transpose_b = false);
  TensorId reshape(TensorId x, Shape shape, const std::string& name);
  TensorId transpose(TensorId x, Ints order, const std::string& name);
  TensorId concat(std::vector<TensorId> parts, int64_t axis, const std::string& name);
  std::vector<TensorId> split(TensorId x, Ints sizes, int64_t axis, const std::string& name);
  // Indices [begin, end) of an axis.
  TensorId slice(TensorId x, int64_t axis, int64_t begin, int64_t end, const std::string& name);
  // Rows of x along `axis` picked by integer `indices`.
  TensorId gather(TensorId x, TensorId indices, int64_t axis, const std::string& name);
  TensorId expand(TensorId x, Shape shape, const std::string& name);
  TensorId reduce(TensorId x, ReduceFn fn, Ints axes, bool keep_dims, const std::string& name);
  // [b, s, heads d] -> [b, heads, s, d] and back.
  TensorId split_heads(TensorId x, int64_t heads, const std::string& name);
  TensorId merge_heads(TensorId x, const std::string& name);
  TensorId rotary(TensorId x, const RotaryAttrs& attrs, const std::string& name);
  TensorId attention(TensorId q, TensorId k, TensorId v, const AttentionAttrs& attrs,
                     const std::string& name, TensorId mask = {});

  // Marks the output, attaches the loss, and hands the graph over.
  Graph finish_cross_entropy(TensorId logits);
  Graph finish_mean_squared_error(TensorId prediction);

 private:
  GraphBuilder builder_;
  std::unordered_map<std::string, TensorId> weights_;
};

}  // namespace windlass
