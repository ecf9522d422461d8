// Reductions, running sums and the place of the maximum.

#include <algorithm>
#include <utility>
#include <vector>

#include <ATen/ops/abs.h>
#include <ATen/ops/amax.h>
#include <ATen/ops/amin.h>
#include <ATen/ops/argmax.h>
#include <ATen/ops/cumsum.h>
#include <ATen/ops/div.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eq.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/logsumexp.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/prod.h>
#include <ATen/ops/sgn.h>
#include <ATen/ops/sub.h>
#include <ATen/ops/sum.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

std::vector<int64_t> kept_shape(const ReduceAttrs& attrs, at::IntArrayRef x) {
  std::vector<int64_t> shape = x.vec();
  for (const int64_t axis : attrs.axes) shape[static_cast<size_t>(axis)] = 1;
  return shape;
}

int64_t reduced_count(const ReduceAttrs& attrs, at::IntArrayRef x) {
  int64_t count = 1;
  for (const int64_t axis : attrs.axes) count *= x[static_cast<size_t>(axis)];
  return count;
}

// With the reduced axes last and joined: [..., reduced].
at::Tensor joined(const ReduceAttrs& attrs, const at::Tensor& x) {
  std::vector<int64_t> order, shape;
  for (int64_t axis = 0; axis < x.dim(); ++axis) {
    if (std::find(attrs.axes.begin(), attrs.axes.end(), axis) != attrs.axes.end()) continue;
    order.push_back(axis);
    shape.push_back(x.size(axis));
  }
  order.insert(order.end(), attrs.axes.begin(), attrs.axes.end());
  shape.push_back(reduced_count(attrs, x.sizes()));
  return x.permute(order).reshape(shape);
}

// Undoes `joined` for a contiguous tensor.
at::Tensor parted(const ReduceAttrs& attrs, const at::Tensor& y, at::IntArrayRef x) {
  std::vector<int64_t> order, shape;
  for (int64_t axis = 0; axis < static_cast<int64_t>(x.size()); ++axis)
    if (std::find(attrs.axes.begin(), attrs.axes.end(), axis) == attrs.axes.end())
      order.push_back(axis);
  order.insert(order.end(), attrs.axes.begin(), attrs.axes.end());
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i) {
    shape.push_back(x[static_cast<size_t>(order[i])]);
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  }
  return y.view(shape).permute(back);
}

// Product of the other factors: of those before times those after. No division, so that zeros need
// no care.
at::Tensor prod_gradient(const ReduceAttrs& attrs, const at::Tensor& x, const at::Tensor& g) {
  const at::Tensor rows = joined(attrs, x);
  const int64_t axis = rows.dim() - 1, n = rows.size(axis);
  at::Tensor result = at::empty(rows.sizes(), rows.options());
  at::Tensor before = at::empty(g.sizes(), g.options()).copy_(g);
  for (int64_t i = 0; i < n; ++i) {
    result.select(axis, i).copy_(before);
    before.mul_(rows.select(axis, i));
  }
  at::Tensor after = before.fill_(1);
  for (int64_t i = n; i-- > 0;) {
    result.select(axis, i).mul_(after);
    after.mul_(rows.select(axis, i));
  }
  return parted(attrs, result, x.sizes());
}

// What a mean divides by.
double mean_divisor(const ReduceAttrs& attrs, const PieceFacts& facts, at::IntArrayRef x) {
  return facts.mean_count < 0 ? static_cast<double>(reduced_count(attrs, x)) : facts.mean_count;
}

// Integers in fp64, as far as it is exact, and truncated; fp16 in fp32.
void reduce_wide(const ReduceAttrs& attrs, double divisor, const at::Tensor& x, at::Tensor& y);

// Means divide by `divisor`.
void reduce(const ReduceAttrs& attrs, double divisor, const at::Tensor& x, at::Tensor& y) {
  const bool floats = c10::isFloatingType(x.scalar_type());
  if (attrs.axes.empty()) {  // each element alone; ATen reads no axes as all
    switch (attrs.fn) {
      case ReduceFn::L1:
      case ReduceFn::L2: at::abs_out(y, x); return;
      case ReduceFn::SumSquare: at::mul_out(y, x, x); return;
      default: y.copy_(x); return;
    }
  }
  switch (attrs.fn) {
    case ReduceFn::Sum: at::sum_out(y, x, attrs.axes, attrs.keep_dims); return;
    case ReduceFn::Max: at::amax_out(y, x, attrs.axes, attrs.keep_dims); return;
    case ReduceFn::Min: at::amin_out(y, x, attrs.axes, attrs.keep_dims); return;
    case ReduceFn::Prod: {
      // 16-bit types in fp32, which is also what ATen has a kernel for.
      const bool narrow = floats && x.element_size() == 2;
      const at::Tensor rows = joined(attrs, narrow ? x.to(at::kFloat) : x);
      const at::IntArrayRef outer = rows.sizes().slice(0, static_cast<size_t>(rows.dim()) - 1);
      at::Tensor flat = narrow ? at::empty(outer, at::kFloat) : y.view(outer);
      at::prod_out(flat, rows, -1);
      if (narrow) y.copy_(flat.view(y.sizes()));
      return;
    }
    default: break;
  }
  if (!floats || x.scalar_type() == at::kHalf) return reduce_wide(attrs, divisor, x, y);
  switch (attrs.fn) {
    case ReduceFn::Mean:
      if (divisor == static_cast<double>(reduced_count(attrs, x.sizes()))) {
        at::mean_out(y, x, attrs.axes, attrs.keep_dims);
      } else {
        at::sum_out(y, x, attrs.axes, attrs.keep_dims);
        y.div_(divisor);
      }
      return;
    case ReduceFn::L1: at::linalg_vector_norm_out(y, x, 1, attrs.axes, attrs.keep_dims); return;
    case ReduceFn::L2: at::linalg_vector_norm_out(y, x, 2, attrs.axes, attrs.keep_dims); return;
    case ReduceFn::SumSquare:
      at::linalg_vector_norm_out(y, x, 2, attrs.axes, attrs.keep_dims);
      y.mul_(y);
      return;
    case ReduceFn::LogSumExp: at::logsumexp_out(y, x, attrs.axes, attrs.keep_dims); return;
    default: break;
  }
  fail(ErrorKind::Internal, "internal error: unknown reduction {}", static_cast<int>(attrs.fn));
}

void reduce_wide(const ReduceAttrs& attrs, double divisor, const at::Tensor& x, at::Tensor& y) {
  const at::ScalarType type = x.scalar_type() == at::kHalf ? at::kFloat : at::kDouble;
  at::Tensor wide = at::empty(y.sizes(), y.options().dtype(type));
  reduce(attrs, divisor, x.to(type), wide);
  y.copy_(wide);
}

// dx = g slope, g broadcast along the reduced axes.
void set_slope(Result& result, const at::Tensor& g, const at::Tensor& slope, double factor) {
  if (result.adds()) {
    result.sum().addcmul_(slope, g, factor);
  } else {
    at::Tensor& dx = result.allocate();
    at::mul_out(dx, slope, g);
    if (factor != 1) dx.mul_(factor);
  }
}

// How many elements equal the extremum.
at::Tensor ties_of(const BackwardCall& call, const at::Tensor& chosen) {
  if (call.statistics != nullptr) return *call.statistics;
  return at::sum(chosen, call.attrs<ReduceAttrs>().axes, true);
}

}  // namespace

void reduce_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  const std::vector<int64_t> kept = kept_shape(attrs, call.shape(0));
  const at::Tensor chosen = at::eq(call.input(0), call.output(0).view(kept));
  at::Tensor ties = statistics.view(kept);
  at::sum_out(ties, chosen, attrs.axes, true, ties.scalar_type());
}

void reduce_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<ReduceAttrs>();
  const at::Tensor& x = call.input(0);
  reduce(attrs, mean_divisor(attrs, call.facts, x.sizes()), x, call.outputs[0].allocate());
}

void reduce_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<ReduceAttrs>();
  Result& result = call.results[0];
  const std::vector<int64_t> kept = kept_shape(attrs, call.shape(0));
  const at::Tensor g = call.gradient().view(kept);
  const auto y = [&] { return call.output(0).view(kept); };
  switch (attrs.fn) {
    case ReduceFn::Sum:
    case ReduceFn::Mean: {
      const double count =
          attrs.fn == ReduceFn::Sum ? 1 : mean_divisor(attrs, call.facts, call.shape(0));
      const at::Tensor share = count == 1 ? g : at::div(g, count);
      if (result.adds())
        result.sum().add_(share);
      else
        result.allocate().copy_(share.expand(call.shape(0)));
      return;
    }
    case ReduceFn::L1: {
      at::Tensor slope = at::sgn(call.input(0));
      result.set(std::move(slope.mul_(g)));
      return;
    }
    case ReduceFn::SumSquare: set_slope(result, g, call.input(0), 2); return;
    case ReduceFn::L2:
      // A row of zeros has gradient 0: its x is.
      set_slope(result, at::div(g, y()).masked_fill_(at::eq(y(), 0), 0), call.input(0), 1);
      return;
    case ReduceFn::LogSumExp: {
      const bool half = g.scalar_type() == at::kHalf;  // ATen has no exponential of fp16
      at::Tensor slope = at::sub(half ? call.input(0).to(at::kFloat) : call.input(0), y());
      slope.exp_().mul_(g);
      result.set(std::move(slope));
      return;
    }
    case ReduceFn::Prod: {
      std::vector<int64_t> outer;
      for (int64_t axis = 0; axis < static_cast<int64_t>(kept.size()); ++axis)
        if (std::find(attrs.axes.begin(), attrs.axes.end(), axis) == attrs.axes.end())
          outer.push_back(kept[static_cast<size_t>(axis)]);
      result.set(prod_gradient(attrs, call.input(0), g.view(outer)));
      return;
    }
    case ReduceFn::Max:
    case ReduceFn::Min: {
      const at::Tensor chosen = at::eq(call.input(0), y());
      // Equal extrema share, those of other pieces too.
      const at::Tensor share =
          attrs.axes.empty() ? g : at::div(g, ties_of(call, chosen).view(kept).to(g.scalar_type()));
      set_slope(result, share, chosen.to(g.scalar_type()), 1);
      return;
    }
  }
}

void cumsum_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  if (x.scalar_type() == at::kHalf)  // no kernel of ATen's
    call.outputs[0].set(at::cumsum(x.to(at::kFloat), axis));
  else
    at::cumsum_out(call.outputs[0].allocate(), x, axis);
}

// The running sum from the other end.
void cumsum_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  at::Tensor turned = at::flip(call.gradient(), {axis});
  if (turned.scalar_type() == at::kHalf) turned = turned.to(at::kFloat);
  call.results[0].set(at::flip(turned.cumsum_(axis), {axis}));
}

void argmax_forward(ForwardCall& call) {
  at::argmax_out(call.outputs[0].allocate(), call.input(0), call.attrs<AxisAttrs>().axis, true);
}

}  // namespace windlass
