// Import rules: convolution, pooling, normalisation, softmax, recurrent layers, attention, losses.

#include <algorithm>
#include <cmath>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// --- windows

struct Window {
  Ints kernel, stride, dilation, begin, end;
};

// Strides, dilations and padding with ONNX's defaults; auto_pad resolved from the input size.
Window read_window(NodeContext& c, Ints kernel, bool transposed = false) {
  const size_t n = kernel.size();
  if (c.rank(0) != n + 2)
    fail_input("kernel {} does not fit input {}", format_shape(kernel), format_shape(c.shape(0)));
  Window w{kernel, c.ints_attr("strides", Ints(n, 1)), c.ints_attr("dilations", Ints(n, 1)),
           Ints(n), Ints(n)};
  const Ints pads = c.ints_attr("pads", Ints(2 * n));
  if (w.stride.size() != n || w.dilation.size() != n || pads.size() != 2 * n)
    fail_input("strides, dilations and pads need {0}, {0} and {1} entries", n, 2 * n);
  for (size_t i = 0; i < n; ++i) {
    if (w.stride[i] < 1 || w.dilation[i] < 1 || kernel[i] < 1)
      fail_input("kernel {}, strides {} and dilations {} must be positive", format_shape(kernel),
                 format_shape(w.stride), format_shape(w.dilation));
    w.begin[i] = pads[i];
    w.end[i] = pads[n + i];
  }
  const std::string auto_pad = c.string_attr("auto_pad", "NOTSET");
  if (auto_pad == "NOTSET" || auto_pad.empty()) return w;
  for (size_t i = 0; i < n; ++i) {
    int64_t total = 0;
    if (auto_pad == "SAME_UPPER" || auto_pad == "SAME_LOWER") {
      const int64_t extent = checked_add(checked_mul(kernel[i] - 1, w.dilation[i]), 1);
      const int64_t size = c.shape(0)[i + 2];
      const int64_t last = checked_mul(ceil_div(size, w.stride[i]) - 1, w.stride[i]);
      total = std::max<int64_t>(
          0, transposed ? extent - w.stride[i] : checked_add(last, extent) - size);
    } else if (auto_pad != "VALID") {
      fail_input("auto_pad is \"{}\"", auto_pad);
    }
    w.begin[i] = auto_pad == "SAME_LOWER" ? total - total / 2 : total / 2;
    w.end[i] = total - w.begin[i];
  }
  return w;
}

Ints kernel_of_weight(NodeContext& c) {
  const Shape w = c.shape(1);
  if (w.size() < 3) fail_input("weight has shape {}, expected a kernel", format_shape(w));
  return Ints(w.begin() + 2, w.end());
}

void conv(NodeContext& c) {
  const Window w = read_window(c, kernel_of_weight(c));
  const ConvAttrs attrs{.stride = w.stride,
                        .dilation = w.dilation,
                        .pad_begin = w.begin,
                        .pad_end = w.end,
                        .output_padding = {},
                        .groups = c.int_attr("group", 1)};
  OnnxImporter& importer = c.importer();
  if (c.has(1) && c.has(2) && importer.restores_batch_norm(c.in(1), c.in(2))) {
    const TensorId bias = importer.restore_convolution_bias(c.in(2), c.name());
    const TensorId y = c.emit(OpKind::Conv, attrs, {c.in(0), c.in(1), bias}, "conv");
    c.out(0, importer.restore_batch_norm(y, c.in(2), c.name()));
    return;
  }
  c.out(0, c.emit(OpKind::Conv, attrs, {c.in(0), c.in(1), c.in(2)}));
}

void conv_transpose(NodeContext& c) {
  Window w = read_window(c, kernel_of_weight(c), true);
  const size_t n = w.kernel.size();
  Ints extra = c.ints_attr("output_padding", Ints(n));
  if (extra.size() != n) fail_input("output_padding needs {} entries", n);
  if (c.has_attr("output_shape")) {
    Ints size = c.ints_attr("output_shape", {});
    if (size.size() == n + 2) size.erase(size.begin(), size.begin() + 2);
    if (size.size() != n) fail_input("output_shape needs {} entries", n);
    for (size_t i = 0; i < n; ++i) {
      const int64_t span = checked_mul(w.stride[i], c.shape(0)[i + 2] - 1);
      const int64_t extent = checked_add(checked_mul(w.kernel[i] - 1, w.dilation[i]), 1);
      const int64_t total = checked_sub(checked_add(checked_add(span, extent), extra[i]), size[i]);
      w.begin[i] = total / 2;
      w.end[i] = total - total / 2;
    }
  }
  c.out(0, c.emit(OpKind::Conv,
                  ConvAttrs{.stride = w.stride,
                            .dilation = w.dilation,
                            .pad_begin = w.begin,
                            .pad_end = w.end,
                            .output_padding = extra,
                            .groups = c.int_attr("group", 1),
                            .transposed = true},
                  {c.in(0), c.in(1), c.in(2)}));
}

void pool(NodeContext& c, PoolFn fn) {
  const Window w = read_window(c, c.ints_attr("kernel_shape", {}));
  if (fn == PoolFn::Max && c.wants(1))
    fail_unsupported("the indices of max pooling as an output of the model");
  c.out(0,
        c.emit(OpKind::Pool,
               PoolAttrs{fn, w.kernel, w.stride, w.dilation, w.begin, w.end,
                         c.int_attr("ceil_mode", 0) != 0, c.int_attr("count_include_pad", 0) != 0},
               {c.in(0)}));
}
void max_pool(NodeContext& c) { pool(c, PoolFn::Max); }
void average_pool(NodeContext& c) { pool(c, PoolFn::Average); }

template <ReduceFn fn>
void global_pool(NodeContext& c) {
  Ints axes;
  for (size_t i = 2; i < c.rank(0); ++i) axes.push_back(static_cast<int64_t>(i));
  c.out(0, c.emit(OpKind::Reduce, ReduceAttrs{fn, axes, true}, {c.in(0)}));
}

// Resize and the older Upsample: sizes, or scales of the sizes, of all axes.
void resize(NodeContext& c) {
  const bool upsample = c.node().op_type == "Upsample";
  const size_t scales_input = upsample ? 1 : c.opset() < 11 ? 1 : 2;
  const Shape x = c.shape(0);
  if (x.size() < 3) fail_unsupported("input {} has no spatial axes", format_shape(x));
  std::vector<double> scales;
  if (c.has_attr("scales"))
    scales = c.attr("scales")->floats;
  else if (c.has(scales_input))
    scales = c.required_constant(scales_input, "the scale");
  Ints axes = c.ints_attr("axes", {});
  if (axes.empty())
    for (size_t i = 0; i < x.size(); ++i) axes.push_back(static_cast<int64_t>(i));
  Shape size = x;
  if (!scales.empty()) {
    if (scales.size() != axes.size())
      fail_input("{} scales for {} axes", scales.size(), axes.size());
    for (size_t i = 0; i < axes.size(); ++i) {
      const size_t axis = normalize_axis(axes[i], x.size());
      if (!(scales[i] > 0 && scales[i] < 1e6)) fail_input("scale {} is out of range", scales[i]);
      size[axis] = checked_int(std::floor(static_cast<double>(x[axis]) * scales[i]));
    }
  } else {
    const Ints sizes = c.required_ints(3, "the size");
    if (sizes.size() != axes.size()) fail_input("{} sizes for {} axes", sizes.size(), axes.size());
    for (size_t i = 0; i < axes.size(); ++i) size[normalize_axis(axes[i], x.size())] = sizes[i];
  }
  if (size[0] != x[0] || size[1] != x[1]) fail_unsupported("resizing batch or channel");
  const std::string mode = c.string_attr("mode", "nearest");
  if (mode != "nearest" && mode != "linear")
    fail_unsupported("mode \"{}\"; use nearest or linear", mode);
  const std::string coordinates = c.string_attr(
      "coordinate_transformation_mode", upsample || c.opset() < 11 ? "asymmetric" : "half_pixel");
  ResizeCoordinates kind = ResizeCoordinates::HalfPixel;
  if (coordinates == "align_corners")
    kind = ResizeCoordinates::AlignCorners;
  else if (coordinates == "asymmetric")
    kind = ResizeCoordinates::Asymmetric;
  else if (coordinates != "half_pixel" && coordinates != "pytorch_half_pixel")
    fail_unsupported("coordinate_transformation_mode \"{}\"", coordinates);
  c.out(0, c.emit(OpKind::Resize,
                  ResizeAttrs{Ints(size.begin() + 2, size.end()),
                              mode == "nearest" ? ResizeMode::Nearest : ResizeMode::Linear, kind},
                  {c.in(0)}));
}

// --- normalisation

void batch_norm(NodeContext& c) {
  for (size_t i = 3; i < 5; ++i) c.importer().make_buffer(c.required(i));
  const bool training = c.int_attr("training_mode", 0) != 0 || c.output_count() > 1;
  if (!training)
    c.importer().note_once(
        "exported for inference: batch normalisation is trained with the statistics of the batch");
  // ONNX's momentum weighs the old statistics.
  c.out(0, c.emit(OpKind::BatchNorm,
                  BatchNormAttrs{c.float_attr("epsilon", 1e-5), 1 - c.float_attr("momentum", 0.9),
                                 true},
                  {c.in(0), c.in(1), c.in(2), c.in(3), c.in(4)}));
  // Updated running statistics are the buffers themselves.
  c.out(1, c.in(3));
  c.out(2, c.in(4));
  for (size_t i = 3; i < c.output_count(); ++i)
    if (c.wants(i))
      c.importer().withhold(c.node().outputs[i],
                            "reads the saved statistics of a batch normalisation");
}

// A scale of ones and a bias of zeros that the exporter put there itself are no parameters.
bool is_filler(NodeContext& c, size_t i, double value) {
  const TensorId id = c.required(i);
  const bool constant = c.builder().graph()[id].role == TensorRole::Constant;
  if (!constant && !c.importer().is_anonymous_initializer(id)) return false;
  const auto values = c.constant(i);
  return values &&
         std::all_of(values->begin(), values->end(), [&](double v) { return v == value; });
}

void instance_norm(NodeContext& c) {
  if (c.rank(0) < 3) fail_input("input has shape {}", format_shape(c.shape(0)));
  const bool plain = is_filler(c, 1, 1) && is_filler(c, 2, 0);
  const GroupNormAttrs attrs{c.shape(0)[1], c.float_attr("epsilon", 1e-5)};
  c.out(0, plain ? c.emit(OpKind::GroupNorm, attrs, {c.in(0)})
                 : c.emit(OpKind::GroupNorm, attrs, {c.in(0), c.in(1), c.in(2)}));
}

void group_norm(NodeContext& c) {
  const GroupNormAttrs attrs{c.int_attr("num_groups", 1), c.float_attr("epsilon", 1e-5)};
  if (c.rank(0) < 2) fail_input("input has shape {}", format_shape(c.shape(0)));
  // Opset 18 has one scale and bias per group, 21 one per channel.
  if (c.opset() >= 21 || c.shape(1) == Shape{c.shape(0)[1]}) {
    c.out(0, c.emit(OpKind::GroupNorm, attrs, {c.in(0), c.in(1), c.in(2)}));
    return;
  }
  const int64_t channels = c.shape(0)[1];
  if (attrs.groups < 1 || channels % attrs.groups != 0)
    fail_input("{} channels do not divide into {} groups", channels, attrs.groups);
  const auto per_channel = [&](size_t i, const std::string& part) {
    const TensorId column = c.reshape(c.in(i), {attrs.groups, 1}, part + "_column");
    const TensorId wide =
        c.emit(OpKind::Expand, ShapeAttrs{{attrs.groups, channels / attrs.groups}}, {column},
               part + "_wide");
    return c.reshape(wide, {channels}, part);
  };
  c.out(0, c.emit(OpKind::GroupNorm, attrs,
                  {c.in(0), per_channel(1, "scale"), per_channel(2, "bias")}));
}

void layer_norm(NodeContext& c) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", -1), c.rank(0)));
  for (size_t i = 1; i < c.output_count(); ++i)
    if (c.wants(i)) fail_unsupported("mean and deviation of layer normalisation as outputs");
  c.out(0, c.emit(OpKind::LayerNorm, LayerNormAttrs{axis, c.float_attr("epsilon", 1e-5), 0},
                  {c.in(0), c.in(1), c.in(2)}));
}

void rms_norm(NodeContext& c) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", -1), c.rank(0)));
  c.out(0, c.emit(OpKind::RmsNorm, LayerNormAttrs{axis, c.float_attr("epsilon", 1e-5), 0},
                  {c.in(0), c.in(1)}));
}

void lrn(NodeContext& c) {
  c.out(0, c.emit(OpKind::LocalResponseNorm,
                  LrnAttrs{c.int_attr("size", 1), c.float_attr("alpha", 1e-4),
                           c.float_attr("beta", 0.75), c.float_attr("bias", 1)},
                  {c.in(0)}));
}

void lp_normalization(NodeContext& c) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", -1), c.rank(0)));
  const ReduceFn fn = c.int_attr("p", 2) == 1 ? ReduceFn::L1 : ReduceFn::L2;
  const TensorId norm = c.emit(OpKind::Reduce, ReduceAttrs{fn, {axis}, true}, {c.in(0)}, "norm");
  c.out(0, c.binary(BinaryFn::Div, c.in(0), norm));
}

// --- softmax and attention

// Before opset 13 softmax runs over all axes from `axis` on, flattened.
void softmax(NodeContext& c, bool log) {
  const size_t rank = c.rank(0);
  if (rank == 0) fail_input("softmax of a scalar");
  const size_t axis = normalize_axis(c.int_attr("axis", c.opset() < 13 ? 1 : -1), rank);
  const auto last = static_cast<int64_t>(rank) - 1;
  if (c.opset() >= 13 || static_cast<int64_t>(axis) == last) {
    c.out(0, c.emit(OpKind::Softmax, SoftmaxAttrs{static_cast<int64_t>(axis), log}, {c.in(0)}));
    return;
  }
  const Shape shape = c.shape(0);
  int64_t rows = 1, columns = 1;
  for (size_t i = 0; i < rank; ++i)
    (i < axis ? rows : columns) = checked_mul(i < axis ? rows : columns, shape[i]);
  const TensorId flat = c.reshape(c.in(0), {rows, columns}, "flat");
  const TensorId y = c.emit(OpKind::Softmax, SoftmaxAttrs{1, log}, {flat}, "rows");
  c.out(0, c.reshape(y, shape));
}
void plain_softmax(NodeContext& c) { softmax(c, false); }
void log_softmax(NodeContext& c) { softmax(c, true); }

// ONNX Attention (opset 23): operands [b, heads, s, d], or [b, s, heads d] with head counts given.
void attention(NodeContext& c) {
  for (size_t i = 4; i < c.input_count(); ++i)
    if (c.has(i)) fail_unsupported("attention with past keys and values: export without a cache");
  for (size_t i = 1; i < c.output_count(); ++i)
    if (c.wants(i)) fail_unsupported("attention's keys, values or scores as outputs");
  if (c.float_attr("softcap", 0) != 0) fail_unsupported("attention with softcap");
  const bool flat = c.rank(0) == 3;
  if (!flat && c.rank(0) != 4)
    fail_input("query has shape {}, expected 3 or 4 dimensions", format_shape(c.shape(0)));
  const auto heads = [&](size_t i, const std::string& count) {
    if (!flat) return c.in(i);
    const Shape shape = c.shape(i);
    const int64_t n = c.int_attr(count, 0);
    if (n < 1 || shape.size() != 3 || shape[2] % n != 0)
      fail_input("input {} of shape {} does not divide into {} heads", i, format_shape(shape), n);
    const TensorId split =
        c.reshape(c.in(i), {shape[0], shape[1], n, shape[2] / n}, "split" + std::to_string(i));
    return c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {split},
                  "heads" + std::to_string(i));
  };
  const TensorId q = heads(0, "q_num_heads"), k = heads(1, "kv_num_heads"),
                 v = heads(2, "kv_num_heads");
  const auto depth = static_cast<double>(c.builder().shape(q).back());
  AttentionAttrs attrs{.scale = c.float_attr("scale", 1 / std::sqrt(depth)),
                       .causal = c.int_attr("is_causal", 0) != 0};
  TensorId mask = c.in(3);
  if (mask.valid() && c.type(3).dtype == DType::Bool) {
    const DType dtype = c.type(0).dtype;
    const TensorId zero = c.builder().scalar(0, dtype), low = c.builder().scalar(-HUGE_VAL, dtype);
    mask = c.emit(OpKind::Where, NoAttrs{}, {mask, zero, low}, "mask");
  }
  TensorId y = c.emit(OpKind::Attention, attrs, {q, k, v, mask}, flat ? "attention" : "");
  if (flat) {
    const Shape shape = c.builder().shape(y);
    y = c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, "merged");
    y = c.reshape(y, {shape[0], shape[2], checked_mul(shape[1], shape[3])});
  }
  c.out(0, y);
}

// ONNX RotaryEmbedding (opset 23) by its definition: pairs (x1, x2) of the first `dims` become
// (x1 cos - x2 sin, x1 sin + x2 cos), cosines and sines looked up by position.
void rotary_embedding(NodeContext& c) {
  const bool flat = c.rank(0) == 3;
  const Shape in = c.shape(0);
  TensorId x = c.in(0);
  if (flat) {
    const int64_t heads = c.int_attr("num_heads", 0);
    if (heads < 1 || in[2] % heads != 0)
      fail_input("input {} does not divide into {} heads", format_shape(in), heads);
    x = c.reshape(x, {in[0], in[1], heads, in[2] / heads}, "split");
    x = c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {x}, "heads");
  }
  const Shape shape = c.builder().shape(x);
  if (shape.size() != 4) fail_input("input has shape {}", format_shape(in));
  const int64_t given = c.int_attr("rotary_embedding_dim", 0);
  const int64_t dims = given > 0 ? given : shape[3];
  if (dims % 2 != 0 || dims > shape[3])
    fail_input("cannot rotate {} of {} dimensions", dims, shape[3]);
  const auto table = [&](size_t i, const std::string& part) {
    TensorId values = c.required(i);
    if (c.has(3)) values = c.emit(OpKind::Gather, AxisAttrs{0}, {values, c.in(3)}, part + ".rows");
    const Shape rows = c.builder().shape(values);
    if (rows.size() != 3 || rows[2] != dims / 2)
      fail_input("table {} has shape {}, expected [batch, sequence, {}]", i, format_shape(rows),
                 dims / 2);
    return c.reshape(values, {rows[0], 1, rows[1], rows[2]}, part);
  };
  const TensorId cosine = table(1, "cos"), sine = table(2, "sin");
  const auto part_of = [&](TensorId from, int64_t start, int64_t size, int64_t step,
                           const std::string& part) {
    SliceAttrs attrs{{0, 0, 0, start}, {1, 1, 1, step}, {shape[0], shape[1], shape[2], size}};
    return c.emit(OpKind::Slice, attrs, {from}, part);
  };
  const bool interleaved = c.int_attr("interleaved", 0) != 0;
  const int64_t half = dims / 2;
  const TensorId x1 = part_of(x, 0, half, interleaved ? 2 : 1, "x1");
  const TensorId x2 = part_of(x, interleaved ? 1 : half, half, interleaved ? 2 : 1, "x2");
  const auto product = [&](TensorId a, TensorId b, const std::string& part) {
    return c.binary(BinaryFn::Mul, a, b, part);
  };
  TensorId y1 =
      c.binary(BinaryFn::Sub, product(x1, cosine, "x1cos"), product(x2, sine, "x2sin"), "y1");
  TensorId y2 =
      c.binary(BinaryFn::Add, product(x1, sine, "x1sin"), product(x2, cosine, "x2cos"), "y2");
  TensorId y;
  if (interleaved) {
    const Shape column = {shape[0], shape[1], shape[2], half, 1};
    y = c.emit(OpKind::Concat, AxisAttrs{4},
               {c.reshape(y1, column, "column1"), c.reshape(y2, column, "column2")}, "pairs");
    y = c.reshape(y, {shape[0], shape[1], shape[2], dims}, "rotated");
  } else {
    y = c.emit(OpKind::Concat, AxisAttrs{3}, {y1, y2}, "rotated");
  }
  if (dims < shape[3])
    y = c.emit(OpKind::Concat, AxisAttrs{3}, {y, part_of(x, dims, shape[3] - dims, 1, "rest")},
               "joined");
  if (flat) {
    y = c.emit(OpKind::Transpose, TransposeAttrs{{0, 2, 1, 3}}, {y}, "merged");
    y = c.reshape(y, in, "flat");
  }
  c.out(0, y);
}

// --- recurrent

void recurrent(NodeContext& c, OpKind kind) {
  const std::string direction = c.string_attr("direction", "forward");
  RecurrentAttrs attrs{.hidden = c.int_attr("hidden_size", 0),
                       .bidirectional = direction == "bidirectional",
                       .reverse = direction == "reverse",
                       .linear_before_reset = c.int_attr("linear_before_reset", 0) != 0,
                       .gates = GateOrder::Onnx};
  if (c.has_attr("activations") || c.has_attr("clip") || c.int_attr("input_forget", 0) != 0) {
    const auto* given = c.attr("activations");
    static const std::vector<std::string> kLstm = {"Sigmoid", "Tanh", "Tanh"},
                                          kGru = {"Sigmoid", "Tanh"};
    const auto& usual = kind == OpKind::Lstm ? kLstm : kGru;
    bool standard = given && !c.has_attr("clip") && c.int_attr("input_forget", 0) == 0;
    for (size_t i = 0; standard && i < given->strings.size(); ++i)
      standard = given->strings[i] == usual[i % usual.size()];
    if (!standard)
      fail_unsupported("a recurrent layer with other activations, clipping or coupled gates");
  }
  if (c.int_attr("layout", 0) != 0) fail_unsupported("layout 1; export with the sequence first");
  if (c.has(7)) fail_unsupported("peephole connections");
  if (c.has(4)) {
    const auto lengths = c.constant(4);
    const double steps = c.rank(0) > 0 ? static_cast<double>(c.shape(0)[0]) : 0;
    const bool full = lengths && std::all_of(lengths->begin(), lengths->end(),
                                             [&](double v) { return v == steps; });
    if (!full) fail_unsupported("sequences of different lengths in a batch: pad them in the model");
  }
  std::vector<TensorId> inputs = {c.in(0), c.in(1), c.in(2), c.in(3), c.in(5)};
  if (kind == OpKind::Lstm) inputs.push_back(c.in(6));
  const auto outputs = c.emit_all(kind, attrs, inputs);
  for (size_t i = 0; i < outputs.size(); ++i) c.out(i, outputs[i]);
}
void lstm(NodeContext& c) { recurrent(c, OpKind::Lstm); }
void gru(NodeContext& c) { recurrent(c, OpKind::Gru); }

// --- losses

void mean_loss(NodeContext& c, TensorId logits) {
  if (c.has(2)) fail_unsupported("class weights in the loss");
  if (c.string_attr("reduction", "mean") != "mean")
    fail_unsupported("reduction \"{}\" of the loss; use mean", c.string_attr("reduction", "mean"));
  const int64_t ignore = c.int_attr("ignore_index", -100);
  c.out(0, c.emit(OpKind::CrossEntropy, CrossEntropyAttrs{1, ignore}, {logits, c.in(1)}));
}

void softmax_cross_entropy(NodeContext& c) {
  if (c.wants(1))
    c.out(1, c.emit(OpKind::Softmax, SoftmaxAttrs{1, true}, {c.in(0)}, "log_softmax"));
  mean_loss(c, c.in(0));
}

void negative_log_likelihood(NodeContext& c) {
  const Graph& graph = c.builder().graph();
  const OpId producer = graph[c.required(0)].producer;
  const bool log_softmax_before = producer.valid() && graph[producer].kind == OpKind::Softmax &&
                                  std::get<SoftmaxAttrs>(graph[producer].attrs).log &&
                                  std::get<SoftmaxAttrs>(graph[producer].attrs).axis == 1;
  if (!log_softmax_before)
    fail_unsupported("a negative log likelihood that does not follow LogSoftmax over axis 1");
  mean_loss(c, graph[producer].inputs[0]);
}

}  // namespace

void add_network_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Attention", attention},
      {"AveragePool", average_pool},
      {"BatchNormalization", batch_norm},
      {"Conv", conv},
      {"ConvTranspose", conv_transpose},
      {"GRU", gru},
      {"GlobalAveragePool", global_pool<ReduceFn::Mean>},
      {"GlobalMaxPool", global_pool<ReduceFn::Max>},
      {"GroupNormalization", group_norm},
      {"InstanceNormalization", instance_norm},
      {"LRN", lrn},
      {"LSTM", lstm},
      {"LayerNormalization", layer_norm},
      {"LogSoftmax", log_softmax},
      {"LpNormalization", lp_normalization},
      {"MaxPool", max_pool},
      {"NegativeLogLikelihoodLoss", negative_log_likelihood},
      {"RMSNormalization", rms_norm},
      {"Resize", resize},
      {"RotaryEmbedding", rotary_embedding},
      {"Softmax", plain_softmax},
      {"SoftmaxCrossEntropyLoss", softmax_cross_entropy},
      {"Upsample", resize},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
