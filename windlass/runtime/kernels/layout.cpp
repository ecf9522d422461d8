// Ops that only move elements, and their gradients, which move them back.

#include <algorithm>
#include <cstdlib>
#include <utility>

#include <ATen/ops/as_strided.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/flip.h>
#include <ATen/ops/zeros.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/broadcast.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// The result becomes, or grows by, a view of another tensor.
void set_view(Result& result, const at::Tensor& view) {
  if (result.adds())
    result.sum().add_(view);
  else
    result.allocate().copy_(view);
}

// Zeros, or the sum: what pieces of a gradient are added to.
at::Tensor& ground(Result& result) {
  return result.adds() ? result.sum() : result.allocate().zero_();
}

// The part of a tensor that a slice reads, steps made positive; `flipped` are the axes that it
// reads backwards.
at::Tensor slice_of(const SliceAttrs& attrs, const at::Tensor& x, std::vector<int64_t>& flipped) {
  std::vector<int64_t> strides = x.strides().vec();
  int64_t offset = x.storage_offset();
  for (size_t axis = 0; axis < strides.size(); ++axis) {
    const int64_t size = attrs.size[axis], step = attrs.step[axis];
    const int64_t last = attrs.start[axis] + (size - 1) * step;
    if (step < 0 && size > 1) flipped.push_back(static_cast<int64_t>(axis));
    if (size > 0) offset += std::min(attrs.start[axis], last) * strides[axis];
    strides[axis] *= std::abs(step);
  }
  return at::as_strided(x, attrs.size, strides, offset);
}

// A run of the padded axis: output [to, to + size) reads the input from `from` on, in steps of
// `step`: 1, -1 (reflected) or 0 (the edge repeated).
struct PadRun {
  int64_t to, from, size, step;
};

std::vector<PadRun> pad_runs(PadMode mode, int64_t begin, int64_t end, int64_t size) {
  const int64_t first = std::max<int64_t>(0, -begin), last = size - std::max<int64_t>(0, -end);
  const int64_t shift = begin;
  std::vector<PadRun> runs;
  const auto add = [&](PadRun run) {
    if (run.size > 0) runs.push_back(run);
  };
  add({first + shift, first, last - first, 1});
  if (mode == PadMode::Edge) {
    add({0, 0, begin, 0});
    add({size + shift, size - 1, end, 0});
  } else if (mode == PadMode::Reflect) {
    add({0, begin, begin, -1});
    add({size + shift, size - 2, end, -1});
  }
  return runs;
}

// The input indices of a run along `axis`, in the order of the output.
at::Tensor run_of_input(const at::Tensor& x, int64_t axis, const PadRun& run) {
  if (run.step == 1) return x.narrow(axis, run.from, run.size);
  std::vector<int64_t> shape = x.sizes().vec();
  shape[static_cast<size_t>(axis)] = run.size;
  if (run.step == 0) return x.narrow(axis, run.from, 1).expand(shape);
  return at::flip(x.narrow(axis, run.from - run.size + 1, run.size), {axis});
}

std::vector<int64_t> padded_shape(const PadAttrs& attrs, std::vector<int64_t> shape, size_t axis) {
  shape[axis] += attrs.begin[axis] + attrs.end[axis];
  return shape;
}

bool pads(const PadAttrs& attrs, size_t axis) {
  return attrs.begin[axis] != 0 || attrs.end[axis] != 0;
}

// Constant padding: the part of the output (of its gradient) that the input fills, and that part of
// the input; an axis at a time would touch the elements more than once.
std::pair<at::Tensor, at::Tensor> common_part(const PadAttrs& attrs, at::Tensor x, at::Tensor y) {
  for (size_t i = 0; i < attrs.begin.size(); ++i) {
    const auto axis = static_cast<int64_t>(i);
    const int64_t from = std::max<int64_t>(0, -attrs.begin[i]);
    const int64_t to = std::max<int64_t>(0, attrs.begin[i]);
    const int64_t size = std::max<int64_t>(0, std::min(x.size(axis) - from, y.size(axis) - to));
    x = x.narrow(axis, std::min(from, x.size(axis)), size);
    y = y.narrow(axis, std::min(to, y.size(axis)), size);
  }
  return {x, y};
}

}  // namespace

void reshape_forward(ForwardCall& call) {
  set_view(call.outputs[0], call.input(0).view(call.attrs<ShapeAttrs>().shape));
}

void reshape_backward(BackwardCall& call) {
  if (call.wants(0)) set_view(call.results[0], call.gradient().view(call.shape(0)));
}

void transpose_forward(ForwardCall& call) {
  set_view(call.outputs[0], call.input(0).permute(call.attrs<TransposeAttrs>().order));
}

void transpose_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const Ints& order = call.attrs<TransposeAttrs>().order;
  std::vector<int64_t> back(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    back[static_cast<size_t>(order[i])] = static_cast<int64_t>(i);
  set_view(call.results[0], call.gradient().permute(back));
}

void slice_forward(ForwardCall& call) {
  std::vector<int64_t> flipped;
  const at::Tensor part = slice_of(call.attrs<SliceAttrs>(), call.input(0), flipped);
  if (flipped.empty())
    set_view(call.outputs[0], part);
  else
    call.outputs[0].set(at::flip(part, flipped));
}

void slice_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  Result& result = call.results[0];
  std::vector<int64_t> flipped;
  const at::Tensor part = slice_of(call.attrs<SliceAttrs>(), ground(result), flipped);
  part.add_(flipped.empty() ? call.gradient() : at::flip(call.gradient(), flipped));
}

void concat_forward(ForwardCall& call) {
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i < call.inputs.size(); ++i) parts.push_back(call.input(i));
  at::cat_out(call.outputs[0].allocate(), parts, call.attrs<AxisAttrs>().axis);
}

void concat_backward(BackwardCall& call) {
  const int64_t axis = call.attrs<AxisAttrs>().axis;
  int64_t start = 0;
  for (size_t i = 0; i < call.input_types.size(); ++i) {
    const int64_t size = call.shape(i)[static_cast<size_t>(axis)];
    if (call.wants(i)) set_view(call.results[i], call.gradient().narrow(axis, start, size));
    start += size;
  }
}

void split_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<SplitAttrs>();
  int64_t start = 0;
  for (size_t i = 0; i < attrs.sizes.size(); ++i) {
    if (call.outputs[i].wanted())
      set_view(call.outputs[i], call.input(0).narrow(attrs.axis, start, attrs.sizes[i]));
    start += attrs.sizes[i];
  }
}

void split_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<SplitAttrs>();
  Result& result = call.results[0];
  at::Tensor& dx = result.adds() ? result.sum() : result.allocate();
  int64_t start = 0;
  for (size_t i = 0; i < attrs.sizes.size(); ++i) {
    const at::Tensor part = dx.narrow(attrs.axis, start, attrs.sizes[i]);
    start += attrs.sizes[i];
    if (!call.has_gradient(i)) {
      if (!result.adds()) part.zero_();
    } else if (result.adds()) {
      part.add_(call.gradient(i));
    } else {
      part.copy_(call.gradient(i));
    }
  }
}

void pad_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<PadAttrs>();
  Result& result = call.outputs[0];
  if (attrs.mode == PadMode::Constant) {
    at::Tensor& y = result.allocate().fill_(attrs.value);
    const auto [from, to] = common_part(attrs, call.input(0), y);
    to.copy_(from);
    return;
  }
  at::Tensor x = call.input(0);
  for (size_t axis = 0; axis < attrs.begin.size(); ++axis) {
    if (!pads(attrs, axis)) continue;
    const auto a = static_cast<int64_t>(axis);
    at::Tensor y = at::empty(padded_shape(attrs, x.sizes().vec(), axis), x.options());
    for (const PadRun& run : pad_runs(attrs.mode, attrs.begin[axis], attrs.end[axis], x.size(a)))
      y.narrow(a, run.to, run.size).copy_(run_of_input(x, a, run));
    x = std::move(y);
  }
  result.set(std::move(x));
}

void pad_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<PadAttrs>();
  Result& result = call.results[0];
  if (attrs.mode == PadMode::Constant) {
    const auto [to, from] = common_part(attrs, ground(result), call.gradient());
    to.add_(from);
    return;
  }
  at::Tensor g = call.gradient();
  for (size_t axis = attrs.begin.size(); axis-- > 0;) {
    if (!pads(attrs, axis)) continue;
    const auto a = static_cast<int64_t>(axis);
    std::vector<int64_t> shape = g.sizes().vec();
    shape[axis] = call.shape(0)[axis];
    at::Tensor dx = at::zeros(shape, g.options());
    for (const PadRun& run :
         pad_runs(attrs.mode, attrs.begin[axis], attrs.end[axis], shape[axis])) {
      const at::Tensor part = g.narrow(a, run.to, run.size);
      if (run.step == 1)
        dx.narrow(a, run.from, run.size).add_(part);
      else if (run.step == 0)
        dx.narrow(a, run.from, 1).add_(part.sum(a, true));
      else
        dx.narrow(a, run.from - run.size + 1, run.size).add_(at::flip(part, {a}));
    }
    g = std::move(dx);
  }
  result.set(std::move(g));
}

void expand_forward(ForwardCall& call) {
  Result& result = call.outputs[0];
  set_view(result, call.input(0).expand(result.type().shape));
}

void expand_backward(BackwardCall& call) {
  if (call.wants(0)) set_scaled_sum(call.results[0], call.gradient(), 1);
}

}  // namespace windlass
