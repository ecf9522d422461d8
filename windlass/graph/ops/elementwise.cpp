// Elementwise functions, dropout and random numbers.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

enum class Keeps : uint8_t { Nothing, Input, Output, NoGradient };

struct UnaryInfo {
  Keeps keeps;
  double operations;
};

// What the derivative of each function is computed from. Where the output will do, it is kept
// rather than the input, since the next op usually keeps it as well.
UnaryInfo unary_info(const UnaryAttrs& attrs) {
  switch (attrs.fn) {
    case UnaryFn::Identity: return {Keeps::Nothing, 0};
    case UnaryFn::Neg:
    case UnaryFn::Affine: return {Keeps::Nothing, 2};
    case UnaryFn::LeakyRelu:
      // The sign of the output tells which side the input was on, unless the slope is negative.
      return {attrs.alpha >= 0 ? Keeps::Output : Keeps::Input, 2};
    case UnaryFn::Elu:
      return {attrs.alpha >= 0 && attrs.beta > 0 ? Keeps::Output : Keeps::Input, 4};
    case UnaryFn::Relu:
    case UnaryFn::Clip:
    case UnaryFn::HardSigmoid: return {Keeps::Output, 2};
    case UnaryFn::Sigmoid:
    case UnaryFn::Tanh:
    case UnaryFn::Softplus:
    case UnaryFn::Exp:
    case UnaryFn::Sqrt:
    case UnaryFn::Rsqrt:
    case UnaryFn::Reciprocal:
    case UnaryFn::Tan: return {Keeps::Output, 4};
    case UnaryFn::Gelu:
    case UnaryFn::GeluTanh:
    case UnaryFn::Mish:
    case UnaryFn::Asin:
    case UnaryFn::Acos:
    case UnaryFn::Atan:
    case UnaryFn::Sinh:
    case UnaryFn::Cosh:
    case UnaryFn::Asinh:
    case UnaryFn::Acosh:
    case UnaryFn::Atanh: return {Keeps::Input, 10};
    case UnaryFn::Silu:
    case UnaryFn::HardSwish:
    case UnaryFn::Erf:
    case UnaryFn::Log:
    case UnaryFn::Sin:
    case UnaryFn::Cos:
    case UnaryFn::Power: return {Keeps::Input, 5};
    case UnaryFn::Square:
    case UnaryFn::Abs: return {Keeps::Input, 1};
    case UnaryFn::Sign:
    case UnaryFn::Floor:
    case UnaryFn::Ceil:
    case UnaryFn::Round:
    case UnaryFn::Not:
    case UnaryFn::IsNan: return {Keeps::NoGradient, 1};
  }
  return {Keeps::NoGradient, 0};
}

// Functions that only make sense on floating-point numbers.
bool needs_float(UnaryFn fn) {
  switch (fn) {
    case UnaryFn::Identity:
    case UnaryFn::Relu:
    case UnaryFn::Clip:
    case UnaryFn::Square:
    case UnaryFn::Abs:
    case UnaryFn::Neg:
    case UnaryFn::Affine:
    case UnaryFn::Power:
    case UnaryFn::Sign:
    case UnaryFn::Floor:
    case UnaryFn::Ceil:
    case UnaryFn::Round:
    case UnaryFn::Not:
    case UnaryFn::Sqrt: return false;
    default: return true;
  }
}

std::vector<TensorType> infer_unary(const Signature& s) {
  const UnaryFn fn = s.as<UnaryAttrs>().fn;
  if (needs_float(fn)) require_float(s, 0);
  if (fn == UnaryFn::Not || fn == UnaryFn::IsNan) return {{DType::Bool, s.shape(0)}};
  return {s.input(0)};
}

Arithmetic unary_arithmetic(const Signature& s) {
  return pointwise(elements(s.input(0)) * unary_info(s.as<UnaryAttrs>()).operations);
}

GradientRule unary_gradient(const Signature& s, const std::vector<bool>&) {
  const UnaryInfo info = unary_info(s.as<UnaryAttrs>());
  if (info.keeps == Keeps::NoGradient || !is_float(s.input(0).dtype)) return no_gradient(1);
  GradientRule rule;
  rule.inputs = {s.as<UnaryAttrs>().fn == UnaryFn::Identity ? GradientSource::PassThrough
                                                            : GradientSource::Computed};
  if (info.keeps == Keeps::Input) rule.saved = {saved_input(0)};
  if (info.keeps == Keeps::Output) rule.saved = {saved_output(0)};
  rule.arithmetic = pointwise(elements(s.input(0)) * (info.operations + 1));
  return rule;
}

bool is_comparison(BinaryFn fn) { return fn >= BinaryFn::Equal && fn <= BinaryFn::GreaterEqual; }
bool is_logical(BinaryFn fn) { return fn >= BinaryFn::And; }

std::vector<TensorType> infer_binary(const Signature& s) {
  const BinaryFn fn = s.as<BinaryAttrs>().fn;
  const Shape shape = broadcast_shapes(s.shape(0), s.shape(1));
  if (is_comparison(fn) || is_logical(fn)) return {{DType::Bool, shape}};
  if (s.input(0).dtype == DType::Bool && s.input(1).dtype == DType::Bool)
    fail_input("cannot apply {} to booleans", enum_name(fn));
  if (is_float(s.input(0).dtype) != is_float(s.input(1).dtype) && fn != BinaryFn::Pow)
    fail_input("operands are {} and {}: cast one of them", format_type(s.input(0)),
               format_type(s.input(1)));
  return {{s.input(0).dtype, shape}};
}

Arithmetic binary_arithmetic(const Signature& s) { return pointwise(elements(s.outputs[0])); }

GradientRule binary_gradient(const Signature& s, const std::vector<bool>& wanted) {
  const BinaryFn fn = s.as<BinaryAttrs>().fn;
  GradientRule rule = no_gradient(2);
  if (is_comparison(fn) || is_logical(fn)) return rule;
  for (size_t i = 0; i < 2; ++i)
    if (is_float(s.input(i).dtype)) rule.inputs[i] = GradientSource::Computed;
  // An operand that was not broadcast gets the gradient of a sum as it is.
  const bool linear = fn == BinaryFn::Add || fn == BinaryFn::Sub || fn == BinaryFn::Mod;
  if (linear && s.input(0) == s.outputs[0]) rule.inputs[0] = GradientSource::PassThrough;
  if (fn == BinaryFn::Add && s.input(1) == s.outputs[0])
    rule.inputs[1] = GradientSource::PassThrough;
  switch (fn) {
    case BinaryFn::Mul:
      if (wanted[1]) rule.saved.push_back(saved_input(0));
      if (wanted[0]) rule.saved.push_back(saved_input(1));
      break;
    case BinaryFn::Div:
      if (wanted[1]) rule.saved.push_back(saved_input(0));
      rule.saved.push_back(saved_input(1));
      break;
    case BinaryFn::Mod:
      if (wanted[1]) rule.saved = {saved_input(0), saved_input(1)};
      break;
    case BinaryFn::Pow:
      rule.saved = {saved_input(0)};
      if (wanted[0]) rule.saved.push_back(saved_input(1));
      if (wanted[1]) rule.saved.push_back(saved_output(0));
      break;
    case BinaryFn::Max:
    case BinaryFn::Min: rule.saved = {saved_input(0), saved_input(1)}; break;
    default: break;
  }
  rule.arithmetic = pointwise(elements(s.outputs[0]) * ((wanted[0] ? 1 : 0) + (wanted[1] ? 1 : 0)) *
                              (fn == BinaryFn::Pow ? 3 : 1));
  return rule;
}

std::vector<TensorType> infer_where(const Signature& s) {
  if (s.input(0).dtype != DType::Bool)
    fail_input("condition is {}, expected bool", format_type(s.input(0)));
  if (is_float(s.input(1).dtype) != is_float(s.input(2).dtype))
    fail_input("branches are {} and {}: cast one of them", format_type(s.input(1)),
               format_type(s.input(2)));
  return {
      {s.input(1).dtype, broadcast_shapes(s.shape(0), broadcast_shapes(s.shape(1), s.shape(2)))}};
}

GradientRule where_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(3);
  for (size_t i = 1; i < 3; ++i)
    if (is_float(s.input(i).dtype)) rule.inputs[i] = GradientSource::Computed;
  rule.saved = {saved_input(0)};
  rule.arithmetic = pointwise(elements(s.outputs[0]));
  return rule;
}

std::vector<TensorType> infer_cast(const Signature& s) {
  return {{s.as<CastAttrs>().to, s.shape(0)}};
}

GradientRule cast_gradient(const Signature& s, const std::vector<bool>&) {
  if (!is_float(s.input(0).dtype) || !is_float(s.as<CastAttrs>().to)) return no_gradient(1);
  return {.inputs = {GradientSource::Computed},
          .saved = {},
          .arithmetic = pointwise(elements(s.input(0)))};
}

std::vector<TensorType> infer_dropout(const Signature& s) {
  const double ratio = s.as<DropoutAttrs>().ratio;
  require_float(s, 0);
  if (!(ratio >= 0 && ratio < 1)) fail_input("ratio is {}, expected at least 0 and below 1", ratio);
  return {s.input(0)};
}

std::vector<TensorType> dropout_auxiliaries(const Signature& s) {
  return {{DType::Bool, s.shape(0)}};
}

Arithmetic dropout_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 3); }

GradientRule dropout_gradient(const Signature& s, const std::vector<bool>&) {
  return {.inputs = {GradientSource::Computed},
          .saved = {saved_aux(0)},
          .arithmetic = pointwise(elements(s.input(0)) * 2)};
}

void dropout_piece(const Signature&, OpPiece& piece) {
  piece.facts.random = piece.output_regions[0];
}

std::vector<TensorType> infer_random(const Signature& s) {
  const auto& a = s.as<RandomAttrs>();
  if (!is_float(a.dtype))
    fail_input("random numbers of type {} are not known", dtype_name(a.dtype));
  element_count(a.shape);
  return {{a.dtype, a.shape}};
}

void random_piece(const Signature&, OpPiece& piece) {
  std::get<RandomAttrs>(piece.attrs).shape = piece.outputs[0].shape;
  piece.facts.random = piece.output_regions[0];
}

Arithmetic random_arithmetic(const Signature& s) {
  return pointwise(static_cast<double>(element_count(s.as<RandomAttrs>().shape)) * 4);
}

OpInfo elementwise(OpKind kind, std::string_view name, size_t inputs) {
  OpInfo info{};
  info.kind = kind;
  info.name = name;
  info.family = OpFamily::Elementwise;
  info.min_inputs = info.max_inputs = inputs;
  info.memory_bound = true;
  info.loops = broadcast_loops;
  info.arithmetic = binary_arithmetic;
  return info;
}

}  // namespace

std::vector<OpInfo> elementwise_ops() {
  OpInfo unary = elementwise(OpKind::Unary, "Unary", 1);
  unary.infer = infer_unary;
  unary.arithmetic = unary_arithmetic;
  unary.gradient = unary_gradient;

  OpInfo binary = elementwise(OpKind::Binary, "Binary", 2);
  binary.infer = infer_binary;
  binary.gradient = binary_gradient;

  OpInfo where = elementwise(OpKind::Where, "Where", 3);
  where.infer = infer_where;
  where.gradient = where_gradient;

  OpInfo cast = elementwise(OpKind::Cast, "Cast", 1);
  cast.infer = infer_cast;
  cast.gradient = cast_gradient;

  OpInfo dropout = elementwise(OpKind::Dropout, "Dropout", 1);
  dropout.infer = infer_dropout;
  dropout.auxiliaries = dropout_auxiliaries;
  dropout.piece = dropout_piece;
  dropout.arithmetic = dropout_arithmetic;
  dropout.gradient = dropout_gradient;

  OpInfo random = elementwise(OpKind::Random, "Random", 0);
  random.infer = infer_random;
  random.piece = random_piece;
  random.arithmetic = random_arithmetic;

  return {unary, binary, where, cast, dropout, random};
}

}  // namespace windlass::ops
