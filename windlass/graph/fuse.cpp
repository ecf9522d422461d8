#include "windlass/graph/fuse.h"

#include <cmath>
#include <functional>
#include <numbers>

#include <fmt/format.h>

#include "windlass/graph/match.h"

namespace windlass {
namespace {

using namespace match;

// Runs `rule` over every op; it returns true after it emitted a replacement.
int run_pass(Graph& graph, const std::function<bool(Rewriter&, const Op&)>& rule) {
  Rewriter rewriter(graph);
  const std::vector<Op> ops = graph.ops;
  int count = 0;
  for (const Op& op : ops) {
    if (rule(rewriter, op))
      ++count;
    else
      rewriter.keep(op);
  }
  rewriter.finish();
  return count;
}

// --- activations

// Phi(x) up to the factor: 1 + erf(x / sqrt 2), or half of it.
std::optional<double> gelu_gate(const Rewriter& r, TensorId gate, TensorId x) {
  const auto outer = affine(r, gate);
  if (!outer || !near(outer->alpha, outer->beta)) return std::nullopt;
  const auto inner = unary(r, outer->input, UnaryFn::Erf);
  if (!inner) return std::nullopt;
  const auto scaled = affine(r, *inner, 1 / std::numbers::sqrt2, 0);
  if (!scaled || *scaled != x) return std::nullopt;
  return outer->alpha;
}

// 1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)), or half of it.
std::optional<double> gelu_tanh_gate(const Rewriter& r, TensorId gate, TensorId x) {
  const auto outer = affine(r, gate);
  if (!outer || !near(outer->alpha, outer->beta)) return std::nullopt;
  const auto inner = unary(r, outer->input, UnaryFn::Tanh);
  if (!inner) return std::nullopt;
  const double factor = std::sqrt(2 / std::numbers::pi);
  const auto scaled = affine(r, *inner, factor, 0);
  if (!scaled) return std::nullopt;
  // x + 0.044715 x^3, or x (1 + 0.044715 x^2)
  if (const auto cubic = other_operand(binary(r, *scaled, BinaryFn::Add), x)) {
    const auto cube = affine(r, *cubic, 0.044715, 0);
    if (!cube) return std::nullopt;
    const Op* power = r.producer(*cube);
    if (power && power->kind == OpKind::Unary) {
      const auto& attrs = std::get<UnaryAttrs>(power->attrs);
      if (attrs.fn == UnaryFn::Power && attrs.alpha == 3 && power->inputs[0] == x)
        return outer->alpha;
    }
    const auto square = other_operand(binary(r, *cube, BinaryFn::Mul), x);
    if (square && unary(r, *square, UnaryFn::Square) == x) return outer->alpha;
    return std::nullopt;
  }
  if (const auto factor_of_x = other_operand(binary(r, *scaled, BinaryFn::Mul), x)) {
    const auto square = affine(r, *factor_of_x, 0.044715, 1);
    if (square && unary(r, *square, UnaryFn::Square) == x) return outer->alpha;
  }
  return std::nullopt;
}

using Gate = std::optional<double> (*)(const Rewriter&, TensorId gate, TensorId x);

// `product` = x * gate, possibly with a factor inside: the input x if gate and factors make up 1/2
// (1+f).
std::optional<TensorId> gated(const Rewriter& r, TensorId a, TensorId b, double factor, Gate gate) {
  for (const auto& [x, g] : {std::pair{a, b}, std::pair{b, a}}) {
    if (const auto scale = gate(r, g, x); scale && near(*scale * factor, 0.5)) return x;
    // (x / 2) * gate
    if (const auto half = affine(r, x); half && half->beta == 0) {
      const auto inner = gate(r, g, half->input);
      if (inner && near(*inner * factor * half->alpha, 0.5)) return half->input;
    }
  }
  return std::nullopt;
}

bool fuse_gelu(Rewriter& r, const Op& op) {
  const TensorId out = op.outputs[0];
  double factor = 1;
  std::optional<std::pair<TensorId, TensorId>> product;
  if (const auto scaled = affine(r, out, false); scaled && scaled->beta == 0) {
    factor = scaled->alpha;
    product = binary(r, scaled->input, BinaryFn::Mul);
  } else {
    product = binary(r, out, BinaryFn::Mul, false);
  }
  if (!product) return false;
  const auto exact = gated(r, product->first, product->second, factor, gelu_gate);
  const auto approximate =
      exact ? std::nullopt : gated(r, product->first, product->second, factor, gelu_tanh_gate);
  if (!exact && !approximate) return false;
  r.replace(op, OpKind::Unary, UnaryAttrs{exact ? UnaryFn::Gelu : UnaryFn::GeluTanh, 0, 0},
            {exact ? *exact : *approximate});
  return true;
}

// x * f(x) for the functions f whose product has a name.
bool fuse_self_gated(Rewriter& r, const Op& op) {
  const auto product = binary(r, op.outputs[0], BinaryFn::Mul, false);
  if (!product) return false;
  for (const auto& [x, gate] : {*product, std::pair{product->second, product->first}}) {
    const auto replace = [&r, &op, x = x](UnaryFn fn) {
      r.replace(op, OpKind::Unary, UnaryAttrs{fn, 0, 0}, {x});
      return true;
    };
    if (unary(r, gate, UnaryFn::Sigmoid) == x) return replace(UnaryFn::Silu);
    if (unary(r, gate, UnaryFn::HardSigmoid) == x) {
      const auto& attrs = std::get<UnaryAttrs>(r.producer(gate)->attrs);
      if (near(attrs.alpha, 1.0 / 6) && near(attrs.beta, 0.5)) return replace(UnaryFn::HardSwish);
    }
    // clip(x + 3, 0, 6) / 6
    if (const auto clipped = affine(r, gate, 1.0 / 6, 0)) {
      const auto shifted = unary(r, *clipped, UnaryFn::Clip);
      if (shifted && affine(r, *shifted, 1, 3) == x) {
        const auto& attrs = std::get<UnaryAttrs>(r.producer(*clipped)->attrs);
        if (attrs.alpha == 0 && attrs.beta == 6) return replace(UnaryFn::HardSwish);
      }
    }
    if (const auto inner = unary(r, gate, UnaryFn::Tanh))
      if (unary(r, *inner, UnaryFn::Softplus) == x) return replace(UnaryFn::Mish);
  }
  return false;
}

// log(sigmoid(x)) and log(1 - sigmoid(x)), as exporters spell the cross-entropy of logits: -log(1 +
// e^-x) and -log(1 + e^x), which stay finite and exact where the sigmoid rounds to 0 or 1.
bool fuse_log_sigmoid(Rewriter& r, const Op& op) {
  const auto inner = unary(r, op.outputs[0], UnaryFn::Log, false);
  if (!inner) return false;
  auto x = unary(r, *inner, UnaryFn::Sigmoid, false);
  const bool plain = x.has_value();
  if (!plain)
    if (const auto rest = affine(r, *inner, -1, 1, false))
      x = unary(r, *rest, UnaryFn::Sigmoid, false);
  if (!x) return false;
  const auto emit = [&](UnaryFn fn, TensorId input, std::string_view suffix) {
    return r.emit(OpKind::Unary, UnaryAttrs{fn, 0, 0}, {input},
                  fmt::format("{}.{}", op.name, suffix));
  };
  const TensorId signed_x = plain ? emit(UnaryFn::Neg, *x, "negated") : *x;
  const TensorId softplus = emit(UnaryFn::Softplus, signed_x, "softplus");
  r.replace(op, OpKind::Unary, UnaryAttrs{UnaryFn::Neg, 0, 0}, {softplus});
  return true;
}

// sqrt(sum(x x)), as exporters spell the length of a vector: the gradient of that of zeros is 0,
// where that of a root is infinite.
bool fuse_length(Rewriter& r, const Op& op) {
  const auto sum = unary(r, op.outputs[0], UnaryFn::Sqrt, false);
  const Op* reduce = sum ? r.producer(*sum, OpKind::Reduce) : nullptr;
  if (!reduce) return false;
  auto attrs = std::get<ReduceAttrs>(reduce->attrs);
  std::optional<TensorId> x;
  if (attrs.fn == ReduceFn::SumSquare) {
    x = reduce->inputs[0];
  } else if (attrs.fn == ReduceFn::Sum) {
    x = unary(r, reduce->inputs[0], UnaryFn::Square, false);
    if (const auto product = binary(r, reduce->inputs[0], BinaryFn::Mul, false);
        product && product->first == product->second)
      x = product->first;
  }
  if (!x) return false;
  attrs.fn = ReduceFn::L2;
  r.replace(op, OpKind::Reduce, attrs, {*x});
  return true;
}

// --- normalisations

// Axes of a mean that are exactly the trailing ones, as the first of them.
std::optional<int64_t> trailing_mean(const Rewriter& r, TensorId id, TensorId& input) {
  const Op* op = r.producer(id, OpKind::Reduce);
  if (!op) return std::nullopt;
  const auto& attrs = std::get<ReduceAttrs>(op->attrs);
  if (attrs.fn != ReduceFn::Mean || !attrs.keep_dims || attrs.axes.empty()) return std::nullopt;
  const auto rank = static_cast<int64_t>(r.shape(op->inputs[0]).size());
  for (size_t i = 0; i < attrs.axes.size(); ++i)
    if (attrs.axes[i] != rank - static_cast<int64_t>(attrs.axes.size() - i)) return std::nullopt;
  input = op->inputs[0];
  return attrs.axes.front();
}

// mean(square(input)) + epsilon under a square root; `reciprocal`: 1 over it.
struct RootMeanSquare {
  TensorId input;
  int64_t axis;
  double epsilon;
};
std::optional<RootMeanSquare> root_mean_square(const Rewriter& r, TensorId id, bool reciprocal) {
  const auto sum = unary(r, id, reciprocal ? UnaryFn::Rsqrt : UnaryFn::Sqrt);
  if (!sum) return std::nullopt;
  const auto mean = affine(r, *sum);
  if (!mean || mean->alpha != 1 || mean->beta < 0) return std::nullopt;
  TensorId squared;
  const auto axis = trailing_mean(r, mean->input, squared);
  if (!axis || r.uses(mean->input) != 1) return std::nullopt;
  const auto input = unary(r, squared, UnaryFn::Square);
  if (!input) return std::nullopt;
  return RootMeanSquare{*input, *axis, mean->beta};
}

// value / rms(value), in either spelling.
struct Normalized {
  TensorId value;
  int64_t axis;
  double epsilon;
};
std::optional<Normalized> normalized(const Rewriter& r, TensorId id, bool sole) {
  if (const auto quotient = binary(r, id, BinaryFn::Div, sole)) {
    const auto rms = root_mean_square(r, quotient->second, false);
    if (rms && rms->input == quotient->first)
      return Normalized{rms->input, rms->axis, rms->epsilon};
  }
  if (const auto product = binary(r, id, BinaryFn::Mul, sole)) {
    for (const auto& [value, factor] : {*product, std::pair{product->second, product->first}}) {
      const auto rms = root_mean_square(r, factor, true);
      if (rms && rms->input == value) return Normalized{rms->input, rms->axis, rms->epsilon};
    }
  }
  return std::nullopt;
}

// x when `id` is x - mean(x) over the axes from `axis`.
std::optional<TensorId> centered(const Rewriter& r, TensorId id, int64_t axis) {
  const auto difference = binary(r, id, BinaryFn::Sub, false);
  if (!difference) return std::nullopt;
  TensorId input;
  const auto mean_axis = trailing_mean(r, difference->second, input);
  if (!mean_axis || *mean_axis != axis || input != difference->first) return std::nullopt;
  return input;
}

Shape trailing_shape(const Rewriter& r, TensorId x, int64_t axis) {
  const Shape& shape = r.shape(x);
  return Shape(shape.begin() + axis, shape.end());
}

// Operand of a product or sum that has the normalised shape, and the other one.
std::optional<std::pair<TensorId, TensorId>> with_parameter(
    const Rewriter& r, const std::optional<std::pair<TensorId, TensorId>>& operands,
    const Shape& shape) {
  if (!operands) return std::nullopt;
  for (const auto& [value, parameter] : {*operands, std::pair{operands->second, operands->first}})
    if (is_weight(r, parameter) && r.shape(parameter) == shape) return std::pair{value, parameter};
  return std::nullopt;
}

bool fuse_layer_norm(Rewriter& r, const Op& op) {
  // From the largest form to the smallest: with scale and bias, scale only, neither.
  const TensorId out = op.outputs[0];
  const auto attempt = [&](TensorId core, bool core_is_root, TensorId scale, TensorId bias) {
    const auto norm = normalized(r, core, !core_is_root);
    if (!norm) return false;
    const auto x = centered(r, norm->value, norm->axis);
    if (!x) return false;
    const Shape shape = trailing_shape(r, *x, norm->axis);
    for (TensorId parameter : {scale, bias})
      if (parameter.valid() && r.shape(parameter) != shape) return false;
    r.replace(op, OpKind::LayerNorm, LayerNormAttrs{norm->axis, norm->epsilon, 0},
              {*x, scale, bias});
    return true;
  };
  const Shape& full = r.shape(out);
  for (size_t axis = 0; axis < full.size(); ++axis) {
    const Shape shape(full.begin() + static_cast<int64_t>(axis), full.end());
    if (const auto sum = with_parameter(r, binary(r, out, BinaryFn::Add, false), shape))
      if (const auto product = with_parameter(r, binary(r, sum->first, BinaryFn::Mul), shape))
        if (attempt(product->first, false, product->second, sum->second)) return true;
  }
  return false;
}

bool fuse_bare_layer_norm(Rewriter& r, const Op& op) {
  const TensorId out = op.outputs[0];
  const auto norm = normalized(r, out, false);
  if (!norm) return false;
  const auto x = centered(r, norm->value, norm->axis);
  if (!x) return false;
  r.replace(op, OpKind::LayerNorm, LayerNormAttrs{norm->axis, norm->epsilon, 0}, {*x});
  return true;
}

bool fuse_rms_norm(Rewriter& r, const Op& op) {
  const TensorId out = op.outputs[0];
  const Shape& full = r.shape(out);
  for (size_t axis = 0; axis < full.size(); ++axis) {
    const Shape shape(full.begin() + static_cast<int64_t>(axis), full.end());
    const auto product = with_parameter(r, binary(r, out, BinaryFn::Mul, false), shape);
    if (!product) continue;
    const auto norm = normalized(r, product->first, true);
    if (!norm || norm->axis != static_cast<int64_t>(axis)) continue;
    if (r.shape(norm->value) != full) continue;
    r.replace(op, OpKind::RmsNorm, LayerNormAttrs{norm->axis, norm->epsilon, 0},
              {norm->value, product->second});
    return true;
  }
  return false;
}

// --- linear layers

// The stored weight behind a matmul operand, and whether it is stored [in, out].
struct StoredWeight {
  TensorId weight;
  bool input_major;
};
std::optional<StoredWeight> stored_weight(const Rewriter& r, TensorId id, bool transposed) {
  if (r.shape(id).size() != 2) return std::nullopt;
  if (r.tensor(id).role == TensorRole::Weight) return StoredWeight{id, !transposed};
  const Op* op = r.producer(id, OpKind::Transpose);
  if (op && r.tensor(op->inputs[0]).role == TensorRole::Weight)
    return StoredWeight{op->inputs[0], transposed};
  return std::nullopt;
}

bool fuse_matmul_weight(Rewriter& r, const Op& op) {
  if (op.kind != OpKind::MatMul) return false;
  const auto& attrs = std::get<MatMulAttrs>(op.attrs);
  if (attrs.transpose_a) return false;
  const auto stored = stored_weight(r, op.inputs[1], attrs.transpose_b);
  if (!stored || is_weight(r, op.inputs[0])) return false;
  r.replace(op, OpKind::Linear, LinearAttrs{stored->input_major}, {op.inputs[0], stored->weight});
  return true;
}

bool fuse_linear_bias(Rewriter& r, const Op& op) {
  const auto sum = binary(r, op.outputs[0], BinaryFn::Add, false);
  if (!sum) return false;
  for (const auto& [value, bias] : {*sum, std::pair{sum->second, sum->first}}) {
    const Op* linear = r.producer(value, OpKind::Linear);
    if (!linear || linear->inputs.size() > 2 || r.uses(value) != 1) continue;
    if (r.tensor(bias).role != TensorRole::Weight || r.shape(bias) != Shape{r.shape(value).back()})
      continue;
    if (r.shape(op.outputs[0]) != r.shape(value)) continue;
    r.replace(op, OpKind::Linear, linear->attrs, {linear->inputs[0], linear->inputs[1], bias});
    return true;
  }
  return false;
}

}  // namespace

int fuse_activations(Graph& graph) {
  return run_pass(graph, fuse_gelu) + run_pass(graph, fuse_self_gated) +
         run_pass(graph, fuse_log_sigmoid);
}

int fuse_layer_norms(Graph& graph) {
  return run_pass(graph, fuse_layer_norm) + run_pass(graph, fuse_bare_layer_norm);
}

int fuse_rms_norms(Graph& graph) { return run_pass(graph, fuse_rms_norm); }

int fuse_linears(Graph& graph) {
  const int count = run_pass(graph, fuse_matmul_weight);
  run_pass(graph, fuse_linear_bias);
  return count;
}

FusionReport fuse(Graph& graph) {
  FusionReport report;
  report.activations = fuse_activations(graph);
  run_pass(graph, fuse_length);
  report.layer_norms = fuse_layer_norms(graph);
  report.rms_norms = fuse_rms_norms(graph);
  report.linears = fuse_linears(graph);
  report.attentions = fuse_attention(graph);
  return report;
}

}  // namespace windlass
