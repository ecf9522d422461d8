#include "windlass/runtime/kernels/unary_functions.h"

#include <algorithm>
#include <numbers>
#include <utility>

#include <ATen/ops/abs.h>
#include <ATen/ops/acos.h>
#include <ATen/ops/acosh.h>
#include <ATen/ops/asin.h>
#include <ATen/ops/asinh.h>
#include <ATen/ops/atan.h>
#include <ATen/ops/atanh.h>
#include <ATen/ops/ceil.h>
#include <ATen/ops/clamp.h>
#include <ATen/ops/clamp_max.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cosh.h>
#include <ATen/ops/div.h>
#include <ATen/ops/elu.h>
#include <ATen/ops/elu_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/erf.h>
#include <ATen/ops/exp.h>
#include <ATen/ops/floor.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/hardswish.h>
#include <ATen/ops/hardswish_backward.h>
#include <ATen/ops/hardtanh_backward.h>
#include <ATen/ops/isnan.h>
#include <ATen/ops/leaky_relu.h>
#include <ATen/ops/leaky_relu_backward.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/mish.h>
#include <ATen/ops/mish_backward.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/neg.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/reciprocal.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/sgn.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/sigmoid_backward.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/silu_backward.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/sinh.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/sqrt.h>
#include <ATen/ops/tan.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tanh_backward.h>
#include <ATen/ops/threshold_backward.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

// Softplus beyond this is its argument, in every type.
constexpr double kSoftplusLinear = 40;

// alpha x + beta into y, of x's type. Integers are computed as floating-point numbers and
// truncated.
void affine(const at::Tensor& x, double alpha, double beta, at::Tensor& y) {
  if (is_integral(x)) {
    y.copy_(at::mul(x.to(at::kDouble), alpha).add_(beta));
  } else {
    at::mul_out(y, x, alpha);
    if (beta != 0) y.add_(beta);
  }
}

}  // namespace

void unary_of_integers(const UnaryAttrs& a, const at::Tensor& x, at::Tensor& y) {
  switch (a.fn) {
    case UnaryFn::Relu: y.copy_(at::clamp(x, 0)); return;
    case UnaryFn::Clip: y.copy_(at::clamp(x.to(at::kDouble), a.alpha, a.beta)); return;
    case UnaryFn::Sqrt: y.copy_(at::sqrt(x.to(at::kDouble))); return;
    case UnaryFn::Power: y.copy_(at::pow(x.to(at::kDouble), a.alpha)); return;
    case UnaryFn::Floor:
    case UnaryFn::Ceil:
    case UnaryFn::Round: y.copy_(x); return;
    case UnaryFn::Square: at::mul_out(y, x, x); return;
    default: fail(ErrorKind::Internal, "internal error: {} of integers", enum_name(a.fn));
  }
}

void unary_function(const UnaryAttrs& a, const at::Tensor& x, at::Tensor& y) {
  switch (a.fn) {
    case UnaryFn::Identity: y.copy_(x); return;
    case UnaryFn::Relu: at::clamp_min_out(y, x, 0); return;
    case UnaryFn::LeakyRelu: at::leaky_relu_out(y, x, a.alpha); return;
    case UnaryFn::Elu:
      // ATen's scale multiplies both sides.
      if (a.beta != 0) {
        at::elu_out(y, x, a.alpha / a.beta, a.beta, 1);
      } else {
        at::clamp_max_out(y, x, 0);
        y.expm1_().mul_(a.alpha);
      }
      return;
    case UnaryFn::Clip: at::clamp_out(y, x, a.alpha, a.beta); return;
    case UnaryFn::Gelu: at::gelu_out(y, x, "none"); return;
    case UnaryFn::GeluTanh: at::gelu_out(y, x, "tanh"); return;
    case UnaryFn::Silu: at::silu_out(y, x); return;
    case UnaryFn::Sigmoid: at::sigmoid_out(y, x); return;
    case UnaryFn::HardSigmoid:
      affine(x, a.alpha, a.beta, y);
      y.clamp_(0, 1);
      return;
    case UnaryFn::HardSwish: at::hardswish_out(y, x); return;
    case UnaryFn::Softplus: at::softplus_out(y, x, 1, kSoftplusLinear); return;
    case UnaryFn::Mish: at::mish_out(y, x); return;
    case UnaryFn::Tanh: at::tanh_out(y, x); return;
    case UnaryFn::Erf: at::erf_out(y, x); return;
    case UnaryFn::Exp: at::exp_out(y, x); return;
    case UnaryFn::Log: at::log_out(y, x); return;
    case UnaryFn::Sqrt: at::sqrt_out(y, x); return;
    case UnaryFn::Rsqrt: at::rsqrt_out(y, x); return;
    case UnaryFn::Reciprocal: at::reciprocal_out(y, x); return;
    case UnaryFn::Square: at::mul_out(y, x, x); return;
    case UnaryFn::Abs: at::abs_out(y, x); return;
    case UnaryFn::Neg: at::neg_out(y, x); return;
    case UnaryFn::Sin: at::sin_out(y, x); return;
    case UnaryFn::Cos: at::cos_out(y, x); return;
    case UnaryFn::Affine: affine(x, a.alpha, a.beta, y); return;
    case UnaryFn::Power: at::pow_out(y, x, a.alpha); return;
    case UnaryFn::Sign: at::sgn_out(y, x); return;
    case UnaryFn::Floor: at::floor_out(y, x); return;
    case UnaryFn::Ceil: at::ceil_out(y, x); return;
    case UnaryFn::Round: at::round_out(y, x); return;
    case UnaryFn::Not: at::logical_not_out(y, x); return;
    case UnaryFn::IsNan: y.copy_(at::isnan(x)); return;
    case UnaryFn::Tan: at::tan_out(y, x); return;
    case UnaryFn::Asin: at::asin_out(y, x); return;
    case UnaryFn::Acos: at::acos_out(y, x); return;
    case UnaryFn::Atan: at::atan_out(y, x); return;
    case UnaryFn::Sinh: at::sinh_out(y, x); return;
    case UnaryFn::Cosh: at::cosh_out(y, x); return;
    case UnaryFn::Asinh: at::asinh_out(y, x); return;
    case UnaryFn::Acosh: at::acosh_out(y, x); return;
    case UnaryFn::Atanh: at::atanh_out(y, x); return;
  }
  fail(ErrorKind::Internal, "internal error: unknown function {}", static_cast<int>(a.fn));
}

void unary_derivative(const UnaryAttrs& a, const at::Tensor& g, const at::Tensor& v,
                      at::Tensor& dx) {
  switch (a.fn) {
    case UnaryFn::Identity: dx.copy_(g); return;
    case UnaryFn::Neg: at::neg_out(dx, g); return;
    case UnaryFn::Affine: at::mul_out(dx, g, a.alpha); return;
    case UnaryFn::Relu: at::threshold_backward_out(dx, g, v, 0); return;
    case UnaryFn::LeakyRelu: at::leaky_relu_backward_out(dx, g, v, a.alpha, false); return;
    case UnaryFn::Elu:
      if (a.beta == 0) {
        at::clamp_max_out(dx, v, 0);
        dx.exp_().mul_(a.alpha).mul_(g).masked_fill_(at::gt(v, 0), 0);
      } else {
        const bool of_result = a.alpha >= 0 && a.beta > 0;
        at::elu_backward_out(dx, g, a.alpha / a.beta, a.beta, 1, of_result, v);
      }
      return;
    case UnaryFn::Clip: at::hardtanh_backward_out(dx, g, v, a.alpha, a.beta); return;
    case UnaryFn::HardSigmoid:
      at::hardtanh_backward_out(dx, g, v, 0, 1);
      dx.mul_(a.alpha);
      return;
    case UnaryFn::Sigmoid: at::sigmoid_backward_out(dx, g, v); return;
    case UnaryFn::Tanh: at::tanh_backward_out(dx, g, v); return;
    case UnaryFn::Softplus:  // -(e^-y - 1)
      at::neg_out(dx, v);
      dx.expm1_().neg_().mul_(g);
      return;
    case UnaryFn::Exp: at::mul_out(dx, g, v); return;
    case UnaryFn::Sqrt:
      at::div_out(dx, g, v);
      dx.mul_(0.5).masked_fill_(at::eq(v, 0), 0);
      return;
    case UnaryFn::Rsqrt:
      at::mul_out(dx, v, v);
      dx.mul_(v).mul_(g).mul_(-0.5);
      return;
    case UnaryFn::Reciprocal:
      at::mul_out(dx, v, v);
      dx.mul_(g).neg_();
      return;
    case UnaryFn::Gelu: at::gelu_backward_out(dx, g, v, "none"); return;
    case UnaryFn::GeluTanh: at::gelu_backward_out(dx, g, v, "tanh"); return;
    case UnaryFn::Silu: at::silu_backward_out(dx, g, v); return;
    case UnaryFn::HardSwish: dx = at::hardswish_backward(g, v); return;
    case UnaryFn::Mish: dx = at::mish_backward(g, v); return;
    case UnaryFn::Erf:
      at::mul_out(dx, v, v);
      dx.neg_().exp_().mul_(g).mul_(2 * std::numbers::inv_sqrtpi);
      return;
    case UnaryFn::Log: at::div_out(dx, g, v); return;
    case UnaryFn::Square:
      at::mul_out(dx, g, v);
      dx.mul_(2);
      return;
    case UnaryFn::Abs:
      at::sgn_out(dx, v);
      dx.mul_(g);
      return;
    case UnaryFn::Sin:
      at::cos_out(dx, v);
      dx.mul_(g);
      return;
    case UnaryFn::Cos:
      at::sin_out(dx, v);
      dx.mul_(g).neg_();
      return;
    case UnaryFn::Power:
      if (a.alpha == 0) {
        dx.zero_();
        return;
      }
      at::pow_out(dx, v, a.alpha - 1);
      dx.mul_(g).mul_(a.alpha);
      return;
    case UnaryFn::Tan:
      at::mul_out(dx, v, v);
      dx.add_(1).mul_(g);
      return;
    case UnaryFn::Asin:
    case UnaryFn::Acos:
      at::mul_out(dx, v, v);
      dx.neg_().add_(1).rsqrt_().mul_(g);
      if (a.fn == UnaryFn::Acos) dx.neg_();
      return;
    case UnaryFn::Atan:
      at::mul_out(dx, v, v);
      dx.add_(1).reciprocal_().mul_(g);
      return;
    case UnaryFn::Sinh:
      at::cosh_out(dx, v);
      dx.mul_(g);
      return;
    case UnaryFn::Cosh:
      at::sinh_out(dx, v);
      dx.mul_(g);
      return;
    case UnaryFn::Asinh:
    case UnaryFn::Acosh:
      at::mul_out(dx, v, v);
      dx.add_(a.fn == UnaryFn::Asinh ? 1 : -1).rsqrt_().mul_(g);
      return;
    case UnaryFn::Atanh:
      at::mul_out(dx, v, v);
      dx.neg_().add_(1).reciprocal_().mul_(g);
      return;
    default: fail(ErrorKind::Internal, "internal error: {} has no derivative", enum_name(a.fn));
  }
}

}  // namespace windlass
