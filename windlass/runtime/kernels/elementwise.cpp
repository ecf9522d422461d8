// Functions of several values with broadcasting, dropout, random numbers and sums of gradients.

#include <algorithm>
#include <array>
#include <utility>

#include <ATen/Parallel.h>
#include <ATen/ops/add.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/fmod.h>
#include <ATen/ops/ge.h>
#include <ATen/ops/gt.h>
#include <ATen/ops/le.h>
#include <ATen/ops/log.h>
#include <ATen/ops/logical_and.h>
#include <ATen/ops/logical_or.h>
#include <ATen/ops/logical_xor.h>
#include <ATen/ops/lt.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/pow.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/broadcast.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/random.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {
namespace {

// Maximum and minimum return the other operand where one is NaN in the reference (std::max); ATen's
// propagate NaN, as PyTorch does.
void compute(BinaryFn fn, const at::Tensor& a, const at::Tensor& b, at::Tensor& y) {
  const bool integer = c10::isIntegralType(a.scalar_type(), true);
  switch (fn) {
    case BinaryFn::Add: at::add_out(y, a, b); return;
    case BinaryFn::Sub: at::sub_out(y, a, b); return;
    case BinaryFn::Mul: at::mul_out(y, a, b); return;
    case BinaryFn::Div:
      if (integer)
        at::div_out(y, a, b, "trunc");
      else
        at::div_out(y, a, b);
      return;
    case BinaryFn::Mod:
      if (integer)
        at::remainder_out(y, a, b);
      else
        at::fmod_out(y, a, b);
      return;
    case BinaryFn::Pow:
      if (integer)  // truncated, negative exponents and all
        y.copy_(at::pow(a.to(at::kDouble), b.to(at::kDouble)));
      else
        at::pow_out(y, a, b);
      return;
    case BinaryFn::Max: at::maximum_out(y, a, b); return;
    case BinaryFn::Min: at::minimum_out(y, a, b); return;
    case BinaryFn::Equal: at::eq_out(y, a, b); return;
    case BinaryFn::Less: at::lt_out(y, a, b); return;
    case BinaryFn::LessEqual: at::le_out(y, a, b); return;
    case BinaryFn::Greater: at::gt_out(y, a, b); return;
    case BinaryFn::GreaterEqual: at::ge_out(y, a, b); return;
    case BinaryFn::And: at::logical_and_out(y, a, b); return;
    case BinaryFn::Or: at::logical_or_out(y, a, b); return;
    case BinaryFn::Xor: at::logical_xor_out(y, a, b); return;
  }
  fail(ErrorKind::Internal, "internal error: unknown function {}", static_cast<int>(fn));
}

// Throws if an integer is divided by zero: the processor would stop the program.
void check_divisors(BinaryFn fn, const at::Tensor& b) {
  if ((fn != BinaryFn::Div && fn != BinaryFn::Mod) || !c10::isIntegralType(b.scalar_type(), true))
    return;
  if (at::eq(b, 0).any().item<bool>())
    fail_input("{}: an integer is divided by zero", enum_name(fn));
}

// g times the derivative of the larger (smaller) of two by one of them, given whether it won and
// whether they are equal; equal ones take half each, as in PyTorch. Takes the same memory whether
// any are equal or not.
at::Tensor extremum_gradient(const at::Tensor& g, const at::Tensor& won, const at::Tensor& lost) {
  at::Tensor result = g.masked_fill(lost, 0);
  const at::Tensor tied = at::logical_or(won, lost).logical_not_();
  at::where_out(result, tied, at::mul(result, 0.5), result);
  return result;
}

void pow_gradient(BackwardCall& call, const at::Tensor& g) {
  const at::Tensor& a = call.input(0);
  if (call.wants(0)) {
    const at::Tensor& b = call.input(1);
    // b a^(b - 1), and 0 where b is 0 even if a is 0 too.
    at::Tensor slope = at::pow(a, at::sub(b, 1)).mul_(b);
    slope = slope.masked_fill_(at::eq(b, 0), 0).mul(g);
    set_summed(call.results[0], std::move(slope));
  }
  if (call.wants(1)) {
    const at::Tensor& y = call.output(0);
    // y log(a), and 0 for 0^b where that is finite.
    const bool half = a.scalar_type() == at::kHalf;  // for which ATen has no logarithm
    at::Tensor slope = at::mul(y, at::log(half ? a.to(at::kFloat) : a));
    slope.masked_fill_(at::logical_and(at::eq(a, 0), y.isfinite()), 0).mul_(g);
    set_summed(call.results[1], std::move(slope));
  }
}

// g factor into a result of the shape of g, or summed to a smaller one.
void set_product(Result& result, const at::Tensor& g, const at::Tensor& factor) {
  const bool whole = g.sizes() == at::IntArrayRef(result.type().shape);
  const bool same = g.scalar_type() == scalar_type(result.type().dtype);
  if (whole && result.adds() && factor.scalar_type() == g.scalar_type() && same)
    result.sum().addcmul_(g, factor);
  else if (whole && same && factor.scalar_type() == g.scalar_type())
    at::mul_out(result.allocate(), g, factor);
  else
    set_summed(result, at::mul(g, factor));
}

constexpr int64_t kDropoutPiece = 1024;

// y = x scale where the word is not below the threshold, else 0.
template <class T>
void drop(const T* x, const uint32_t* words, uint32_t threshold, double scale, int64_t n, T* y) {
  vectorized([=]() WINDLASS_INLINE {
    using W = wide_t<T>;
    const auto factor = static_cast<W>(scale);
#pragma omp simd
    for (int64_t i = 0; i < n; ++i)
      y[i] = static_cast<T>(static_cast<W>(x[i]) * factor_if_kept(words[i], threshold, factor));
  });
}

void keep_mask(const uint32_t* words, uint32_t threshold, int64_t n, bool* mask) {
  vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
    for (int64_t i = 0; i < n; ++i) mask[i] = words[i] >= threshold;
  });
}

template <class T>
void drop_again(const T* g, const bool* mask, double scale, int64_t n, bool add, T* dx) {
  vectorized([=]() WINDLASS_INLINE {
    using W = wide_t<T>;
    const auto factor = static_cast<W>(scale);
    const auto* kept = reinterpret_cast<const uint8_t*>(mask);
    if (add) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        dx[i] = static_cast<T>(static_cast<W>(dx[i]) +
                               static_cast<W>(g[i]) * (static_cast<W>(kept[i]) * factor));
    } else {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        dx[i] = static_cast<T>(static_cast<W>(g[i]) * (static_cast<W>(kept[i]) * factor));
    }
  });
}

}  // namespace

void binary_forward(ForwardCall& call) {
  const BinaryFn fn = call.attrs<BinaryAttrs>().fn;
  const at::Tensor& a = call.input(0);
  const at::Tensor& b = call.input(1);
  Result& result = call.outputs[0];
  check_divisors(fn, b);
  const at::ScalarType type = scalar_type(result.type().dtype);
  // The result has the first operand's type, whatever ATen would promote to.
  if (result.type().dtype == DType::Bool ||
      c10::promoteTypes(a.scalar_type(), b.scalar_type()) == type)
    compute(fn, a, b, result.allocate());
  else
    compute(fn, a, b.to(type), result.allocate());
}

void binary_backward(BackwardCall& call) {
  const BinaryFn fn = call.attrs<BinaryAttrs>().fn;
  const at::Tensor& g = call.gradient();
  switch (fn) {
    case BinaryFn::Add:
    case BinaryFn::Sub:
      if (call.wants(0)) set_scaled_sum(call.results[0], g, 1);
      if (call.wants(1)) set_scaled_sum(call.results[1], g, fn == BinaryFn::Add ? 1 : -1);
      return;
    case BinaryFn::Mul:
      if (call.wants(0)) set_product(call.results[0], g, call.input(1));
      if (call.wants(1)) set_product(call.results[1], g, call.input(0));
      return;
    case BinaryFn::Div: {
      const at::Tensor& b = call.input(1);
      if (call.wants(0)) set_summed(call.results[0], at::div(g, b));
      if (call.wants(1)) {
        at::Tensor slope = at::mul(g, call.input(0));
        set_summed(call.results[1], slope.div_(b).div_(b).neg_());
      }
      return;
    }
    case BinaryFn::Mod:
      if (call.wants(0)) set_scaled_sum(call.results[0], g, 1);
      if (call.wants(1)) {
        at::Tensor quotient = at::div(call.input(0), call.input(1), "trunc");
        set_summed(call.results[1], at::mul(quotient, g).neg_());
      }
      return;
    case BinaryFn::Pow: pow_gradient(call, g); return;
    case BinaryFn::Max:
    case BinaryFn::Min: {
      const at::Tensor& a = call.input(0);
      const at::Tensor& b = call.input(1);
      at::Tensor first = at::gt(a, b), second = at::lt(a, b);
      if (fn == BinaryFn::Min) std::swap(first, second);
      if (call.wants(0)) set_summed(call.results[0], extremum_gradient(g, first, second));
      if (call.wants(1)) set_summed(call.results[1], extremum_gradient(g, second, first));
      return;
    }
    default: fail(ErrorKind::Internal, "internal error: {} has no derivative", enum_name(fn));
  }
}

void where_forward(ForwardCall& call) {
  const at::Tensor& a = call.input(1);
  const at::Tensor& b = call.input(2);
  const at::ScalarType type = a.scalar_type();
  at::where_out(call.outputs[0].allocate(), call.input(0), a,
                b.scalar_type() == type ? b : b.to(type));
}

void where_backward(BackwardCall& call) {
  if (!call.wants(1) && !call.wants(2)) return;
  const at::Tensor& g = call.gradient();
  const at::Tensor& condition = call.input(0);
  const at::Tensor zero = at::zeros({}, g.options());
  if (call.wants(1)) set_summed(call.results[1], at::where(condition, g, zero));
  if (call.wants(2)) set_summed(call.results[2], at::where(condition, zero, g));
}

void dropout_forward(ForwardCall& call) {
  const double ratio = call.attrs<DropoutAttrs>().ratio;
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  const bool keeps = call.wants_auxiliary(0);
  bool* mask = keeps ? call.auxiliaries[0].allocate().data_ptr<bool>() : nullptr;
  const uint32_t threshold = chance_threshold(ratio);
  const double scale = 1 / (1 - ratio);
  const DrawnElements elements(call.facts.random);
  with_float_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data_ptr<T>();
    T* to = y.data_ptr<T>();
    at::parallel_for(0, x.numel(), 16 * kDropoutPiece, [&](int64_t begin, int64_t end) {
      std::array<uint32_t, kDropoutPiece> words;
      for (int64_t first = begin; first < end; first += kDropoutPiece) {
        const int64_t n = std::min(kDropoutPiece, end - first);
        random_words(call.random, elements, first, n, words.data());
        drop(from + first, words.data(), threshold, scale, n, to + first);
        if (keeps) keep_mask(words.data(), threshold, n, mask + first);
      }
    });
  });
}

void dropout_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const double ratio = call.attrs<DropoutAttrs>().ratio;
  const double scale = 1 / (1 - ratio);
  const at::Tensor& g = call.gradient();
  const bool* mask = call.auxiliary(0).data_ptr<bool>();
  Result& result = call.results[0];
  const bool adds = result.adds();
  at::Tensor& dx = adds ? result.sum() : result.allocate();
  with_float_type(g.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = g.data_ptr<T>();
    T* to = dx.data_ptr<T>();
    at::parallel_for(0, g.numel(), 16 * kDropoutPiece, [&](int64_t begin, int64_t end) {
      drop_again(from + begin, mask + begin, scale, end - begin, adds, to + begin);
    });
  });
}

void random_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<RandomAttrs>();
  const DrawnElements elements(call.facts.random);
  at::Tensor& y = call.outputs[0].allocate();
  switch (attrs.fn) {
    case RandomFn::Uniform: fill_uniform(call.random, attrs.alpha, attrs.beta, y, elements); break;
    case RandomFn::Normal: fill_normal(call.random, attrs.alpha, attrs.beta, y, elements); break;
    case RandomFn::Bernoulli: fill_bernoulli(call.random, attrs.alpha, y, elements); break;
  }
}

void accumulate_forward(ForwardCall& call) {
  const at::Tensor& a = call.input(0);
  const at::Tensor& b = call.input(1);
  if (b.scalar_type() == a.scalar_type()) {
    at::add_out(call.outputs[0].allocate(), a, b);
  } else {
    call.outputs[0].allocate().copy_(a).add_(b);
  }
}

}  // namespace windlass
