// Functions of one value, and casts. The derivative of each is written in the input or in the
// output, whichever the gradient rule saves.

#include <algorithm>
#include <cmath>
#include <numbers>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

constexpr double kInverseSqrt2Pi = 0.5 * std::numbers::inv_sqrtpi * std::numbers::sqrt2;

double sigmoid(double x) {
  return x >= 0 ? 1 / (1 + std::exp(-x)) : std::exp(x) / (1 + std::exp(x));
}

// log(1 + e^x) without overflow.
double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::abs(x))); }

double sign(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }

// Argument of the tanh in the approximation of Gelu, and its derivative.
double gelu_inner(double x) { return std::sqrt(2 / std::numbers::pi) * (x + 0.044715 * x * x * x); }
double gelu_inner_slope(double x) {
  return std::sqrt(2 / std::numbers::pi) * (1 + 3 * 0.044715 * x * x);
}

double apply(const UnaryAttrs& a, double x) {
  switch (a.fn) {
    case UnaryFn::Identity: return x;
    case UnaryFn::Relu: return x < 0 ? 0 : x;
    case UnaryFn::LeakyRelu: return x < 0 ? a.alpha * x : x;
    case UnaryFn::Elu: return x < 0 ? a.alpha * std::expm1(x) : a.beta * x;
    case UnaryFn::Clip: return x < a.alpha ? a.alpha : x > a.beta ? a.beta : x;
    case UnaryFn::Gelu: return 0.5 * x * (1 + std::erf(x / std::numbers::sqrt2));
    case UnaryFn::GeluTanh: return 0.5 * x * (1 + std::tanh(gelu_inner(x)));
    case UnaryFn::Silu: return x * sigmoid(x);
    case UnaryFn::Sigmoid: return sigmoid(x);
    case UnaryFn::HardSigmoid: return std::clamp(a.alpha * x + a.beta, 0.0, 1.0);
    case UnaryFn::HardSwish: return x * std::clamp(x / 6 + 0.5, 0.0, 1.0);
    case UnaryFn::Softplus: return softplus(x);
    case UnaryFn::Mish: return x * std::tanh(softplus(x));
    case UnaryFn::Tanh: return std::tanh(x);
    case UnaryFn::Erf: return std::erf(x);
    case UnaryFn::Exp: return std::exp(x);
    case UnaryFn::Log: return std::log(x);
    case UnaryFn::Sqrt: return std::sqrt(x);
    case UnaryFn::Rsqrt: return 1 / std::sqrt(x);
    case UnaryFn::Reciprocal: return 1 / x;
    case UnaryFn::Square: return x * x;
    case UnaryFn::Abs: return std::abs(x);
    case UnaryFn::Neg: return -x;
    case UnaryFn::Sin: return std::sin(x);
    case UnaryFn::Cos: return std::cos(x);
    case UnaryFn::Affine: return a.alpha * x + a.beta;
    case UnaryFn::Power: return std::pow(x, a.alpha);
    case UnaryFn::Sign: return sign(x);
    case UnaryFn::Floor: return std::floor(x);
    case UnaryFn::Ceil: return std::ceil(x);
    case UnaryFn::Round: return std::nearbyint(x);  // halves to even, as in ONNX and PyTorch
    case UnaryFn::Not: return x == 0 ? 1 : 0;
    case UnaryFn::IsNan: return std::isnan(x) ? 1 : 0;
    case UnaryFn::Tan: return std::tan(x);
    case UnaryFn::Asin: return std::asin(x);
    case UnaryFn::Acos: return std::acos(x);
    case UnaryFn::Atan: return std::atan(x);
    case UnaryFn::Sinh: return std::sinh(x);
    case UnaryFn::Cosh: return std::cosh(x);
    case UnaryFn::Asinh: return std::asinh(x);
    case UnaryFn::Acosh: return std::acosh(x);
    case UnaryFn::Atanh: return std::atanh(x);
  }
  fail(ErrorKind::Internal, "Unary: unknown function {}", static_cast<int>(a.fn));
}

// What the derivative is a function of.
enum class Needs : uint8_t { Nothing, Input, Output };

Needs derivative_needs(const UnaryAttrs& a) {
  switch (a.fn) {
    // The sign of the output tells which side the input was on, unless the slope there is negative.
    case UnaryFn::LeakyRelu:
    case UnaryFn::Elu: return a.alpha >= 0 ? Needs::Output : Needs::Input;
    case UnaryFn::Identity:
    case UnaryFn::Neg:
    case UnaryFn::Affine: return Needs::Nothing;
    case UnaryFn::Relu:
    case UnaryFn::Clip:
    case UnaryFn::HardSigmoid:
    case UnaryFn::Sigmoid:
    case UnaryFn::Tanh:
    case UnaryFn::Softplus:
    case UnaryFn::Exp:
    case UnaryFn::Sqrt:
    case UnaryFn::Rsqrt:
    case UnaryFn::Reciprocal:
    case UnaryFn::Tan: return Needs::Output;
    case UnaryFn::Gelu:
    case UnaryFn::GeluTanh:
    case UnaryFn::Silu:
    case UnaryFn::HardSwish:
    case UnaryFn::Mish:
    case UnaryFn::Erf:
    case UnaryFn::Log:
    case UnaryFn::Square:
    case UnaryFn::Abs:
    case UnaryFn::Sin:
    case UnaryFn::Cos:
    case UnaryFn::Power:
    case UnaryFn::Asin:
    case UnaryFn::Acos:
    case UnaryFn::Atan:
    case UnaryFn::Sinh:
    case UnaryFn::Cosh:
    case UnaryFn::Asinh:
    case UnaryFn::Acosh:
    case UnaryFn::Atanh: return Needs::Input;
    case UnaryFn::Sign:
    case UnaryFn::Floor:
    case UnaryFn::Ceil:
    case UnaryFn::Round:
    case UnaryFn::Not:
    case UnaryFn::IsNan: break;
  }
  fail(ErrorKind::Internal, "Unary {}: not differentiable", enum_name(a.fn));
}

// Derivative at `v`, which is the input or the output as derivative_needs says.
double derivative(const UnaryAttrs& a, double v) {
  switch (a.fn) {
    case UnaryFn::Identity: return 1;
    case UnaryFn::Neg: return -1;
    case UnaryFn::Affine: return a.alpha;

    case UnaryFn::Relu: return v > 0 ? 1 : 0;
    case UnaryFn::LeakyRelu: return v > 0 ? 1 : a.alpha;
    case UnaryFn::Elu:
      if (v > 0) return a.beta;
      return a.alpha >= 0 ? v + a.alpha : a.alpha * std::exp(v);
    case UnaryFn::Clip: return v > a.alpha && v < a.beta ? 1 : 0;
    case UnaryFn::HardSigmoid: return v > 0 && v < 1 ? a.alpha : 0;
    case UnaryFn::Sigmoid: return v * (1 - v);
    case UnaryFn::Tanh: return 1 - v * v;
    case UnaryFn::Softplus: return -std::expm1(-v);
    case UnaryFn::Exp: return v;
    // At 0 as PyTorch's norms and standard deviations have it, which exporters write as a root: one
    // row that is constant shall not make all gradients infinite.
    case UnaryFn::Sqrt: return v == 0 ? 0 : 0.5 / v;
    case UnaryFn::Rsqrt: return -0.5 * v * v * v;
    case UnaryFn::Reciprocal: return -v * v;

    case UnaryFn::Gelu:
      return 0.5 * (1 + std::erf(v / std::numbers::sqrt2)) +
             v * kInverseSqrt2Pi * std::exp(-0.5 * v * v);
    case UnaryFn::GeluTanh: {
      const double t = std::tanh(gelu_inner(v));
      return 0.5 * (1 + t) + 0.5 * v * (1 - t * t) * gelu_inner_slope(v);
    }
    case UnaryFn::Silu: return sigmoid(v) * (1 + v * (1 - sigmoid(v)));
    case UnaryFn::HardSwish: return v <= -3 ? 0 : v >= 3 ? 1 : v / 3 + 0.5;
    case UnaryFn::Mish: {
      const double t = std::tanh(softplus(v));
      return t + v * (1 - t * t) * sigmoid(v);
    }
    case UnaryFn::Erf: return 2 * std::numbers::inv_sqrtpi * std::exp(-v * v);
    case UnaryFn::Log: return 1 / v;
    case UnaryFn::Square: return 2 * v;
    case UnaryFn::Abs: return sign(v);
    case UnaryFn::Sin: return std::cos(v);
    case UnaryFn::Cos: return -std::sin(v);
    case UnaryFn::Power: return a.alpha == 0 ? 0 : a.alpha * std::pow(v, a.alpha - 1);
    case UnaryFn::Tan: return 1 + v * v;
    case UnaryFn::Asin: return 1 / std::sqrt(1 - v * v);
    case UnaryFn::Acos: return -1 / std::sqrt(1 - v * v);
    case UnaryFn::Atan: return 1 / (1 + v * v);
    case UnaryFn::Sinh: return std::cosh(v);
    case UnaryFn::Cosh: return std::sinh(v);
    case UnaryFn::Asinh: return 1 / std::sqrt(v * v + 1);
    case UnaryFn::Acosh: return 1 / std::sqrt(v * v - 1);
    case UnaryFn::Atanh: return 1 / (1 - v * v);
    default: break;
  }
  fail(ErrorKind::Internal, "Unary {}: not differentiable", enum_name(a.fn));
}

}  // namespace

ForwardResult unary_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<UnaryAttrs>();
  Array y = call.input(0);
  for (double& value : y.values) value = apply(attrs, value);
  if (is_integer(call.dtype(0)))
    for (double& value : y.values) value = std::trunc(value);
  return {{y}, {}};
}

std::vector<Array> unary_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<UnaryAttrs>();
  if (!call.wants(0)) return {Array()};
  Array dx = call.gradient();
  const Needs needs = derivative_needs(attrs);
  const Array* at = needs == Needs::Input    ? &call.input(0)
                    : needs == Needs::Output ? &call.output(0)
                                             : nullptr;
  for (size_t i = 0; i < dx.values.size(); ++i)
    dx.values[i] *= derivative(attrs, at != nullptr ? at->values[i] : 0);
  return {dx};
}

// 16-bit floats keep the precision of fp32: enough for constants, which are written by people.
ForwardResult cast_forward(const ForwardCall& call) {
  const DType to = call.attrs<CastAttrs>().to;
  Array y = call.input(0);
  for (double& value : y.values) {
    if (is_integer(to)) {
      value = std::trunc(value);
    } else if (to == DType::Bool) {
      value = value != 0 ? 1 : 0;
    } else if (to != DType::F64) {
      value = static_cast<double>(static_cast<float>(value));
    }
  }
  return {{y}, {}};
}

std::vector<Array> cast_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {Array()};
  return {call.gradient()};
}

}  // namespace windlass::reference
