// Losses: means in fp32 (fp64 for fp64). Nothing of the size of the logits is made but their
// gradient.

#include <algorithm>
#include <cmath>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/_log_softmax_backward_data.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/zeros_like.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/exponential.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {
namespace {

constexpr int64_t kLossGrain = int64_t{1} << 14;  // elements worth a thread
constexpr int64_t kSmall = int64_t{1} << 15;      // logits that are not worth a sweep of their own
constexpr int64_t kColumns = 256;                 // neighbouring rows of one sweep

// Logits seen from the axis of classes: row (o, n), class c is at (o * classes + c) * inner + n.
struct RowView {
  int64_t outer = 1, classes = 1, inner = 1;

  RowView(at::IntArrayRef shape, int64_t axis) {
    for (int64_t i = 0; i < static_cast<int64_t>(shape.size()); ++i)
      (i < axis ? outer : i == axis ? classes : inner) *= shape[static_cast<size_t>(i)];
  }
  int64_t rows() const { return outer * inner; }

  // Calls f(first row, count, offset of class 0 of the first) on several threads: one row at a
  // time if its classes are neighbours, else up to kColumns rows that are.
  template <class F>
  void each(const F& f) const {
    const int64_t pieces = (inner + kColumns - 1) / kColumns;
    const int64_t work = std::max<int64_t>(1, classes * std::min(inner, kColumns));
    at::parallel_for(0, outer * pieces, std::max<int64_t>(1, kLossGrain / work),
                     [&](int64_t begin, int64_t end) {
                       for (int64_t k = begin; k < end; ++k) {
                         const int64_t o = k / pieces, n = k % pieces * kColumns;
                         f(o * inner + n, std::min(kColumns, inner - n), o * classes * inner + n);
                       }
                     });
  }
};

// Labels of all rows; -1 for those that do not count.
std::vector<int64_t> read_labels(const CrossEntropyAttrs& attrs, const at::Tensor& labels,
                                 int64_t classes) {
  std::vector<int64_t> result(static_cast<size_t>(labels.numel()));
  with_integer_type(labels.scalar_type(), [&](auto zero) {
    const auto* data = labels.data_ptr<decltype(zero)>();
    for (size_t row = 0; row < result.size(); ++row) {
      const auto label = static_cast<int64_t>(data[row]);
      result[row] = label == attrs.ignore_index ? -1 : label;
      if (label != attrs.ignore_index && (label < 0 || label >= classes))
        fail_input("label {} of row {} is out of range for {} classes", label, row, classes);
    }
  });
  return result;
}

template <class E, class T>
void row_statistic(const E* x, int64_t classes, T* lse) {
  vectorized([=]() WINDLASS_INLINE {
    const T top = greatest_of<T>(x, classes);
    T sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t c = 0; c < classes; ++c) sum += exp_negative(static_cast<T>(x[c]) - top);
    *lse = top + std::log(sum);
  });
}

// Rows that are neighbours, their classes `stride` apart.
template <class E, class T>
void column_statistics(const E* x, int64_t classes, int64_t stride, int64_t n, T* lse) {
  vectorized([=]() WINDLASS_INLINE {
    T top[kColumns], sum[kColumns];
    for (int64_t i = 0; i < n; ++i) {
      top[i] = static_cast<T>(x[i]);
      sum[i] = 0;
    }
    for (int64_t c = 1; c < classes; ++c) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const auto value = static_cast<T>(x[c * stride + i]);
        top[i] = value > top[i] ? value : top[i];
      }
    }
    for (int64_t c = 0; c < classes; ++c) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i)
        sum[i] += exp_negative(static_cast<T>(x[c * stride + i]) - top[i]);
    }
    for (int64_t i = 0; i < n; ++i) lse[i] = top[i] + std::log(sum[i]);
  });
}

// d = factor (softmax - onehot) for one row, written or added.
template <class E, class T>
void row_gradient(const E* x, int64_t classes, T lse, int64_t label, T factor, bool add, E* d) {
  vectorized([=]() WINDLASS_INLINE {
    // The label's own, before the sweep writes over it.
    const T old = add ? static_cast<T>(d[label]) : T(0);
    const T own = old + factor * (exp_negative(static_cast<T>(x[label]) - lse) - T(1));
    const T shift = lse, share = factor;
    const int64_t n = classes;
    if (add) {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        const T p = exp_negative(static_cast<T>(x[c]) - shift);
        d[c] = static_cast<E>(static_cast<T>(d[c]) + share * p);
      }
    } else {
#pragma omp simd
      for (int64_t c = 0; c < n; ++c) {
        const T p = exp_negative(static_cast<T>(x[c]) - shift);
        d[c] = static_cast<E>(share * p);
      }
    }
    d[label] = static_cast<E>(own);
  });
}

template <class E, class T>
void column_gradients(const E* x, int64_t classes, int64_t stride, int64_t n, const T* lse,
                      const int64_t* labels, T factor, bool add, E* d) {
  vectorized([=]() WINDLASS_INLINE {
    for (int64_t c = 0; c < classes; ++c) {
#pragma omp simd
      for (int64_t i = 0; i < n; ++i) {
        const int64_t at = c * stride + i;
        const T p = exp_negative(static_cast<T>(x[at]) - lse[i]) - (labels[i] == c ? T(1) : T(0));
        const T value = labels[i] < 0 ? T(0) : factor * p;
        d[at] = static_cast<E>(add ? static_cast<T>(d[at]) + value : value);
      }
    }
  });
}

// Sum of (a - b)^2 in fp64: parts of fixed size, so that threads do not matter.
template <class E>
double squared_distance(const E* a, const E* b, int64_t count) {
  constexpr int64_t kPart = kLossGrain;
  const int64_t parts = (count + kPart - 1) / kPart;
  std::vector<double> sums(static_cast<size_t>(parts));
  at::parallel_for(0, parts, 1, [&](int64_t begin, int64_t end) {
    for (int64_t p = begin; p < end; ++p) {
      double* sum = &sums[static_cast<size_t>(p)];
      const int64_t first = p * kPart, last = std::min(count, first + kPart);
      vectorized([=]() WINDLASS_INLINE {
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (int64_t i = first; i < last; ++i) {
          using T = wide_t<E>;
          const auto d = static_cast<double>(static_cast<T>(a[i]) - static_cast<T>(b[i]));
          total += d * d;
        }
        *sum = total;
      });
    }
  });
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

template <class E>
void scaled_difference(const E* a, const E* b, int64_t count, double factor, bool add, E* d) {
  using T = wide_t<E>;
  const auto f = static_cast<T>(factor);
  at::parallel_for(0, count, kLossGrain, [=](int64_t begin, int64_t end) {
    vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
      for (int64_t i = begin; i < end; ++i) {
        const T value = f * (static_cast<T>(a[i]) - static_cast<T>(b[i]));
        d[i] = static_cast<E>(add ? static_cast<T>(d[i]) + value : value);
      }
    });
  });
}

at::Tensor& target(Result& result) { return result.adds() ? result.sum() : result.allocate(); }

// Few logits: the steps that PyTorch takes, so that classifiers train on the very same bits.
bool is_small(const at::Tensor& logits) {
  return logits.scalar_type() == at::kFloat && logits.numel() <= kSmall;
}
at::Tensor small_gradient(const BackwardCall& call, const RowView& view,
                          const std::vector<int64_t>& labels) {
  const at::Tensor& logits = call.input(0);
  const int64_t axis = call.attrs<CrossEntropyAttrs>().axis;
  const at::Tensor chances = at::log_softmax(logits, axis);
  at::Tensor arriving = at::zeros_like(logits);
  const float share = -*call.gradient().data_ptr<float>() / *call.auxiliary(1).data_ptr<float>();
  for (int64_t row = 0; row < view.rows(); ++row) {
    const int64_t label = labels[static_cast<size_t>(row)];
    if (label < 0) continue;
    const int64_t o = row / view.inner, n = row % view.inner;
    arriving.data_ptr<float>()[(o * view.classes + label) * view.inner + n] = share;
  }
  return at::_log_softmax_backward_data(arriving, chances, axis, logits.scalar_type());
}

}  // namespace

// The mean over no rows is NaN, as in PyTorch.
void cross_entropy_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const at::Tensor& logits = call.input(0);
  const RowView view(logits.sizes(), attrs.axis);
  const std::vector<int64_t> labels = read_labels(attrs, call.input(1), view.classes);
  with_float_type(logits.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    using T = wide_t<E>;
    const E* x = logits.data_ptr<E>();
    std::vector<T> unsaved;
    T* lse = nullptr;
    if (call.wants_auxiliary(0)) {
      lse = call.auxiliaries[0].allocate().template data_ptr<T>();
    } else {
      unsaved.resize(labels.size());
      lse = unsaved.data();
    }
    view.each([=](int64_t row, int64_t n, int64_t offset) {
      if (view.inner == 1)
        row_statistic(x + offset, view.classes, lse + row);
      else
        column_statistics(x + offset, view.classes, view.inner, n, lse + row);
    });
    double total = 0, count = 0;
    for (int64_t row = 0; row < view.rows(); ++row) {
      const int64_t label = labels[static_cast<size_t>(row)];
      if (label < 0) continue;
      const int64_t o = row / view.inner, n = row % view.inner;
      total += static_cast<double>(lse[row] -
                                   static_cast<T>(x[(o * view.classes + label) * view.inner + n]));
      count += 1;
    }
    const double divisor = call.mean_count < 0 ? count : call.mean_count;
    call.outputs[0].allocate().fill_(total / divisor);
    if (call.wants_auxiliary(1)) call.auxiliaries[1].allocate().fill_(divisor);
  });
}

void cross_entropy_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const at::Tensor& logits = call.input(0);
  const RowView view(logits.sizes(), attrs.axis);
  const std::vector<int64_t> labels = read_labels(attrs, call.input(1), view.classes);
  if (is_small(logits)) return call.results[0].set(small_gradient(call, view, labels));
  const bool add = call.results[0].adds();
  at::Tensor& gradient = target(call.results[0]);
  with_float_type(logits.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    using T = wide_t<E>;
    const T* lse = call.auxiliary(0).template data_ptr<T>();
    const T factor =
        *call.gradient().template data_ptr<T>() / *call.auxiliary(1).template data_ptr<T>();
    const E* x = logits.data_ptr<E>();
    E* d = gradient.data_ptr<E>();
    const int64_t* all = labels.data();
    view.each([=](int64_t row, int64_t n, int64_t offset) {
      if (view.inner > 1)
        column_gradients(x + offset, view.classes, view.inner, n, lse + row, all + row, factor, add,
                         d + offset);
      else if (all[row] >= 0)
        row_gradient(x + offset, view.classes, lse[row], all[row], factor, add, d + offset);
      else if (!add)
        std::fill_n(d + offset, view.classes, static_cast<E>(0.0f));
    });
  });
}

void mean_squared_error_forward(ForwardCall& call) {
  const at::Tensor& a = call.input(0);
  const at::Tensor b = in_type(call.input(1), a.scalar_type());
  with_float_type(a.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    const double total = squared_distance(a.data_ptr<E>(), b.data_ptr<E>(), a.numel());
    call.outputs[0].allocate().fill_(total / static_cast<double>(a.numel()));
  });
}

void mean_squared_error_backward(BackwardCall& call) {
  for (const size_t i : {0, 1}) {
    if (!call.wants(i)) continue;
    const at::ScalarType type = scalar_type(call.input_types[i].dtype);
    const at::Tensor a = in_type(call.input(i), type), b = in_type(call.input(1 - i), type);
    const double factor = 2 * call.gradient().item<double>() / static_cast<double>(a.numel());
    Result& result = call.results[i];
    at::Tensor& d = target(result);
    with_float_type(type, [&](auto zero) {
      using E = decltype(zero);
      scaled_difference(a.data_ptr<E>(), b.data_ptr<E>(), a.numel(), factor, result.adds(),
                        d.data_ptr<E>());
    });
  }
}

}  // namespace windlass
