// Import rules: elementwise functions, products, reductions, random numbers.

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

template <UnaryFn fn>
void plain_unary(NodeContext& c) {
  c.out(0, c.unary(fn, c.in(0)));
}

template <BinaryFn fn>
void plain_binary(NodeContext& c) {
  c.out(0, c.binary(fn, c.in(0), c.in(1)));
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

void mod(NodeContext& c) {
  if (c.int_attr("fmod", 0) != 0 && is_float(c.type(0).dtype) && !c.constant(0))
    fail_unsupported("fmod of floating-point data");
  c.out(0, c.binary(BinaryFn::Mod, c.in(0), c.in(1)));
}

void identity(NodeContext& c) {
  if (c.wants(0)) c.out(0, c.importer().alias(c.node().outputs[0], c.required(0)));
}

void leaky_relu(NodeContext& c) {
  c.out(0, c.unary(UnaryFn::LeakyRelu, c.in(0), c.float_attr("alpha", 0.01)));
}

void prelu(NodeContext& c) {
  // max(x, 0) - slope * max(-x, 0)
  const TensorId x = c.in(0);
  const TensorId above = c.unary(UnaryFn::Relu, x, 0, 0, "positive");
  const TensorId below =
      c.unary(UnaryFn::Relu, c.unary(UnaryFn::Neg, x, 0, 0, "negated"), 0, 0, "negative");
  const TensorId scaled = c.binary(BinaryFn::Mul, below, c.in(1), "scaled");
  c.out(0, c.binary(BinaryFn::Sub, above, scaled));
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
  c.out(0, low == 0 && high == HUGE_VAL ? c.unary(UnaryFn::Relu, c.in(0))
                                        : c.unary(UnaryFn::Clip, c.in(0), low, high));
}

void pow(NodeContext& c) {
  TensorId exponent = c.in(1);
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

DType onnx_dtype(int64_t type) {
  switch (type) {
    case 1: return DType::F32;
    case 2: return DType::U8;
    case 3: return DType::I8;
    case 4:
    case 6: return DType::I32;
    case 5: return DType::I16;
    case 7:
    case 12:
    case 13: return DType::I64;
    case 9: return DType::Bool;
    case 10: return DType::F16;
    case 11: return DType::F64;
    case 16: return DType::BF16;
    default: fail_unsupported("ONNX element type {} is not known", type);
  }
}

void cast(NodeContext& c) {
  const DType to = onnx_dtype(c.int_attr("to", 1));
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
  if (const auto given = c.constant(1); given && !given->empty()) ratio = given->front();
  if (const auto mode = c.constant(2); mode && !mode->empty()) training = mode->front() != 0;
  if (c.wants(1)) c.importer().withhold(c.node().outputs[1], "reads the mask of a dropout");
  c.out(0,
        training && ratio > 0 ? c.emit(OpKind::Dropout, DropoutAttrs{ratio}, {c.in(0)}) : c.in(0));
}

DType random_dtype(NodeContext& c, DType like) {
  const DType dtype = c.has_attr("dtype") ? onnx_dtype(c.int_attr("dtype", 1)) : like;
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

void matmul(NodeContext& c) {
  // Vectors are matrices with one row or column.
  TensorId a = c.in(0), b = c.importer().tied_table(c.in(1), c.name());
  const bool row = c.rank(0) == 1, column = c.rank(1) == 1;
  if (c.rank(0) == 0 || c.rank(1) == 0) fail_input("cannot multiply scalars");
  if (row) a = c.reshape(a, {1, c.shape(0)[0]}, "row");
  if (column) b = c.reshape(b, {c.shape(1)[0], 1}, "column");
  TensorId y = c.emit(OpKind::MatMul, MatMulAttrs{}, {a, b});
  if (row || column) {
    Shape shape = c.builder().shape(y);
    if (column) shape.pop_back();
    if (row) shape.erase(shape.end() - (column ? 1 : 2));
    y = c.reshape(y, shape, "vector");
  }
  c.out(0, y);
}

void gemm(NodeContext& c) {
  const double alpha = c.float_attr("alpha", 1), beta = c.float_attr("beta", 1);
  const bool transpose_a = c.int_attr("transA", 0) != 0, transpose_b = c.int_attr("transB", 0) != 0;
  const Shape b = c.shape(1);
  if (b.size() != 2) fail_input("weight has shape {}", format_shape(b));
  const auto is_weight = [&](size_t i) {
    return c.builder().graph()[c.required(i)].role == TensorRole::Weight;
  };
  const bool bias_fits = !c.has(2) || (is_weight(2) && c.shape(2) == Shape{b[transpose_b ? 0 : 1]});
  if (is_weight(1) && !transpose_a && alpha == 1 && beta == 1 && bias_fits) {
    c.out(0, c.emit(OpKind::Linear, LinearAttrs{!transpose_b}, {c.in(0), c.in(1), c.in(2)}));
    return;
  }
  TensorId y = c.emit(OpKind::MatMul, MatMulAttrs{transpose_a, transpose_b}, {c.in(0), c.in(1)},
                      c.has(2) || alpha != 1 ? "product" : "");
  if (alpha != 1) y = c.unary(UnaryFn::Affine, y, alpha, 0, c.has(2) ? "scaled" : "");
  if (c.has(2)) {
    TensorId bias = c.in(2);
    if (beta != 1) bias = c.unary(UnaryFn::Affine, bias, beta, 0, "bias");
    y = c.binary(BinaryFn::Add, y, bias);
  }
  c.out(0, y);
}

// Two-operand einsum as a batched product, one-operand as transpose and sum.
void einsum(NodeContext& c) {
  std::string equation = c.string_attr("equation", "");
  std::erase(equation, ' ');
  if (equation.find("...") != std::string::npos)
    fail_unsupported("\"{}\": write out the letters that ... stands for", equation);
  const size_t arrow = equation.find("->");
  const std::string left = equation.substr(0, arrow);
  std::vector<std::string> terms;
  size_t begin = 0;
  for (size_t i = 0; i <= left.size(); ++i) {
    if (i != left.size() && left[i] != ',') continue;
    terms.push_back(left.substr(begin, i - begin));
    begin = i + 1;
  }
  std::string output;
  if (arrow != std::string::npos) {
    output = equation.substr(arrow + 2);
  } else {
    std::map<char, int> counts;
    for (const auto& term : terms)
      for (char letter : term) ++counts[letter];
    for (const auto& [letter, count] : counts)
      if (count == 1) output += letter;
  }
  if (terms.size() != c.input_count() || terms.empty() || terms.size() > 2)
    fail_unsupported("\"{}\": only one or two operands are supported", equation);
  std::map<char, int64_t> sizes;
  std::vector<TensorId> operands;
  for (size_t i = 0; i < terms.size(); ++i) {
    if (c.rank(i) != terms[i].size())
      fail_input("\"{}\" does not fit operand {} of shape {}", equation, i,
                 format_shape(c.shape(i)));
    for (size_t k = 0; k < terms[i].size(); ++k) {
      if (terms[i].find(terms[i][k]) != k)
        fail_unsupported("\"{}\": a letter twice in one operand (a diagonal)", equation);
      const auto [entry, inserted] = sizes.emplace(terms[i][k], c.shape(i)[k]);
      if (!inserted && entry->second != c.shape(i)[k])
        fail_input("\"{}\": sizes of {} differ: {} and {}", equation, terms[i][k], entry->second,
                   c.shape(i)[k]);
    }
    operands.push_back(c.in(i));
  }
  for (char letter : output)
    if (!sizes.contains(letter)) fail_input("\"{}\": {} is in no operand", equation, letter);
  const auto in = [](const std::string& term, char letter) {
    return term.find(letter) != std::string::npos;
  };
  // Letters that only one operand has and the output lacks are summed first.
  for (size_t i = 0; i < terms.size(); ++i) {
    Ints axes;
    std::string rest;
    for (size_t k = 0; k < terms[i].size(); ++k) {
      const char letter = terms[i][k];
      const bool elsewhere = in(output, letter) || (terms.size() == 2 && in(terms[1 - i], letter));
      if (elsewhere)
        rest += letter;
      else
        axes.push_back(static_cast<int64_t>(k));
    }
    if (axes.empty()) continue;
    operands[i] = c.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, axes, false}, {operands[i]},
                         "sum" + std::to_string(i));
    terms[i] = rest;
  }
  const auto ordered = [&](TensorId x, const std::string& from, const std::string& to,
                           std::string_view part) {
    if (from == to) return x;
    Ints order;
    for (char letter : to) order.push_back(static_cast<int64_t>(from.find(letter)));
    return c.emit(OpKind::Transpose, TransposeAttrs{order}, {x}, part);
  };
  if (terms.size() == 1) {
    c.out(0, ordered(operands[0], terms[0], output, ""));
    return;
  }
  std::string batch, m, n, k;
  for (char letter : terms[0]) {
    if (!in(terms[1], letter))
      m += letter;
    else if (in(output, letter))
      batch += letter;
    else
      k += letter;
  }
  for (char letter : terms[1])
    if (!in(terms[0], letter)) n += letter;
  const auto count = [&](const std::string& letters) {
    int64_t product = 1;
    for (char letter : letters) product *= sizes[letter];
    return product;
  };
  const auto matrix = [&](TensorId x, int64_t rows, int64_t columns, std::string_view part) {
    return c.reshape(x, {count(batch), rows, columns}, part);
  };
  const TensorId a = matrix(ordered(operands[0], terms[0], batch + m + k, "left"), count(m),
                            count(k), "left_matrix");
  const TensorId b = matrix(ordered(operands[1], terms[1], batch + k + n, "right"), count(k),
                            count(n), "right_matrix");
  TensorId y = c.emit(OpKind::MatMul, MatMulAttrs{}, {a, b}, "product");
  Shape shape;
  for (char letter : batch + m + n) shape.push_back(sizes[letter]);
  y = c.reshape(y, shape, "result");
  c.out(0, ordered(y, batch + m + n, output, ""));
}

// Axes of a reduction: an attribute, or since opset 18 (13 for ReduceSum) an input.
Ints reduction_axes(NodeContext& c) {
  Ints axes;
  bool given = false;
  if (c.has_attr("axes")) {
    axes = c.ints_attr("axes", {});
    given = true;
  } else if (c.has(1)) {
    axes = c.required_ints(1, "the list of axes");
    given = !axes.empty();
  }
  if (!given && c.int_attr("noop_with_empty_axes", 0) != 0) return {};
  std::set<int64_t> sorted;
  if (!given)
    for (size_t i = 0; i < c.rank(0); ++i) sorted.insert(static_cast<int64_t>(i));
  for (int64_t axis : axes) sorted.insert(static_cast<int64_t>(normalize_axis(axis, c.rank(0))));
  return Ints(sorted.begin(), sorted.end());
}

template <ReduceFn fn>
void reduce(NodeContext& c) {
  const Ints axes = reduction_axes(c);
  if (axes.empty()) return c.out(0, c.in(0));
  TensorId x = c.in(0);
  if (c.type(0).dtype == DType::Bool) x = c.emit(OpKind::Cast, CastAttrs{DType::I64}, {x}, "count");
  c.out(0, c.emit(OpKind::Reduce, ReduceAttrs{fn, axes, c.int_attr("keepdims", 1) != 0}, {x}));
}

void reduce_log_sum(NodeContext& c) {
  const Ints axes = reduction_axes(c);
  const TensorId sum =
      c.emit(OpKind::Reduce, ReduceAttrs{ReduceFn::Sum, axes, c.int_attr("keepdims", 1) != 0},
             {c.in(0)}, "sum");
  c.out(0, c.unary(UnaryFn::Log, sum));
}

void arg_extreme(NodeContext& c, bool minimum) {
  const auto axis = static_cast<int64_t>(normalize_axis(c.int_attr("axis", 0), c.rank(0)));
  TensorId x = c.in(0);
  if (minimum) x = c.unary(UnaryFn::Neg, x, 0, 0, "negated");
  TensorId index = c.emit(OpKind::ArgMax, AxisAttrs{axis}, {x});
  if (c.int_attr("keepdims", 1) == 0) {
    Shape shape = c.shape(0);
    shape.erase(shape.begin() + axis);
    index = c.reshape(index, shape, "index");
  }
  c.out(0, index);
}
void arg_max(NodeContext& c) { arg_extreme(c, false); }
void arg_min(NodeContext& c) { arg_extreme(c, true); }

void cum_sum(NodeContext& c) {
  if (c.int_attr("exclusive", 0) != 0 || c.int_attr("reverse", 0) != 0)
    fail_unsupported("exclusive and reverse sums");
  const Ints axis = c.required_ints(1, "the axis");
  if (axis.size() != 1) fail_input("axis has {} values, expected 1", axis.size());
  c.out(0, c.emit(OpKind::CumSum,
                  AxisAttrs{static_cast<int64_t>(normalize_axis(axis[0], c.rank(0)))}, {c.in(0)}));
}

}  // namespace

void add_math_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"Abs", plain_unary<UnaryFn::Abs>},
      {"Add", plain_binary<BinaryFn::Add>},
      {"And", plain_binary<BinaryFn::And>},
      {"ArgMax", arg_max},
      {"ArgMin", arg_min},
      {"Bernoulli", bernoulli},
      {"Cast", cast},
      {"CastLike", cast_like},
      {"Ceil", plain_unary<UnaryFn::Ceil>},
      {"Celu", celu},
      {"Clip", clip},
      {"Cos", plain_unary<UnaryFn::Cos>},
      {"CumSum", cum_sum},
      {"Div", plain_binary<BinaryFn::Div>},
      {"Dropout", dropout},
      {"Einsum", einsum},
      {"Elu", elu},
      {"Equal", plain_binary<BinaryFn::Equal>},
      {"Erf", plain_unary<UnaryFn::Erf>},
      {"Exp", plain_unary<UnaryFn::Exp>},
      {"Floor", plain_unary<UnaryFn::Floor>},
      {"Gelu", gelu},
      {"Gemm", gemm},
      {"Greater", plain_binary<BinaryFn::Greater>},
      {"GreaterOrEqual", plain_binary<BinaryFn::GreaterEqual>},
      {"HardSigmoid", hard_sigmoid},
      {"HardSwish", plain_unary<UnaryFn::HardSwish>},
      {"Identity", identity},
      {"IsNaN", plain_unary<UnaryFn::IsNan>},
      {"LeakyRelu", leaky_relu},
      {"Less", plain_binary<BinaryFn::Less>},
      {"LessOrEqual", plain_binary<BinaryFn::LessEqual>},
      {"Log", plain_unary<UnaryFn::Log>},
      {"MatMul", matmul},
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
      {"ReduceL1", reduce<ReduceFn::L1>},
      {"ReduceL2", reduce<ReduceFn::L2>},
      {"ReduceLogSum", reduce_log_sum},
      {"ReduceLogSumExp", reduce<ReduceFn::LogSumExp>},
      {"ReduceMax", reduce<ReduceFn::Max>},
      {"ReduceMean", reduce<ReduceFn::Mean>},
      {"ReduceMin", reduce<ReduceFn::Min>},
      {"ReduceProd", reduce<ReduceFn::Prod>},
      {"ReduceSum", reduce<ReduceFn::Sum>},
      {"ReduceSumSquare", reduce<ReduceFn::SumSquare>},
      {"Relu", plain_unary<UnaryFn::Relu>},
      {"Round", plain_unary<UnaryFn::Round>},
      {"Selu", selu},
      {"Sigmoid", plain_unary<UnaryFn::Sigmoid>},
      {"Sign", plain_unary<UnaryFn::Sign>},
      {"Sin", plain_unary<UnaryFn::Sin>},
      {"Softplus", plain_unary<UnaryFn::Softplus>},
      {"Softsign", softsign},
      {"Sqrt", plain_unary<UnaryFn::Sqrt>},
      {"Sub", plain_binary<BinaryFn::Sub>},
      {"Sum", variadic<BinaryFn::Add>},
      {"Tanh", plain_unary<UnaryFn::Tanh>},
      {"Where", where},
      {"Xor", plain_binary<BinaryFn::Xor>},
  };
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
