#include "windlass/graph/loss_spec.h"

#include <algorithm>
#include <charconv>
#include <utility>
#include <vector>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr std::pair<std::string_view, LossKind> kLossNames[] = {
    {"cross-entropy", LossKind::CrossEntropy},
    {"mse", LossKind::MeanSquaredError},
    {"bce", LossKind::BinaryCrossEntropy},
    {"l1", LossKind::MeanAbsoluteError},
    {"huber", LossKind::Huber},
};
constexpr std::string_view kKnownLosses =
    "cross-entropy[:axis=N,ignore=N], mse, bce, l1 or huber[:delta=X]";

template <typename Number>
Number parse_value(std::string_view text, std::string_view whole) {
  Number value{};
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size())
    fail_input("loss \"{}\": \"{}\" is not a number", whole, text);
  return value;
}

void set_parameter(LossSpec& spec, std::string_view part, std::string_view whole) {
  const size_t equals = part.find('=');
  const std::string_view key = part.substr(0, equals);
  const std::string_view value =
      equals == std::string_view::npos ? std::string_view() : part.substr(equals + 1);
  if (spec.kind == LossKind::CrossEntropy && key == "axis")
    spec.axis = parse_value<int64_t>(value, whole);
  else if (spec.kind == LossKind::CrossEntropy && key == "ignore")
    spec.ignore = parse_value<int64_t>(value, whole);
  else if (spec.kind == LossKind::Huber && key == "delta")
    spec.delta = parse_value<double>(value, whole);
  else
    fail_input("loss \"{}\": \"{}\" is not known; expected {}", whole, part, kKnownLosses);
  if (!(spec.delta > 0 && spec.delta < 1e30))
    fail_input("loss \"{}\": delta is {}, expected a number above 0", whole, spec.delta);
}

TensorId mean(GraphBuilder& builder, TensorId x) {
  Ints axes;
  for (size_t i = 0; i < builder.shape(x).size(); ++i) axes.push_back(static_cast<int64_t>(i));
  if (axes.empty()) return x;
  return builder.op(OpKind::Reduce, ReduceAttrs{ReduceFn::Mean, axes, false}, {x}, "loss");
}

// What is wanted, unless the network has an input of that name: data are found by names.
std::string label_name(const Graph& graph, std::string wanted) {
  while (std::ranges::any_of(graph.inputs, [&](TensorId id) { return graph[id].name == wanted; }))
    wanted.insert(0, "loss_");
  return wanted;
}

TensorId attach_classes(GraphBuilder& builder, TensorId logits, const LossSpec& spec) {
  const Shape shape = builder.shape(logits);
  if (shape.size() < 2)
    fail_input(
        "cannot attach a cross-entropy loss to \"{}\" of shape {}: expected [rows..., classes]",
        builder.graph()[logits].name, format_shape(shape));
  const auto axis = static_cast<int64_t>(
      normalize_axis(spec.axis ? *spec.axis : class_axis(builder.graph(), logits), shape.size()));
  Shape rows = shape;
  rows.erase(rows.begin() + axis);
  const TensorId labels = builder.label(label_name(builder.graph(), "labels"), {DType::I64, rows});
  return builder.op(OpKind::CrossEntropy, CrossEntropyAttrs{axis, spec.ignore}, {logits, labels},
                    "loss");
}

}  // namespace

LossSpec parse_loss(std::string_view text) {
  const size_t colon = text.find(':');
  for (const auto& [name, kind] : kLossNames) {
    if (text.substr(0, colon) != name) continue;
    LossSpec spec(kind);
    if (colon == std::string_view::npos) return spec;
    std::string_view rest = text.substr(colon + 1);
    while (true) {
      const size_t comma = rest.find(',');
      set_parameter(spec, rest.substr(0, comma), text);
      if (comma == std::string_view::npos) return spec;
      rest.remove_prefix(comma + 1);
    }
  }
  fail_input("loss \"{}\" is not known; expected {}", text, kKnownLosses);
}

std::string format_loss(const LossSpec& spec) {
  std::string text;
  for (const auto& [name, kind] : kLossNames)
    if (kind == spec.kind) text = name;
  auto add = [&, first = true](const std::string& part) mutable {
    text += std::exchange(first, false) ? ":" : ",";
    text += part;
  };
  if (spec.axis) add(fmt::format("axis={}", *spec.axis));
  if (spec.ignore != LossSpec().ignore) add(fmt::format("ignore={}", spec.ignore));
  if (spec.delta != LossSpec().delta) add(fmt::format("delta={}", spec.delta));
  return text;
}

std::string_view loss_title(LossKind kind) {
  switch (kind) {
    case LossKind::CrossEntropy: return "cross-entropy";
    case LossKind::MeanSquaredError: return "mean squared error";
    case LossKind::BinaryCrossEntropy: return "binary cross-entropy";
    case LossKind::MeanAbsoluteError: return "mean absolute error";
    case LossKind::Huber: return "Huber";
  }
  return "?";
}

int64_t class_axis(const Graph& graph, TensorId logits) {
  const size_t rank = graph[logits].type.shape.size();
  const auto last = static_cast<int64_t>(rank) - 1;
  if (graph[logits].producer.valid()) {
    const Op& op = graph[graph[logits].producer];
    const auto* softmax = std::get_if<SoftmaxAttrs>(&op.attrs);
    if (op.kind == OpKind::Softmax && softmax && softmax->axis > 0) return softmax->axis;
  }
  if (rank >= 4) return 1;
  if (rank < 3) return last;
  // Where axis k of the tensor looked at is in the logits.
  Ints place = {0, 1, 2};
  constexpr int kMaxSteps = 64;
  for (int step = 0; step < kMaxSteps && graph[logits].producer.valid(); ++step) {
    const Op& op = graph[graph[logits].producer];
    switch (op.kind) {
      case OpKind::Linear: return place[2];
      case OpKind::MatMul: return graph[op.inputs[1]].type.shape.size() == 2 ? place[2] : last;
      case OpKind::Conv: return place[1];
      case OpKind::Transpose: {
        // Axis i of the result is axis order[i] of the operand.
        const Ints& order = std::get<TransposeAttrs>(op.attrs).order;
        Ints before(3);
        for (size_t i = 0; i < 3; ++i) before[static_cast<size_t>(order[i])] = place[i];
        place = before;
        logits = op.inputs[0];
        break;
      }
      case OpKind::Binary: {
        const bool left = graph[op.inputs[0]].producer.valid();
        logits = op.inputs[left ? 0 : 1];
        if (graph[logits].type.shape.size() != 3) return last;
        break;
      }
      case OpKind::Unary:
      case OpKind::Softmax:
      case OpKind::Dropout:
      case OpKind::Cast:
      case OpKind::BatchNorm:
      case OpKind::LayerNorm:
      case OpKind::RmsNorm:
      case OpKind::GroupNorm: logits = op.inputs[0]; break;
      default: return last;
    }
  }
  return last;
}

TensorId attach_loss(GraphBuilder& builder, TensorId prediction, const LossSpec& spec) {
  if (spec.kind == LossKind::CrossEntropy) return attach_classes(builder, prediction, spec);
  const TensorId target =
      builder.label(label_name(builder.graph(), "target"), builder.type(prediction));
  if (spec.kind == LossKind::MeanSquaredError)
    return builder.op(OpKind::MeanSquaredError, NoAttrs{}, {prediction, target}, "loss");
  const auto binary = [&](BinaryFn fn, TensorId a, TensorId b, std::string name) {
    return builder.op(OpKind::Binary, BinaryAttrs{fn}, {a, b}, std::move(name));
  };
  const auto unary = [&](UnaryFn fn, TensorId x, double alpha, double beta, std::string name) {
    return builder.op(OpKind::Unary, UnaryAttrs{fn, alpha, beta}, {x}, std::move(name));
  };
  if (spec.kind == LossKind::BinaryCrossEntropy) {
    // -t log s(x) - (1 - t) log(1 - s(x)) = softplus(x) - x t, which no x overflows.
    const TensorId product = binary(BinaryFn::Mul, prediction, target, "loss.product");
    const TensorId plus = unary(UnaryFn::Softplus, prediction, 0, 0, "loss.softplus");
    return mean(builder, binary(BinaryFn::Sub, plus, product, "loss.terms"));
  }
  const TensorId difference = binary(BinaryFn::Sub, prediction, target, "loss.difference");
  if (spec.kind == LossKind::MeanAbsoluteError)
    return mean(builder, unary(UnaryFn::Abs, difference, 0, 0, "loss.terms"));
  // With c the difference cut to [-delta, delta]: c (d - c / 2).
  const TensorId cut = unary(UnaryFn::Clip, difference, -spec.delta, spec.delta, "loss.cut");
  const TensorId half = unary(UnaryFn::Affine, cut, 0.5, 0, "loss.half");
  return mean(builder, binary(BinaryFn::Mul, cut,
                              binary(BinaryFn::Sub, difference, half, "loss.rest"), "loss.terms"));
}

}  // namespace windlass
