#include "windlass/runtime/kernels/row_norm.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include "windlass/runtime/kernels/planes.h"
#include "windlass/runtime/kernels/precision.h"

namespace windlass {
namespace {

// Elements that are worth a thread.
constexpr int64_t kWorth = 32768;

// Sum of f(i) for i below `count`. The compiler may form it in several parts, which a row of any
// size always has in the same number.
template <class S, class F>
S sum_of(int64_t count, F&& f) {
  S sum = 0;
#pragma omp simd reduction(+ : sum)
  for (int64_t i = 0; i < count; ++i) sum += f(i);
  return sum;
}

template <class F>
void for_each_element(int64_t count, F&& f) {
#pragma omp simd
  for (int64_t i = 0; i < count; ++i) f(i);
}

// A row in the type of sums: itself, or a copy in `buffer`.
template <class T>
const Sum<T>* readable_row(const T* row, int64_t size, std::vector<Sum<T>>& buffer) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    return row;
  } else {
    buffer.resize(static_cast<size_t>(size));
    for (int64_t i = 0; i < size; ++i) buffer[static_cast<size_t>(i)] = static_cast<Sum<T>>(row[i]);
    return buffer.data();
  }
}

struct NormRows {
  int64_t count = 1, size = 1;

  NormRows(at::IntArrayRef shape, int64_t axis) {
    for (size_t i = 0; i < shape.size(); ++i)
      (static_cast<int64_t>(i) < axis ? count : size) *= shape[i];
  }
  int64_t grain() const { return std::max<int64_t>(1, kWorth / std::max<int64_t>(1, size)); }
};

// A parameter of the rows in the type of sums, with `offset` added; undefined stays so.
at::Tensor row_parameter(const at::Tensor& parameter, double offset) {
  if (!parameter.defined()) return parameter;
  const at::Tensor wide = widened(parameter);
  return offset == 0 ? wide : wide.add(offset);
}

template <class S>
const S* data_of(const at::Tensor& tensor) {
  return tensor.defined() ? tensor.data_ptr<S>() : nullptr;
}

// What the mean over a row divides by: a piece of it counts the whole.
double row_size(const NormRows& rows, const PieceFacts& facts) {
  return facts.mean_count < 0 ? static_cast<double>(rows.size) : facts.mean_count;
}

// Sum of the squared deviations of a row from `mean`.
template <class S>
S squared_deviations(const S* x, int64_t size, S mean) {
  return sum_of<S>(size, [&](int64_t i) {
    const S deviation = x[i] - mean;
    return deviation * deviation;
  });
}

// Of each row what pieces exchange: count, mean and squared deviations, or the sum of squares.
template <class T>
void begin_rows(const ForwardCall& call, RowNorm form, at::Tensor& statistics) {
  using S = Sum<T>;
  const at::Tensor& x = call.input(0);
  const NormRows rows(x.sizes(), call.attrs<LayerNormAttrs>().axis);
  const T* input = x.data_ptr<T>();
  S* out = statistics.data_ptr<S>();
  const auto n = static_cast<S>(rows.size);
  at::parallel_for(0, rows.count, rows.grain(), [&](int64_t begin, int64_t end) {
    std::vector<S> buffer;
    for (int64_t r = begin; r < end; ++r) {
      const S* from = readable_row(input + r * rows.size, rows.size, buffer);
      if (form == RowNorm::Rms) {
        out[r] = squared_deviations(from, rows.size, S(0));
        continue;
      }
      const S mean = sum_of<S>(rows.size, [&](int64_t i) { return from[i]; }) / n;
      out[r * 3] = n;
      out[r * 3 + 1] = mean;
      out[r * 3 + 2] = squared_deviations(from, rows.size, mean);
    }
  });
}

template <class T>
void normalize_rows(ForwardCall& call, RowNorm form) {
  using S = Sum<T>;
  const auto& attrs = call.attrs<LayerNormAttrs>();
  const at::Tensor& x = call.input(0);
  const NormRows rows(x.sizes(), attrs.axis);
  const bool centered = form == RowNorm::Centered;
  const at::Tensor scale =
      row_parameter(call.has(1) ? call.input(1) : at::Tensor(), attrs.scale_offset);
  const at::Tensor bias = row_parameter(call.has(2) ? call.input(2) : at::Tensor(), 0);
  const size_t rstd_at = centered ? 1 : 0;
  S* means = centered && call.wants_auxiliary(0)
                 ? call.auxiliaries[0].allocate().template data_ptr<S>()
                 : nullptr;
  S* rstds = call.wants_auxiliary(rstd_at)
                 ? call.auxiliaries[rstd_at].allocate().template data_ptr<S>()
                 : nullptr;
  const S *w = data_of<S>(scale), *b = data_of<S>(bias);
  const T* input = x.data_ptr<T>();
  T* output = call.outputs[0].allocate().template data_ptr<T>();
  const auto n = static_cast<S>(row_size(rows, call.facts));
  const auto epsilon = static_cast<S>(attrs.epsilon);
  const S* merged = call.statistics == nullptr ? nullptr : call.statistics->data_ptr<S>();
  at::parallel_for(0, rows.count, rows.grain(), [&](int64_t begin, int64_t end) {
    std::vector<S> buffer;
    for (int64_t r = begin; r < end; ++r) {
      const S* from = readable_row(input + r * rows.size, rows.size, buffer);
      T* to = output + r * rows.size;
      S mean = 0, square = 0;
      if (merged != nullptr) {
        if (centered) mean = merged[r * 3 + 1];
        square = centered ? merged[r * 3 + 2] : merged[r];
      } else {
        if (centered) mean = sum_of<S>(rows.size, [&](int64_t i) { return from[i]; }) / n;
        square = squared_deviations(from, rows.size, mean);
      }
      const S rstd = 1 / std::sqrt(square / n + epsilon);
      if (means != nullptr) means[r] = mean;
      if (rstds != nullptr) rstds[r] = rstd;
      const auto write = [&](auto&& finish) {
        for_each_element(rows.size, [&](int64_t i) {
          to[i] = static_cast<T>(finish((from[i] - mean) * rstd, i));
        });
      };
      if (w != nullptr && b != nullptr)
        write([&](S value, int64_t i) { return value * w[i] + b[i]; });
      else if (w != nullptr)
        write([&](S value, int64_t i) { return value * w[i]; });
      else if (b != nullptr)
        write([&](S value, int64_t i) { return value + b[i]; });
      else
        write([](S value, int64_t) { return value; });
    }
  });
}

// Sums over rows are formed in a fixed number of blocks, so that they do not depend on threads.
constexpr int64_t kBlocks = 8;

template <class T>
struct RowGradient {
  using S = Sum<T>;
  NormRows rows;
  bool centered;
  const T* gradients;
  const T* inputs;
  const S* means;
  const S* rstds;
  const S* scale;
  S mean_count;
  T* out = nullptr;  // of x; null if not wanted
  bool out_adds = false;
  const S* merged = nullptr;  // sums of all pieces, if this is one of several

  // One row: writes its part of dx and adds to the sums of scale and bias where they are there.
  void run(int64_t r, std::vector<S>& g_buffer, std::vector<S>& x_buffer, S* scale_sum,
           S* bias_sum) const {
    const int64_t size = rows.size;
    const S* g = readable_row(gradients + r * size, size, g_buffer);
    const S* x = readable_row(inputs + r * size, size, x_buffer);
    const S mean = means != nullptr ? means[r] : S(0), rstd = rstds[r];
    if (scale_sum != nullptr)
      for_each_element(size, [&](int64_t i) { scale_sum[i] += g[i] * (x[i] - mean) * rstd; });
    if (bias_sum != nullptr) for_each_element(size, [&](int64_t i) { bias_sum[i] += g[i]; });
    if (out == nullptr) return;
    with_scale([&](const auto& s) { write(r, g, x, mean, rstd, s); });
  }

  // What pieces of the rows exchange: the sums of g s, if centered, and of g s xhat.
  void begin(int64_t r, std::vector<S>& g_buffer, std::vector<S>& x_buffer, S* found) const {
    const S* g = readable_row(gradients + r * rows.size, rows.size, g_buffer);
    const S* x = readable_row(inputs + r * rows.size, rows.size, x_buffer);
    const S mean = means != nullptr ? means[r] : S(0);
    with_scale([&](const auto& s) {
      if (centered) *found++ = sum_of<S>(rows.size, [&](int64_t i) { return g[i] * s(i); });
      *found =
          sum_of<S>(rows.size, [&](int64_t i) { return g[i] * s(i) * (x[i] - mean); }) * rstds[r];
    });
  }

 private:
  template <class F>
  void with_scale(const F& f) const {
    scale != nullptr ? f([&](int64_t i) { return scale[i]; }) : f([](int64_t) { return S(1); });
  }

  // dx = rstd (g s - mean(g s) - xhat mean(g s xhat)), without the first mean if not centered.
  template <class Scale>
  void write(int64_t r, const S* g, const S* x, S mean, S rstd, const Scale& s) const {
    const int64_t size = rows.size;
    const S n = mean_count;
    S mean_g = 0, mean_gx = 0;
    if (merged != nullptr) {
      const S* found = merged + r * (centered ? 2 : 1);
      if (centered) mean_g = *found++ / n;
      mean_gx = *found / n;
    } else {
      if (centered) mean_g = sum_of<S>(size, [&](int64_t i) { return g[i] * s(i); }) / n;
      mean_gx = sum_of<S>(size, [&](int64_t i) { return g[i] * s(i) * (x[i] - mean); }) * rstd / n;
    }
    T* to = out + r * size;
    const auto value = [&](int64_t i) {
      return rstd * (g[i] * s(i) - mean_g - (x[i] - mean) * rstd * mean_gx);
    };
    if (out_adds)
      for_each_element(size, [&](int64_t i) { to[i] = static_cast<T>(S(to[i]) + value(i)); });
    else
      for_each_element(size, [&](int64_t i) { to[i] = static_cast<T>(value(i)); });
  }
};

// The scale that the gradient of x reads.
at::Tensor gradient_scale(const BackwardCall& call) {
  return row_parameter(call.has_input(1) && call.wants(0) ? call.input(1) : at::Tensor(),
                       call.attrs<LayerNormAttrs>().scale_offset);
}

template <class T>
RowGradient<T> row_gradient_of(const BackwardCall& call, RowNorm form, const at::Tensor& scale) {
  using S = Sum<T>;
  const NormRows rows(call.shape(0), call.attrs<LayerNormAttrs>().axis);
  const bool centered = form == RowNorm::Centered;
  return {rows,
          centered,
          call.gradient().template data_ptr<T>(),
          call.input(0).template data_ptr<T>(),
          centered ? call.auxiliary(0).template data_ptr<S>() : nullptr,
          call.auxiliary(centered ? 1 : 0).template data_ptr<S>(),
          data_of<S>(scale),
          static_cast<S>(row_size(rows, call.facts))};
}

template <class T>
void begin_row_gradients(const BackwardCall& call, RowNorm form, at::Tensor& statistics) {
  using S = Sum<T>;
  const at::Tensor scale = gradient_scale(call);
  const RowGradient<T> gradient = row_gradient_of<T>(call, form, scale);
  const NormRows& rows = gradient.rows;
  S* out = statistics.data_ptr<S>();
  at::parallel_for(0, rows.count, rows.grain(), [&](int64_t begin, int64_t end) {
    std::vector<S> g_buffer, x_buffer;
    for (int64_t r = begin; r < end; ++r)
      gradient.begin(r, g_buffer, x_buffer, out + r * (gradient.centered ? 2 : 1));
  });
}

template <class T>
void row_gradients(BackwardCall& call, RowNorm form) {
  using S = Sum<T>;
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  constexpr at::ScalarType kSumType = c10::CppTypeToScalarType<S>::value;
  const at::Tensor scale = gradient_scale(call);
  RowGradient<T> gradient = row_gradient_of<T>(call, form, scale);
  const NormRows& rows = gradient.rows;
  at::Tensor dx;
  bool in_place = false;
  if (call.wants(0)) {
    Result& result = call.results[0];
    in_place = result.adds() && result.sum().scalar_type() == kType;
    dx = in_place ? result.sum() : at::empty(call.shape(0), kType);
  }
  if (dx.defined()) gradient.out = dx.template data_ptr<T>();
  gradient.out_adds = in_place;
  if (call.statistics != nullptr) gradient.merged = call.statistics->data_ptr<S>();
  const int64_t blocks = std::clamp<int64_t>(rows.count, 1, kBlocks);
  at::Tensor scale_sums, bias_sums;
  if (call.wants(1)) scale_sums = at::zeros({blocks, rows.size}, kSumType);
  if (call.wants(2)) bias_sums = at::zeros({blocks, rows.size}, kSumType);
  const auto part = [&](const at::Tensor& sums, int64_t block) {
    return sums.defined() ? sums.template data_ptr<S>() + block * rows.size : nullptr;
  };
  at::parallel_for(0, blocks, 1, [&](int64_t begin, int64_t end) {
    std::vector<S> g_buffer, x_buffer;
    for (int64_t block = begin; block < end; ++block)
      for (int64_t r = rows.count * block / blocks; r < rows.count * (block + 1) / blocks; ++r)
        gradient.run(r, g_buffer, x_buffer, part(scale_sums, block), part(bias_sums, block));
  });
  if (call.wants(0) && !in_place) call.results[0].set(std::move(dx));
  if (call.wants(1)) call.results[1].set(scale_sums.sum({0}).view(call.shape(1)));
  if (call.wants(2)) call.results[2].set(bias_sums.sum({0}).view(call.shape(2)));
}

}  // namespace

void row_norm_forward(ForwardCall& call, RowNorm form) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, call.input(0).scalar_type(), "norm",
                                  [&] { normalize_rows<scalar_t>(call, form); });
}

void row_norm_begin(const ForwardCall& call, RowNorm form, at::Tensor& statistics) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, call.input(0).scalar_type(), "norm",
                                  [&] { begin_rows<scalar_t>(call, form, statistics); });
}

void row_norm_begin_backward(const BackwardCall& call, RowNorm form, at::Tensor& statistics) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, call.gradient().scalar_type(), "norm",
                                  [&] { begin_row_gradients<scalar_t>(call, form, statistics); });
}

void row_norm_backward(BackwardCall& call, RowNorm form) {
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, call.gradient().scalar_type(), "norm",
                                  [&] { row_gradients<scalar_t>(call, form); });
}

}  // namespace windlass
