// Batch, layer and group normalisation by ATen. Statistics are fp32 at least: parameters are
// widened so that ATen keeps its statistics in fp32 for 16-bit inputs too.

#include <algorithm>
#include <array>
#include <tuple>

#include <ATen/ops/empty.h>
#include <ATen/ops/native_batch_norm.h>
#include <ATen/ops/native_batch_norm_backward.h>
#include <ATen/ops/native_group_norm.h>
#include <ATen/ops/native_group_norm_backward.h>
#include <ATen/ops/native_layer_norm.h>
#include <ATen/ops/native_layer_norm_backward.h>
#include <ATen/ops/sum.h>

#include "windlass/runtime/kernels/channel_norm.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/kernels/row_norm.h"

namespace windlass {
namespace {

using OptionalTensor = c10::optional<at::Tensor>;

OptionalTensor parameter(const ForwardCall& call, size_t i) {
  if (!call.has(i)) return c10::nullopt;
  return widened(call.input(i));
}

// The scale for the backward pass. Gradients of other inputs do not read it, but ATen takes the
// shape of its gradient from it.
OptionalTensor scale_of(const BackwardCall& call) {
  if (!call.input_types[1].present()) return c10::nullopt;
  if (call.has_input(1)) return widened(call.input(1));
  const at::ScalarType type = scalar_type(call.input_types[1].dtype);
  return at::empty(call.shape(1), is_narrow(type) ? at::kFloat : type);
}

bool has_scale(const BackwardCall& call) {
  return call.input_types.size() > 1 && call.input_types[1].present();
}

// ATen's CPU normalisation knows bf16, not fp16.
at::Tensor readable(const at::Tensor& x) {
  return x.scalar_type() == at::kHalf ? x.to(at::kFloat) : x;
}

// A statistic in the shape of the op table. `value` must not be held by others, lest it be copied.
void set_statistic(ForwardCall& call, size_t i, at::Tensor&& value) {
  if (!call.wants_auxiliary(i)) return;
  at::Tensor view = value.view(call.auxiliaries[i].type().shape);
  value.reset();
  call.auxiliaries[i].set(std::move(view));
}

// Gradient of a bias: the sum over `axes`, which leave its shape.
void sum_into(const at::Tensor& g, at::IntArrayRef axes, Result& result) {
  if (result.adds()) {
    result.set(g.sum(axes).view(result.type().shape));
    return;
  }
  at::Tensor out = result.allocate().view({-1});
  at::sum_out(out, g, axes, /*keepdim=*/false, out.scalar_type());
}

// All axes of x [b, c, ...] but c.
void sum_channels(const at::Tensor& g, Result& result) {
  sum_into(g.view({g.size(0), g.size(1), -1}), {0, 2}, result);
}

void set_gradients(BackwardCall& call, std::tuple<at::Tensor, at::Tensor, at::Tensor>&& found) {
  if (call.wants(0)) call.results[0].set(std::move(std::get<0>(found)));
  if (call.wants(1)) call.results[1].set(std::move(std::get<1>(found)));
  if (call.wants(2)) call.results[2].set(std::move(std::get<2>(found)));
}

std::array<bool, 3> wishes(const BackwardCall& call) {
  return {call.wants(0), call.wants(1), call.wants(2)};
}

}  // namespace

void batch_norm_forward(ForwardCall& call) {
  if (call.statistics != nullptr) return end_batch_norm(call);
  const auto& attrs = call.attrs<BatchNormAttrs>();
  OptionalTensor mean, variance;
  // Without running statistics ATen takes those of the batch and updates none.
  if (!attrs.training || !call.again) {
    mean = widened(call.input(3));
    variance = widened(call.input(4));
  }
  auto [y, batch_mean, batch_rstd] =
      at::native_batch_norm(readable(call.input(0)), parameter(call, 1), parameter(call, 2), mean,
                            variance, attrs.training, attrs.momentum, attrs.epsilon);
  call.outputs[0].set(std::move(y));
  if (!attrs.training) return;
  set_statistic(call, 0, std::move(batch_mean));
  set_statistic(call, 1, std::move(batch_rstd));
  if (call.again) return;
  for (const auto& [running, updated] : {std::pair{call.input(3), mean}, {call.input(4), variance}})
    if (is_narrow(running)) running.copy_(*updated);
}

void batch_norm_backward(BackwardCall& call) {
  if (call.statistics != nullptr) return end_batch_norm_gradient(call);
  const auto& attrs = call.attrs<BatchNormAttrs>();
  const at::Tensor& g = call.gradient();
  if (attrs.training ? call.wants(0) || call.wants(1) : call.wants(1)) {
    OptionalTensor running_mean, running_variance, mean, rstd;
    if (attrs.training) {
      mean = call.auxiliary(0);
      rstd = call.auxiliary(1);
    } else {
      running_mean = widened(call.input(3));
      running_variance = widened(call.input(4));
    }
    set_gradients(
        call, at::native_batch_norm_backward(readable(g), readable(call.input(0)), scale_of(call),
                                             running_mean, running_variance, mean, rstd,
                                             attrs.training, attrs.epsilon, wishes(call)));
    return;
  }
  if (call.wants(0)) {
    // With fixed statistics the op is a product with a constant of each channel.
    at::Tensor factor = widened(call.input(4)).add(attrs.epsilon).rsqrt_();
    factor.mul_(call.input(1));
    Shape shape(call.shape(0).size(), 1);
    shape[1] = factor.size(0);
    call.results[0].set(g.mul(factor.view(shape)));
  }
  if (call.wants(2)) sum_channels(g, call.results[2]);
}

void layer_norm_forward(ForwardCall& call) {
  const at::Tensor& x = call.input(0);
  if (is_narrow(x) || call.statistics != nullptr) {
    row_norm_forward(call, RowNorm::Centered);
    return;
  }
  const auto& attrs = call.attrs<LayerNormAttrs>();
  auto [y, mean, rstd] =
      at::native_layer_norm(x, x.sizes().slice(static_cast<size_t>(attrs.axis)), parameter(call, 1),
                            parameter(call, 2), attrs.epsilon);
  call.outputs[0].set(std::move(y));
  set_statistic(call, 0, std::move(mean));
  set_statistic(call, 1, std::move(rstd));
}

void layer_norm_backward(BackwardCall& call) {
  const at::Tensor& g = call.gradient();
  const auto axis = static_cast<size_t>(call.attrs<LayerNormAttrs>().axis);
  if (!call.wants(0) && !call.wants(1)) {
    const Shape normalized(call.shape(0).begin() + static_cast<int64_t>(axis), call.shape(0).end());
    if (call.wants(2)) sum_into(g.view({-1, element_count(normalized)}), {0}, call.results[2]);
    return;
  }
  if (is_narrow(g) || call.statistics != nullptr) {
    row_norm_backward(call, RowNorm::Centered);
    return;
  }
  // ATen asks for a bias where its gradient is wanted, and reads its shape only.
  OptionalTensor bias;
  if (call.wants(2)) bias = at::empty(call.shape(2), g.scalar_type());
  set_gradients(call, at::native_layer_norm_backward(
                          g, call.input(0), at::IntArrayRef(call.shape(0)).slice(axis),
                          call.auxiliary(0), call.auxiliary(1),
                          has_scale(call) ? scale_of(call) : c10::nullopt, bias, wishes(call)));
}

void layer_norm_begin(const ForwardCall& call, at::Tensor& statistics) {
  row_norm_begin(call, RowNorm::Centered, statistics);
}

void layer_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  row_norm_begin_backward(call, RowNorm::Centered, statistics);
}

void rms_norm_forward(ForwardCall& call) { row_norm_forward(call, RowNorm::Rms); }
void rms_norm_backward(BackwardCall& call) { row_norm_backward(call, RowNorm::Rms); }

void rms_norm_begin(const ForwardCall& call, at::Tensor& statistics) {
  row_norm_begin(call, RowNorm::Rms, statistics);
}

void rms_norm_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  row_norm_begin_backward(call, RowNorm::Rms, statistics);
}

void group_norm_forward(ForwardCall& call) {
  if (call.statistics != nullptr) return end_group_norm(call);
  const auto& attrs = call.attrs<GroupNormAttrs>();
  const at::Tensor x = widened(call.input(0));
  const int64_t samples = x.size(0), channels = x.size(1);
  const int64_t inner = x.numel() / std::max<int64_t>(1, samples * channels);
  auto [y, mean, rstd] = at::native_group_norm(x, parameter(call, 1), parameter(call, 2), samples,
                                               channels, inner, attrs.groups, attrs.epsilon);
  call.outputs[0].set(std::move(y));
  set_statistic(call, 0, std::move(mean));
  set_statistic(call, 1, std::move(rstd));
}

void group_norm_backward(BackwardCall& call) {
  if (call.statistics != nullptr) return end_group_norm_gradient(call);
  // Without a scale ATen cannot make the bias's gradient.
  const bool bias_alone = !call.wants(1);
  if (call.wants(2) && bias_alone) sum_channels(call.gradient(), call.results[2]);
  if (!call.wants(0) && !call.wants(1)) return;
  const at::Tensor g = widened(call.gradient());
  const int64_t samples = g.size(0), channels = g.size(1);
  const int64_t inner = g.numel() / std::max<int64_t>(1, samples * channels);
  auto [gx, gscale, gbias] = at::native_group_norm_backward(
      g, widened(call.input(0)), call.auxiliary(0), call.auxiliary(1),
      has_scale(call) ? scale_of(call) : c10::nullopt, samples, channels, inner,
      call.attrs<GroupNormAttrs>().groups,
      {call.wants(0), call.wants(1), call.wants(2) && !bias_alone});
  if (call.wants(0)) call.results[0].set(std::move(gx));
  if (call.wants(1)) call.results[1].set(std::move(gscale));
  if (call.wants(2) && !bias_alone) call.results[2].set(std::move(gbias));
}

}  // namespace windlass
