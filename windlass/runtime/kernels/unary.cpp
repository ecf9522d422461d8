// Functions of one value, and casts. Gradients use ATen's fused kernels where there is one; the
// others are made in one or two sweeps over the result itself.

#include <algorithm>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/relu.h>

#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/unary_functions.h"

namespace windlass {
namespace {

// Whether 16-bit elements are computed in fp32, piece by piece: fp16 always, since ATen has next to
// nothing for it, and bf16 where a function takes several steps, each of which would round.
bool computed_wide(UnaryFn fn, at::ScalarType type) {
  if (type == at::kHalf) return true;
  if (type != at::kBFloat16) return false;
  switch (fn) {
    case UnaryFn::Identity:
    case UnaryFn::Relu:
    case UnaryFn::LeakyRelu:
    case UnaryFn::Gelu:
    case UnaryFn::GeluTanh:
    case UnaryFn::Silu:
    case UnaryFn::Sigmoid:
    case UnaryFn::Tanh:
    case UnaryFn::Exp:
    case UnaryFn::Abs:
    case UnaryFn::Neg: return false;
    default: return true;
  }
}

// Calls f(first, count) for pieces whose temporaries stay in the cache.
template <class F>
void for_each_piece(int64_t count, const F& f) {
  constexpr int64_t kPiece = int64_t{1} << 17;
  for (int64_t first = 0; first < count; first += kPiece) f(first, std::min(kPiece, count - first));
}

at::Tensor piece_of(const at::Tensor& x, int64_t first, int64_t count, at::ScalarType type) {
  if (!x.defined()) return x;
  const at::Tensor piece = x.view({-1}).narrow(0, first, count);
  return x.scalar_type() == type ? piece : piece.to(type);
}

// The attributes as elements of the type see them: an output that was clipped is a bound, rounded.
UnaryAttrs rounded(UnaryAttrs attrs, at::ScalarType type) {
  if (attrs.fn != UnaryFn::Clip) return attrs;
  with_float_type(type, [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    attrs.alpha = static_cast<W>(static_cast<T>(static_cast<W>(attrs.alpha)));
    attrs.beta = static_cast<W>(static_cast<T>(static_cast<W>(attrs.beta)));
  });
  return attrs;
}

// Adds the gradient without a temporary of its size, if there is a way.
bool add_in_place(const UnaryAttrs& attrs, const at::Tensor& g, const at::Tensor& v,
                  at::Tensor& sum) {
  switch (attrs.fn) {
    case UnaryFn::Identity: sum.add_(g); return true;
    case UnaryFn::Neg: sum.sub_(g); return true;
    case UnaryFn::Affine: sum.add_(g, attrs.alpha); return true;
    case UnaryFn::Exp: sum.addcmul_(g, v); return true;
    case UnaryFn::Square: sum.addcmul_(g, v, 2); return true;
    default: return false;
  }
}

}  // namespace

void unary_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<UnaryAttrs>();
  const at::Tensor& x = call.input(0);
  Result& result = call.outputs[0];
  if (attrs.fn == UnaryFn::Relu && c10::isFloatingType(x.scalar_type()) &&
      x.scalar_type() != at::kHalf) {
    result.set(at::relu(x));  // keeps NaN
    return;
  }
  at::Tensor& y = result.allocate();
  const bool exact = attrs.fn == UnaryFn::Identity || attrs.fn == UnaryFn::Abs ||
                     attrs.fn == UnaryFn::Neg || attrs.fn == UnaryFn::Sign ||
                     attrs.fn == UnaryFn::Not || attrs.fn == UnaryFn::Affine;
  if (is_integral(x) && !exact) {
    unary_of_integers(attrs, x, y);
  } else if (computed_wide(attrs.fn, x.scalar_type())) {
    for_each_piece(x.numel(), [&](int64_t first, int64_t count) {
      const at::Tensor from = piece_of(x, first, count, at::kFloat);
      at::Tensor to = at::empty(
          {count}, from.options().dtype(y.scalar_type() == at::kBool ? at::kBool : at::kFloat));
      unary_function(attrs, from, to);
      y.view({-1}).narrow(0, first, count).copy_(to);
    });
  } else {
    unary_function(attrs, x, y);
  }
}

void unary_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const at::Tensor& g = call.gradient();
  const UnaryAttrs attrs = rounded(call.attrs<UnaryAttrs>(), g.scalar_type());
  const at::Tensor v = call.has_input(0)          ? call.input(0)
                       : !call.saved_refs.empty() ? call.output(0)
                                                  : at::Tensor();
  Result& result = call.results[0];
  if (result.adds() && add_in_place(attrs, g, v, result.sum())) return;
  const bool wide = computed_wide(attrs.fn, g.scalar_type());
  if (!result.adds() && !wide) {
    const bool fresh = attrs.fn == UnaryFn::HardSwish || attrs.fn == UnaryFn::Mish;
    if (fresh) {
      at::Tensor dx;
      unary_derivative(attrs, g, v, dx);
      result.set(std::move(dx));
    } else {
      unary_derivative(attrs, g, v, result.allocate());
    }
    return;
  }
  const at::Tensor to = (result.adds() ? result.sum() : result.allocate()).view({-1});
  const at::ScalarType type = wide ? at::kFloat : g.scalar_type();
  for_each_piece(g.numel(), [&](int64_t first, int64_t count) {
    at::Tensor dx = at::empty({count}, g.options().dtype(type));
    unary_derivative(attrs, piece_of(g, first, count, type), piece_of(v, first, count, type), dx);
    const at::Tensor part = to.narrow(0, first, count);
    if (result.adds())
      part.add_(dx);
    else
      part.copy_(dx);
  });
}

void cast_forward(ForwardCall& call) { call.outputs[0].allocate().copy_(call.input(0)); }

void cast_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  Result& result = call.results[0];
  if (result.adds())
    result.sum().add_(call.gradient());
  else
    result.allocate().copy_(call.gradient());
}

}  // namespace windlass
