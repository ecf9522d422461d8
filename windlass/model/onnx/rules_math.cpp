// Import rules: elementwise functions, casts, random numbers.

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"
#include "windlass/model/onnx/onnx_types.h"

namespace windlass {
namespace {

template <UnaryFn fn>
void plain_unary(NodeContext& c) {
  c.out(0, c.unary(fn, c.in(0)));
}

// The second operand of two. Before opset 7 it is broadcast only where an attribute says so, and
// then from an axis on.
TensorId second_operand(NodeContext& c) {
  if (c.opset() >= 7) return c.in(1);
  const Shape a = c.shape(0), b = c.shape(1);
  if (c.int_attr("broadcast", 0) == 0) {
    if (a != b) fail_input("operands {} and {} differ", format_shape(a), format_shape(b));
    return c.in(1);
  }
  if (!c.has_attr("axis")) return c.in(1);
  const auto axis = static_cast<size_t>(normalize_axis(c.int_attr("axis", 0), a.size()));
  if (axis + b.size() > a.size())
    fail_input("{} does not fit {} from axis {} on", format_shape(b), format_shape(a), axis);
  Shape wide = b;
  wide.resize(a.size() - axis, 1);
  return c.reshape(c.in(1), wide, "aligned");
}

template <BinaryFn fn>
void plain_binary(NodeContext& c) {
  c.out(0, c.binary(fn, c.in(0), second_operand(c)));
}

// Max, Min, Sum of any number of operands.
template <BinaryFn fn>
void variadic(NodeContext& c) {
  if (!c.has(0)) fail_input("needs at least one input");
  TensorId result = c.in(0);
  for (size_t i = 1; i < c.input_count(); ++i)
    result = c.binary(fn, result, c.in(i), c.input_count() == 2 ? "" : std::to_string(i));
  c.out(0, result);
}

void mean_of_inputs(NodeContext& c) {
  if (!c.has(0)) fail_input("needs at least one input");
  TensorId sum = c.in(0);
  for (size_t i = 1; i < c.input_count(); ++i)
    sum = c.binary(BinaryFn::Add, sum, c.in(i), std::to_string(i));
  c.out(0, c.unary(UnaryFn::Affine, sum, 1.0 / static_cast<double>(c.input_count()), 0));
}

// The remainder has the sign of the divisor, or with fmod that of the dividend: that of |a| / |b|.
void mod(NodeContext& c) {
  // Of floats the remainder has the sign of the dividend anyway.
  if (c.int_attr("fmod", 0) == 0 || is_float(c.type(0).dtype))
    return c.out(0, c.binary(BinaryFn::Mod, c.in(0), c.in(1)));
  const TensorId sign = c.unary(UnaryFn::Sign, c.in(0), 0, 0, "sign");
  const TensorId rest = c.binary(BinaryFn::Mod, c.unary(UnaryFn::Abs, c.in(0), 0, 0, "dividend"),
                                 c.unary(UnaryFn::Abs, c.in(1), 0, 0, "divisor"), "rest");
  c.out(0, c.binary(BinaryFn::Mul, sign, rest));
}

TensorId chosen(NodeContext& c, TensorId condition, TensorId a, TensorId b, std::string_view part) {
  return c.emit(OpKind::Where, NoAttrs{}, {condition, a, b}, part);
}

void thresholded_relu(NodeContext& c) {
  const DType dtype = c.type(0).dtype;
  const TensorId bound = c.builder().scalar(c.float_attr("alpha", 1), dtype);
  const TensorId above = c.binary(BinaryFn::Greater, c.in(0), bound, "above");
  c.out(0, chosen(c, above, c.in(0), c.builder().scalar(0, dtype), ""));
}

// x + bias below -lambd, x - bias above lambd, else 0.
void shrink(NodeContext& c) {
  const DType dtype = c.type(0).dtype;
  const double bias = c.float_attr("bias", 0), bound = c.float_attr("lambd", 0.5);
  const TensorId low = c.binary(BinaryFn::Less, c.in(0), c.builder().scalar(-bound, dtype), "low");
  const TensorId high =
      c.binary(BinaryFn::Greater, c.in(0), c.builder().scalar(bound, dtype), "high");
  const TensorId raised = c.unary(UnaryFn::Affine, c.in(0), 1, bias, "raised");
  const TensorId lowered = c.unary(UnaryFn::Affine, c.in(0), 1, -bias, "lowered");
  const TensorId rest = chosen(c, high, lowered, c.builder().scalar(0, dtype), "rest");
  c.out(0, chosen(c, low, raised, rest, ""));
}

void is_inf(NodeContext& c) {
  const bool positive = c.int_attr("detect_positive", 1) != 0,
             negative = c.int_attr("detect_negative", 1) != 0;
  const DType dtype = c.type(0).dtype;
  if (!positive && !negative) {
    c.out(0, c.make_constant({DType::Bool, c.shape(0)}, [](int64_t) { return 0.0; }));
    return;
  }
  const TensorId x = positive && negative ? c.unary(UnaryFn::Abs, c.in(0), 0, 0, "abs") : c.in(0);
  c.out(0,
        c.binary(BinaryFn::Equal, x, c.builder().scalar(positive ? HUGE_VAL : -HUGE_VAL, dtype)));
}

void identity(NodeContext& c) {
  if (c.wants(0)) c.out(0, c.importer().alias(c.node().outputs[0], c.required(0)));
}

void leaky_relu(NodeContext& c) {
  const double slope = c.float_attr("alpha", 0.01);
  // PyTorch exports its randomised ReLU by the mean of its slopes, 1/8 to 1/3 if nobody says more.
  constexpr double kRandomised = (1.0 / 8 + 1.0 / 3) / 2;
  if (std::abs(slope - kRandomised) < 1e-6)
    c.importer().note_once(fmt::format(
        "\"{}\" has the slope {:.4g}, the mean of those of PyTorch's RReLU: if it is one, PyTorch "
        "draws slopes in training, which its exporter leaves out",
        c.name(), slope));
  c.out(0, c.unary(UnaryFn::LeakyRelu, c.in(0), slope));
}

void prelu(NodeContext& c) {
  // At 0 the slope counts, as in PyTorch: layers behind one that begins with zeros train.
  const TensorId x = c.in(0);
  const TensorId above =
      c.binary(BinaryFn::Greater, x, c.builder().scalar(0, c.type(0).dtype), "positive");
  TensorId slope = c.in(1);
  if (c.opset() < 7 && c.rank(1) == 1 && c.shape(1)[0] > 1) {
    // One for each channel.
    Shape channels(c.rank(0) > 1 ? c.rank(0) - 1 : 1, 1);
    channels[0] = c.shape(1)[0];
    slope = c.reshape(slope, channels, "slopes");
  }
  c.out(0, chosen(c, above, x, c.binary(BinaryFn::Mul, x, slope, "scaled"), ""));
}

void elu(NodeContext& c) { c.out(0, c.unary(UnaryFn::Elu, c.in(0), c.float_attr("alpha", 1), 1)); }

void selu(NodeContext& c) {
  const double alpha = c.float_attr("alpha", 1.6732632423543772);
  const double gamma = c.float_attr("gamma", 1.0507009873554805);
  c.out(0, c.unary(UnaryFn::Elu, c.in(0), alpha * gamma, gamma));
}

void celu(NodeContext& c) {
  // alpha * elu(x / alpha)
  const double alpha = c.float_attr("alpha", 1);
  if (alpha <= 0) fail_unsupported("alpha is {}, expected above 0", alpha);
  const TensorId scaled = c.unary(UnaryFn::Affine, c.in(0), 1 / alpha, 0, "scaled");
  c.out(0, c.unary(UnaryFn::Affine, c.unary(UnaryFn::Elu, scaled, 1, 1, "elu"), alpha, 0));
}

void hard_sigmoid(NodeContext& c) {
  c.out(0, c.unary(UnaryFn::HardSigmoid, c.in(0), c.float_attr("alpha", 0.2),
                   c.float_attr("beta", 0.5)));
}

void softsign(NodeContext& c) {
  const TensorId x = c.in(0);
  const TensorId size = c.unary(UnaryFn::Abs, x, 0, 0, "abs");
  c.out(0, c.binary(BinaryFn::Div, x, c.unary(UnaryFn::Affine, size, 1, 1, "denominator")));
}

void gelu(NodeContext& c) {
  c.out(0,
        c.unary(c.string_attr("approximate", "none") == "tanh" ? UnaryFn::GeluTanh : UnaryFn::Gelu,
                c.in(0)));
}

// Whether a value is a weight, perhaps in another shape.
bool is_weight(const Graph& graph, TensorId id) {
  while (graph[id].producer.valid()) {
    const Op& op = graph[graph[id].producer];
    if (op.kind != OpKind::Reshape && op.kind != OpKind::Transpose) return false;
    id = op.inputs[0];
  }
  return graph[id].role == TensorRole::Weight;
}

// A weight may begin at a bound, and trains then: PyTorch's clamp lets the gradient pass there,
// which Clip does not.
TensorId clip_weight(NodeContext& c, double low, double high) {
  const TensorId x = c.in(0);
  const DType dtype = c.type(0).dtype;
  TensorId y = x;
  const auto cut = [&](BinaryFn beyond, double bound, std::string_view part) {
    const TensorId number = c.builder().scalar(bound, dtype);
    y = chosen(c, c.binary(beyond, x, number, part), number, y, part);
  };
  if (low != -HUGE_VAL) cut(BinaryFn::Less, low, "below");
  if (high != HUGE_VAL) cut(BinaryFn::Greater, high, "above");
  return y;
}

void clip(NodeContext& c) {
  const auto bound = [&](size_t input, const std::string& name, double otherwise) {
    if (c.has_attr(name)) return c.float_attr(name, otherwise);
    if (!c.has(input)) return otherwise;
    const auto values = c.required_constant(input, "the bound " + name);
    if (values.size() != 1)
      fail_input("the bound {} has {} values, expected 1", name, values.size());
    return values[0];
  };
  const double low = bound(1, "min", -HUGE_VAL), high = bound(2, "max", HUGE_VAL);
  if (low <= high && is_float(c.type(0).dtype) && is_weight(c.builder().graph(), c.in(0)))
    return c.out(0, clip_weight(c, low, high));
  c.out(0, low == 0 && high == HUGE_VAL ? c.unary(UnaryFn::Relu, c.in(0))
                                        : c.unary(UnaryFn::Clip, c.in(0), low, high));
}

void pow(NodeContext& c) {
  TensorId exponent = second_operand(c);
  const DType base = c.type(0).dtype;
  if (is_float(base) && c.type(1).dtype != base)
    exponent = c.emit(OpKind::Cast, CastAttrs{base}, {exponent}, "exponent");
  c.out(0, c.binary(BinaryFn::Pow, c.in(0), exponent));
}

void where(NodeContext& c) {
  if (c.type(1).dtype != c.type(2).dtype)
    fail_input("branches are {} and {}, expected one type", format_type(c.type(1)),
               format_type(c.type(2)));
  c.out(0, c.emit(OpKind::Where, NoAttrs{}, {c.in(0), c.in(1), c.in(2)}));
}

DType required_dtype(int64_t onnx_type) {
  const DType dtype = dtype_of_onnx(onnx_type);
  if (dtype == DType::None) fail_unsupported("ONNX element type {} is not known", onnx_type);
  return dtype;
}

// Before opset 6 the type is a name.
DType cast_target(NodeContext& c) {
  if (c.opset() >= 6) return required_dtype(c.int_attr("to", 1));
  const std::string name = c.string_attr("to", "FLOAT");
  if (name == "FLOAT") return DType::F32;
  if (name == "DOUBLE") return DType::F64;
  if (name == "FLOAT16") return DType::F16;
  if (name == "INT64") return DType::I64;
  if (name == "INT32") return DType::I32;
  if (name == "BOOL") return DType::Bool;
  fail_unsupported("element type \"{}\" is not known", name);
}

void cast(NodeContext& c) {
  const DType to = cast_target(c);
  c.out(0, to == c.type(0).dtype ? c.in(0) : c.emit(OpKind::Cast, CastAttrs{to}, {c.in(0)}));
}

void cast_like(NodeContext& c) {
  const DType to = c.type(1).dtype;
  c.out(0, to == c.type(0).dtype ? c.in(0) : c.emit(OpKind::Cast, CastAttrs{to}, {c.in(0)}));
}

// A file that has dropout was exported for training, or keeps it as a no-op; windlass trains.
void dropout(NodeContext& c) {
  double ratio = c.float_attr("ratio", 0.5);
  bool training = c.opset() < 12;
  const auto known = [&](size_t i, std::string_view what, double otherwise) {
    if (!c.has(i)) return otherwise;
    const auto values = c.required_constant(i, what);
    return values.empty() ? otherwise : values.front();
  };
  training = known(2, "whether dropout is on", training ? 1 : 0) != 0;
  if (training) ratio = known(1, "the ratio of dropout", ratio);
  if (c.opset() < 7 && c.int_attr("is_test", 0) != 0) training = false;
  if (!training || !(ratio > 0)) {
    c.out(0, c.in(0));
    if (c.wants(1))
      c.out(1, c.make_constant({DType::Bool, c.shape(0)}, [](int64_t) { return 1.0; }));
    return;
  }
  if (c.wants(1)) c.importer().withhold(c.node().outputs[1], "reads the mask of a dropout");
  c.out(0, c.emit(OpKind::Dropout, DropoutAttrs{ratio}, {c.in(0)}));
}

DType random_dtype(NodeContext& c, DType like) {
  const DType dtype = c.has_attr("dtype") ? required_dtype(c.int_attr("dtype", 1)) : like;
  return is_float(dtype) ? dtype : DType::F32;
}

template <RandomFn fn>
void random_like(NodeContext& c) {
  const bool uniform = fn == RandomFn::Uniform;
  c.out(0, c.emit(OpKind::Random,
                  RandomAttrs{fn, c.shape(0), random_dtype(c, c.type(0).dtype),
                              uniform ? c.float_attr("low", 0) : c.float_attr("mean", 0),
                              uniform ? c.float_attr("high", 1) : c.float_attr("scale", 1)},
                  {}));
}

template <RandomFn fn>
void random(NodeContext& c) {
  const bool uniform = fn == RandomFn::Uniform;
  c.out(0, c.emit(OpKind::Random,
                  RandomAttrs{fn, c.ints_attr("shape", {}), random_dtype(c, DType::F32),
                              uniform ? c.float_attr("low", 0) : c.float_attr("mean", 0),
                              uniform ? c.float_attr("high", 1) : c.float_attr("scale", 1)},
                  {}));
}

void bernoulli(NodeContext& c) {
  const TensorType type = c.type(0);
  const auto p = c.constant(0);
  const bool uniform = p && !p->empty() &&
                       std::all_of(p->begin(), p->end(), [&](double v) { return v == p->front(); });
  if (uniform) {
    c.out(0, c.emit(OpKind::Random,
                    RandomAttrs{RandomFn::Bernoulli, type.shape, random_dtype(c, type.dtype),
                                p->front(), 0},
                    {}));
    return;
  }
  const TensorId draw = c.emit(
      OpKind::Random, RandomAttrs{RandomFn::Uniform, type.shape, type.dtype, 0, 1}, {}, "draw");
  const TensorId hit = c.binary(BinaryFn::Less, draw, c.in(0), "hit");
  c.out(0, c.emit(OpKind::Cast, CastAttrs{random_dtype(c, type.dtype)}, {hit}));
}

}  // namespace

void add_math_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Abs", plain_unary<UnaryFn::Abs>},
      {"Acos", plain_unary<UnaryFn::Acos>},
      {"Acosh", plain_unary<UnaryFn::Acosh>},
      {"Add", plain_binary<BinaryFn::Add>},
      {"And", plain_binary<BinaryFn::And>},
      {"Asin", plain_unary<UnaryFn::Asin>},
      {"Asinh", plain_unary<UnaryFn::Asinh>},
      {"Atan", plain_unary<UnaryFn::Atan>},
      {"Atanh", plain_unary<UnaryFn::Atanh>},
      {"Bernoulli", bernoulli},
      {"Cast", cast},
      {"CastLike", cast_like},
      {"Ceil", plain_unary<UnaryFn::Ceil>},
      {"Celu", celu},
      {"Clip", clip},
      {"Cos", plain_unary<UnaryFn::Cos>},
      {"Cosh", plain_unary<UnaryFn::Cosh>},
      {"Div", plain_binary<BinaryFn::Div>},
      {"Dropout", dropout},
      {"Elu", elu},
      {"Equal", plain_binary<BinaryFn::Equal>},
      {"Erf", plain_unary<UnaryFn::Erf>},
      {"Exp", plain_unary<UnaryFn::Exp>},
      {"Floor", plain_unary<UnaryFn::Floor>},
      {"Gelu", gelu},
      {"Greater", plain_binary<BinaryFn::Greater>},
      {"GreaterOrEqual", plain_binary<BinaryFn::GreaterEqual>},
      {"HardSigmoid", hard_sigmoid},
      {"HardSwish", plain_unary<UnaryFn::HardSwish>},
      {"Identity", identity},
      {"IsInf", is_inf},
      {"IsNaN", plain_unary<UnaryFn::IsNan>},
      {"LeakyRelu", leaky_relu},
      {"Less", plain_binary<BinaryFn::Less>},
      {"LessOrEqual", plain_binary<BinaryFn::LessEqual>},
      {"Log", plain_unary<UnaryFn::Log>},
      {"Max", variadic<BinaryFn::Max>},
      {"Mean", mean_of_inputs},
      {"Min", variadic<BinaryFn::Min>},
      {"Mish", plain_unary<UnaryFn::Mish>},
      {"Mod", mod},
      {"Mul", plain_binary<BinaryFn::Mul>},
      {"Neg", plain_unary<UnaryFn::Neg>},
      {"Not", plain_unary<UnaryFn::Not>},
      {"Or", plain_binary<BinaryFn::Or>},
      {"PRelu", prelu},
      {"Pow", pow},
      {"RandomNormal", random<RandomFn::Normal>},
      {"RandomNormalLike", random_like<RandomFn::Normal>},
      {"RandomUniform", random<RandomFn::Uniform>},
      {"RandomUniformLike", random_like<RandomFn::Uniform>},
      {"Reciprocal", plain_unary<UnaryFn::Reciprocal>},
      {"Relu", plain_unary<UnaryFn::Relu>},
      {"Round", plain_unary<UnaryFn::Round>},
      {"Selu", selu},
      {"Sigmoid", plain_unary<UnaryFn::Sigmoid>},
      {"Shrink", shrink},
      {"Sign", plain_unary<UnaryFn::Sign>},
      {"Sin", plain_unary<UnaryFn::Sin>},
      {"Sinh", plain_unary<UnaryFn::Sinh>},
      {"Softplus", plain_unary<UnaryFn::Softplus>},
      {"Softsign", softsign},
      {"Sqrt", plain_unary<UnaryFn::Sqrt>},
      {"Sub", plain_binary<BinaryFn::Sub>},
      {"Sum", variadic<BinaryFn::Add>},
      {"Tan", plain_unary<UnaryFn::Tan>},
      {"Tanh", plain_unary<UnaryFn::Tanh>},
      {"ThresholdedRelu", thresholded_relu},
      {"Where", where},
      {"Xor", plain_binary<BinaryFn::Xor>},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
