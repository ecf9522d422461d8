// Softmax by ATen; that of a split axis by sweeps over the rows.

#include <cmath>
#include <vector>

#include <ATen/ops/_log_softmax.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/_softmax.h>
#include <ATen/ops/_softmax_backward_data.h>
#include <ATen/ops/empty.h>

#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/exponential_rows.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// Calls sweep(offset, count, stride, row) for what lies at one index of neighbouring rows, or, if
// rows lie in one piece, for all of a row: elements [offset, offset + count) belong to the rows
// from `row` on, `stride` apart (0 or 1).
template <class Sweep>
void for_each_sweep(const RowView& view, const Sweep& sweep) {
  view.each([&](int64_t row, int64_t n, int64_t offset) {
    if (view.inner == 1) return sweep(offset, view.size, int64_t{0}, row);
    for (int64_t c = 0; c < view.size; ++c) sweep(offset + c * view.inner, n, int64_t{1}, row);
  });
}

// exp(x - lse), or its logarithm, with lse from the merged maximum and sum of each row.
template <class E>
void end_softmax(const RowView& view, bool log, const E* x, const wide_t<E>* merged, E* y) {
  using T = wide_t<E>;
  std::vector<T> shifts(static_cast<size_t>(view.rows()));
  for (size_t row = 0; row < shifts.size(); ++row)
    shifts[row] = merged[row * 2] + std::log(merged[row * 2 + 1]);
  for_each_sweep(view, [&](int64_t offset, int64_t count, int64_t stride, int64_t row) {
    const T* lse = shifts.data() + row;
    vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const T value = static_cast<T>(x[offset + i]) - lse[i * stride];
        y[offset + i] = static_cast<E>(log ? value : exp_negative(value));
      }
    });
  });
}

// Of each row the sum of y dy, or of dy for the logarithm.
template <class E>
void sum_products(const RowView& view, bool log, const E* y, const E* dy, wide_t<E>* sums) {
  using T = wide_t<E>;
  view.each([&](int64_t row, int64_t n, int64_t offset) {
    T* out = sums + row;
    const int64_t size = view.size, inner = view.inner;
    vectorized([=]() WINDLASS_INLINE {
      const auto term = [=](int64_t at) WINDLASS_INLINE {
        return log ? static_cast<T>(dy[at]) : static_cast<T>(y[at]) * static_cast<T>(dy[at]);
      };
      if (inner == 1) {
        T sum = 0;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < size; ++i) sum += term(offset + i);
        out[0] = sum;
        return;
      }
      for (int64_t i = 0; i < n; ++i) out[i] = 0;
      for (int64_t c = 0; c < size; ++c) {
#pragma omp simd
        for (int64_t i = 0; i < n; ++i) out[i] += term(offset + c * inner + i);
      }
    });
  });
}

// dx = y (dy - sum), or dy - exp(y) sum for the logarithm, written or added.
template <class E>
void end_softmax_gradient(const RowView& view, bool log, const E* y, const E* dy,
                          const wide_t<E>* sums, bool add, E* dx) {
  using T = wide_t<E>;
  for_each_sweep(view, [=](int64_t offset, int64_t count, int64_t stride, int64_t row) {
    const T* sum = sums + row;
    vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
      for (int64_t i = 0; i < count; ++i) {
        const int64_t at = offset + i;
        const auto value = static_cast<T>(y[at]), g = static_cast<T>(dy[at]);
        const T share = sum[i * stride];
        const T slope = log ? g - exp_negative(value) * share : value * (g - share);
        dx[at] = static_cast<E>(add ? static_cast<T>(dx[at]) + slope : slope);
      }
    });
  });
}

}  // namespace

void softmax_begin(const ForwardCall& call, at::Tensor& statistics) {
  const at::Tensor& x = call.input(0);
  const RowView view(x.sizes(), call.attrs<SoftmaxAttrs>().axis);
  with_float_type(x.scalar_type(), [&](auto zero) {
    using T = wide_t<decltype(zero)>;
    T* out = statistics.data_ptr<T>();
    for_each_exponentials(view, x.data_ptr<decltype(zero)>(), [=](int64_t row, T top, T sum) {
      out[row * 2] = top;
      out[row * 2 + 1] = sum;
    });
  });
}

void softmax_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  const at::Tensor &y = call.output(0), &dy = call.gradient();
  with_float_type(y.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    sum_products(RowView(y.sizes(), attrs.axis), attrs.log, y.data_ptr<E>(), dy.data_ptr<E>(),
                 statistics.data_ptr<wide_t<E>>());
  });
}

// fp16, for which ATen has no softmax, goes through fp32 as a whole.
void softmax_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  const at::Tensor& x = call.input(0);
  at::Tensor& y = call.outputs[0].allocate();
  if (call.statistics != nullptr) {
    with_float_type(x.scalar_type(), [&](auto zero) {
      using E = decltype(zero);
      end_softmax(RowView(x.sizes(), attrs.axis), attrs.log, x.data_ptr<E>(),
                  call.statistics->data_ptr<wide_t<E>>(), y.data_ptr<E>());
    });
    return;
  }
  const bool narrow = x.scalar_type() == at::kHalf;
  const at::Tensor from = narrow ? x.to(at::kFloat) : x;
  at::Tensor to = narrow ? at::empty(x.sizes(), at::kFloat) : y;
  if (attrs.log)
    at::_log_softmax_out(to, from, attrs.axis, false);
  else
    at::_softmax_out(to, from, attrs.axis, false);
  if (narrow) y.copy_(to);
}

void softmax_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<SoftmaxAttrs>();
  Result& result = call.results[0];
  if (call.statistics != nullptr) {
    at::Tensor& dx = result.adds() ? result.sum() : result.allocate();
    with_float_type(dx.scalar_type(), [&](auto zero) {
      using E = decltype(zero);
      end_softmax_gradient(RowView(dx.sizes(), attrs.axis), attrs.log, call.output(0).data_ptr<E>(),
                           call.gradient().data_ptr<E>(), call.statistics->data_ptr<wide_t<E>>(),
                           result.adds(), dx.data_ptr<E>());
    });
    return;
  }
  const bool narrow = call.gradient().scalar_type() == at::kHalf;
  const at::Tensor g = narrow ? call.gradient().to(at::kFloat) : call.gradient();
  const at::Tensor y = narrow ? call.output(0).to(at::kFloat) : call.output(0);
  const at::ScalarType type = g.scalar_type();
  if (result.adds() || narrow)
    result.set(attrs.log ? at::_log_softmax_backward_data(g, y, attrs.axis, type)
                         : at::_softmax_backward_data(g, y, attrs.axis, type));
  else if (attrs.log)
    at::_log_softmax_backward_data_out(result.allocate(), g, y, attrs.axis, type);
  else
    at::_softmax_backward_data_out(result.allocate(), g, y, attrs.axis, type);
}

}  // namespace windlass
