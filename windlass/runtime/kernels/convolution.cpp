// Convolution, by ATen's own (oneDNN where it can). ATen pads both ends of an axis alike, so
// unequal padding is brought to that form first: the part that both ends share stays with ATen, the
// rest is zeros around the input, or, of a transposed convolution, cut off the output.

#include <algorithm>
#include <array>
#include <tuple>

#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>

#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/precision.h"

namespace windlass {
namespace {

struct Padding {
  Ints shared;      // at both ends, by ATen
  Ints begin, end;  // beyond that: of the input, or cut off the output if transposed

  bool uneven() const {
    const auto some = [](int64_t amount) { return amount > 0; };
    return std::any_of(begin.begin(), begin.end(), some) ||
           std::any_of(end.begin(), end.end(), some);
  }
};

Padding padding_of(const ConvAttrs& attrs, at::IntArrayRef x, at::IntArrayRef w) {
  Padding padding;
  for (size_t i = 0; i < attrs.stride.size(); ++i) {
    const int64_t before = attrs.pad_begin[i], after = attrs.pad_end[i];
    int64_t shared = std::min(before, after);
    if (!attrs.transposed) {
      // Padding after the last window is never read: `before` at both ends may be just as good.
      const int64_t room = x[i + 2] + before - attrs.dilation[i] * (w[i + 2] - 1) - 1;
      if ((room + before) / attrs.stride[i] == (room + after) / attrs.stride[i] &&
          room + before >= 0) {
        padding.shared.push_back(before);
        padding.begin.push_back(0);
        padding.end.push_back(0);
        continue;
      }
    }
    padding.shared.push_back(shared);
    padding.begin.push_back(before - shared);
    padding.end.push_back(after - shared);
  }
  return padding;
}

// x with zeros around its spatial axes.
at::Tensor padded(const at::Tensor& x, const Padding& padding) {
  std::vector<int64_t> amounts;  // the last axis first
  for (size_t i = padding.begin.size(); i-- > 0;)
    amounts.insert(amounts.end(), {padding.begin[i], padding.end[i]});
  return at::constant_pad_nd(x, amounts);
}

at::Tensor cropped(at::Tensor x, const Padding& padding) {
  for (size_t i = 0; i < padding.begin.size(); ++i) {
    const auto axis = static_cast<int64_t>(i) + 2;
    const int64_t size = x.size(axis) - padding.begin[i] - padding.end[i];
    x = x.narrow(axis, padding.begin[i], size);
  }
  return x;
}

Ints output_padding_of(const ConvAttrs& attrs) {
  return attrs.transposed ? attrs.output_padding : Ints(attrs.stride.size(), 0);
}

// ATen asks for tensors of which it reads only the shape: one element stands for all.
at::Tensor shape_only(const Shape& shape, at::ScalarType type) {
  return at::empty({1}, type).expand(shape);
}

Shape padded_shape(Shape shape, const Padding& padding) {
  for (size_t i = 0; i < padding.begin.size(); ++i)
    shape[i + 2] += padding.begin[i] + padding.end[i];
  return shape;
}

// Operands in a type that ATen convolves well. It refuses transposed convolutions of bf16 whose
// kernel is larger than the input.
at::Tensor convolvable(const ConvAttrs& attrs, const at::Tensor& x) {
  return is_multiplied(x.scalar_type()) && !attrs.transposed ? x : widened(x);
}

void bias_gradient(const at::Tensor& g, Result& result) {
  std::vector<int64_t> axes;
  for (int64_t i = 0; i < g.dim(); ++i)
    if (i != 1) axes.push_back(i);
  if (result.adds()) {
    result.set(g.sum(axes));
    return;
  }
  at::Tensor& out = result.allocate();
  at::sum_out(out, g, axes, /*keepdim=*/false, out.scalar_type());
}

// Of a piece whose windows lie in the padding altogether, which ATen refuses.
bool is_empty(at::IntArrayRef x) {
  return std::any_of(x.begin(), x.end(), [](int64_t size) { return size == 0; });
}

void put_zeros(Result& result) {
  if (!result.adds()) result.allocate().zero_();
}

}  // namespace

void conv_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<ConvAttrs>();
  const at::Tensor& w = call.input(1);
  if (is_empty(call.input(0).sizes())) {
    put_zeros(call.outputs[0]);
    Shape shape(w.sizes().size(), 1);
    shape[1] = -1;
    if (call.has(2) && call.facts.adds_bias)
      call.outputs[0].tensor().add_(call.input(2).view(shape));
    return;
  }
  const Padding padding = padding_of(attrs, call.input(0).sizes(), w.sizes());
  at::Tensor x = convolvable(attrs, call.input(0));
  if (!attrs.transposed && padding.uneven()) x = padded(x, padding);
  c10::optional<at::Tensor> bias;
  if (call.has(2) && call.facts.adds_bias) bias = convolvable(attrs, call.input(2));
  at::Tensor y =
      at::convolution(x, convolvable(attrs, w), bias, attrs.stride, padding.shared, attrs.dilation,
                      attrs.transposed, output_padding_of(attrs), attrs.groups);
  x.reset();
  if (attrs.transposed && padding.uneven()) y = cropped(std::move(y), padding);
  call.outputs[0].set(std::move(y));
}

void conv_backward(BackwardCall& call) {
  const auto& attrs = call.attrs<ConvAttrs>();
  // The sum alone is faster than what convolutions compute it with, and needs no fp32 copy.
  if (call.wants(2)) bias_gradient(call.gradient(), call.results[2]);
  if (!call.wants(0) && !call.wants(1)) return;
  if (is_empty(call.shape(0))) {
    for (const size_t i : {0, 1})
      if (call.wants(i)) put_zeros(call.results[i]);
    return;
  }
  const Padding padding = padding_of(attrs, call.shape(0), call.shape(1));
  const bool uneven = padding.uneven();
  at::Tensor g = convolvable(attrs, call.gradient());
  if (attrs.transposed && uneven) g = padded(g, padding);
  const at::ScalarType type = g.scalar_type();
  at::Tensor x;
  if (call.wants(1)) {
    x = convolvable(attrs, call.input(0));
    if (!attrs.transposed && uneven) x = padded(x, padding);
  } else {
    x = shape_only(attrs.transposed ? call.shape(0) : padded_shape(call.shape(0), padding), type);
  }
  const at::Tensor w =
      call.wants(0) ? convolvable(attrs, call.input(1)) : shape_only(call.shape(1), type);
  auto [gx, gw, unused] = at::convolution_backward(
      g, x, w, c10::nullopt, attrs.stride, padding.shared, attrs.dilation, attrs.transposed,
      output_padding_of(attrs), attrs.groups, {call.wants(0), call.wants(1), false});
  if (call.wants(0)) {
    if (!attrs.transposed && uneven) gx = cropped(std::move(gx), padding);
    call.results[0].set(std::move(gx));
  }
  if (call.wants(1)) call.results[1].set(std::move(gw));
}

}  // namespace windlass
