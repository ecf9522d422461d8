// Import rules: normalisation and softmax.

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// --- normalisation

// What PyTorch's momentum of None leaves in a file: the first average over all batches is the
// first.
void note_cumulative(NodeContext& c) {
  c.importer().note_once(fmt::format(
      "batch normalisation \"{}\" has a momentum of 0, as PyTorch's None is exported: the running "
      "statistics become those of the last batch, where PyTorch averages over all",
      c.name()));
}

void batch_norm(NodeContext& c) {
  if (c.int_attr("spatial", 1) == 0)
    fail_unsupported("batch normalisation of every place by itself (spatial = 0)");
  for (size_t i = 3; i < 5; ++i) c.importer().make_buffer(c.required(i));
  const bool training = is_training_norm(c.node());
  // Where others are exported for training, what is not was meant so.
  const bool frozen = !training && c.importer().has_training_norms();
  if (frozen)
    c.importer().note_once(
        "some batch normalisations are exported for training and some for inference: the latter "
        "use "
        "their stored statistics and leave them as they are");
  else if (!training)
    c.importer().note_once(
        "exported for inference: batch normalisation is trained with the statistics of the batch");
  const double kept = c.float_attr("momentum", 0.9);  // ONNX weighs the old statistics
  if (training && kept == 0) note_cumulative(c);
  c.out(0,
        c.emit(OpKind::BatchNorm, BatchNormAttrs{c.float_attr("epsilon", 1e-5), 1 - kept, !frozen},
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

// Mean and inverse deviation of layer normalisation, for those who read them.
void layer_statistics(NodeContext& c, int64_t axis) {
  Ints axes;
  for (auto i = axis; i < static_cast<int64_t>(c.rank(0)); ++i) axes.push_back(i);
  const auto mean = [&](TensorId x, std::string_view part) {
    return c.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, axes, true}, {x}, part);
  };
  const TensorId average = mean(c.in(0), "mean");
  c.out(1, average);
  if (!c.wants(2)) return;
  const TensorId centred = c.binary(BinaryFn::Sub, c.in(0), average, "centred");
  const TensorId variance = mean(c.unary(UnaryFn::Square, centred, 0, 0, "squares"), "variance");
  const TensorId shifted =
      c.unary(UnaryFn::Affine, variance, 1, c.float_attr("epsilon", 1e-5), "shifted");
  c.out(2, c.unary(UnaryFn::Rsqrt, shifted, 0, 0, "inverse_deviation"));
}

void layer_norm(NodeContext& c) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", -1), c.rank(0)));
  c.out(0, c.emit(OpKind::LayerNorm, LayerNormAttrs{axis, c.float_attr("epsilon", 1e-5), 0},
                  {c.in(0), c.in(1), c.in(2)}));
  if (c.wants(1) || c.wants(2)) layer_statistics(c, axis);
}

// (x - mean) / (deviation + 1e-9) over the given axes.
void mean_variance_norm(NodeContext& c) {
  Ints axes = c.ints_attr("axes", {0, 2, 3});
  for (int64_t& axis : axes) axis = static_cast<int64_t>(normalize_axis(axis, c.rank(0)));
  std::sort(axes.begin(), axes.end());
  const auto mean = [&](TensorId x, std::string_view part) {
    return c.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, axes, true}, {x}, part);
  };
  const TensorId centred = c.binary(BinaryFn::Sub, c.in(0), mean(c.in(0), "mean"), "centred");
  const TensorId deviation =
      c.unary(UnaryFn::Sqrt, mean(c.unary(UnaryFn::Square, centred, 0, 0, "squares"), "variance"),
              0, 0, "deviation");
  c.out(0,
        c.binary(BinaryFn::Div, centred, c.unary(UnaryFn::Affine, deviation, 1, 1e-9, "shifted")));
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

// --- softmax

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

}  // namespace

void add_network_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"BatchNormalization", batch_norm},       {"GroupNormalization", group_norm},
      {"InstanceNormalization", instance_norm}, {"LRN", lrn},
      {"LayerNormalization", layer_norm},       {"LogSoftmax", log_softmax},
      {"LpNormalization", lp_normalization},    {"MeanVarianceNormalization", mean_variance_norm},
      {"RMSNormalization", rms_norm},           {"Softmax", plain_softmax},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
