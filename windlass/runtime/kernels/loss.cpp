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
#include "windlass/runtime/kernels/exponential_rows.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {
namespace {

constexpr int64_t kLossGrain = int64_t{1} << 14;  // elements worth a thread
constexpr int64_t kSmall = int64_t{1} << 15;      // logits that are not worth a sweep of their own

constexpr int64_t kUncounted = -1;  // a label that does not count
constexpr int64_t kElsewhere = -2;  // a label whose class another piece has

// Labels of all rows, as classes of the piece, which has `here` of all classes, so many as `local`.
std::vector<int64_t> read_labels(const CrossEntropyAttrs& attrs, const at::Tensor& labels,
                                 const AxisPart& here, int64_t local) {
  const int64_t classes = here.whole_size(local);
  std::vector<int64_t> result(static_cast<size_t>(labels.numel()));
  with_integer_type(labels.scalar_type(), [&](auto zero) {
    const auto* data = labels.data_ptr<decltype(zero)>();
    for (size_t row = 0; row < result.size(); ++row) {
      const auto label = static_cast<int64_t>(data[row]);
      if (label == attrs.ignore_index) {
        result[row] = kUncounted;
        continue;
      }
      if (label < 0 || label >= classes)
        fail_input("label {} of row {} is out of range for {} classes", label, row, classes);
      const int64_t own = here.to_local(label);
      result[row] = own < 0 ? kElsewhere : own;
    }
  });
  return result;
}

// d = factor (softmax - onehot) for one row, written or added; the label may be elsewhere.
template <class E, class T>
void row_gradient(const E* x, int64_t classes, T lse, int64_t label, T factor, bool add, E* d) {
  vectorized([=]() WINDLASS_INLINE {
    // The label's own, before the sweep writes over it.
    T own = 0;
    if (label >= 0) {
      const T old = add ? static_cast<T>(d[label]) : T(0);
      own = old + factor * (exp_negative(static_cast<T>(x[label]) - lse) - T(1));
    }
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
    if (label >= 0) d[label] = static_cast<E>(own);
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
        const T value = labels[i] == kUncounted ? T(0) : factor * p;
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

// What a mean over `own` elements here divides by.
double divisor_of(const PieceFacts& facts, double own) {
  return facts.mean_count < 0 ? own : facts.mean_count;
}

// Few logits, of all classes: the steps that PyTorch takes, so that classifiers train on the very
// same bits.
bool is_small(const at::Tensor& logits, const AxisPart& here, int64_t classes) {
  return logits.scalar_type() == at::kFloat && logits.numel() <= kSmall &&
         here.whole_size(classes) == classes;
}
at::Tensor small_gradient(const BackwardCall& call, const RowView& view,
                          const std::vector<int64_t>& labels, float divisor) {
  const at::Tensor& logits = call.input(0);
  const int64_t axis = call.attrs<CrossEntropyAttrs>().axis;
  const at::Tensor chances = at::log_softmax(logits, axis);
  at::Tensor arriving = at::zeros_like(logits);
  const float share = -*call.gradient().data_ptr<float>() / divisor;
  for (int64_t row = 0; row < view.rows(); ++row) {
    const int64_t label = labels[static_cast<size_t>(row)];
    if (label >= 0) arriving.data_ptr<float>()[view.at(row, label)] = share;
  }
  return at::_log_softmax_backward_data(arriving, chances, axis, logits.scalar_type());
}

}  // namespace

// Of every row, whatever its label: the maximum, the sum of exponentials relative to it, and the
// logit of the label if that counts and is here.
void cross_entropy_begin(const ForwardCall& call, at::Tensor& statistics) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const at::Tensor& logits = call.input(0);
  const RowView view(logits.sizes(), attrs.axis);
  const std::vector<int64_t> labels = read_labels(attrs, call.input(1), call.facts.rows, view.size);
  with_float_type(logits.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    using T = wide_t<E>;
    const E* x = logits.data_ptr<E>();
    T* out = statistics.data_ptr<T>();
    for_each_exponentials(view, x, [&](int64_t row, T top, T sum) {
      const int64_t label = labels[static_cast<size_t>(row)];
      out[row * 3] = top;
      out[row * 3 + 1] = sum;
      out[row * 3 + 2] = label < 0 ? T(0) : static_cast<T>(x[view.at(row, label)]);
    });
  });
}

// The mean over no rows is NaN, as in PyTorch.
void cross_entropy_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const at::Tensor& logits = call.input(0);
  const RowView view(logits.sizes(), attrs.axis);
  const std::vector<int64_t> labels = read_labels(attrs, call.input(1), call.facts.rows, view.size);
  with_float_type(logits.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    using T = wide_t<E>;
    const E* x = logits.data_ptr<E>();
    const T* merged = call.statistics == nullptr ? nullptr : call.statistics->data_ptr<T>();
    ensure(merged != nullptr || call.facts.rows.whole_size(view.size) == view.size,
           "classes are split, but there are no statistics");
    std::vector<T> unsaved;
    T* lse = nullptr;
    if (call.wants_auxiliary(0)) {
      lse = call.auxiliaries[0].allocate().template data_ptr<T>();
    } else {
      unsaved.resize(labels.size());
      lse = unsaved.data();
    }
    if (merged != nullptr)
      for (int64_t row = 0; row < view.rows(); ++row)
        lse[row] = merged[row * 3] + std::log(merged[row * 3 + 1]);
    else
      for_each_exponentials(view, x,
                            [=](int64_t row, T top, T sum) { lse[row] = top + std::log(sum); });
    double total = 0, count = 0;
    for (int64_t row = 0; row < view.rows(); ++row) {
      const int64_t label = labels[static_cast<size_t>(row)];
      if (label == kUncounted) continue;
      const T own =
          merged != nullptr ? merged[row * 3 + 2] : static_cast<T>(x[view.at(row, label)]);
      total += static_cast<double>(lse[row] - own);
      count += 1;
    }
    const double divisor = divisor_of(call.facts, count);
    call.outputs[0].allocate().fill_(total / divisor);
    if (call.wants_auxiliary(1)) call.auxiliaries[1].allocate().fill_(divisor);
  });
}

void cross_entropy_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<CrossEntropyAttrs>();
  const at::Tensor& logits = call.input(0);
  const RowView view(logits.sizes(), attrs.axis);
  const std::vector<int64_t> labels = read_labels(attrs, call.input(1), call.facts.rows, view.size);
  const double divisor = divisor_of(call.facts, call.auxiliary(1).item<double>());
  if (is_small(logits, call.facts.rows, view.size))
    return call.results[0].set(small_gradient(call, view, labels, static_cast<float>(divisor)));
  const bool add = call.results[0].adds();
  at::Tensor& gradient = target(call.results[0]);
  with_float_type(logits.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    using T = wide_t<E>;
    const T* lse = call.auxiliary(0).template data_ptr<T>();
    const T factor = *call.gradient().template data_ptr<T>() / static_cast<T>(divisor);
    const E* x = logits.data_ptr<E>();
    E* d = gradient.data_ptr<E>();
    const int64_t* all = labels.data();
    view.each([=](int64_t row, int64_t n, int64_t offset) {
      if (view.inner > 1)
        column_gradients(x + offset, view.size, view.inner, n, lse + row, all + row, factor, add,
                         d + offset);
      else if (all[row] != kUncounted)
        row_gradient(x + offset, view.size, lse[row], all[row], factor, add, d + offset);
      else if (!add)
        std::fill_n(d + offset, view.size, static_cast<E>(0.0f));
    });
  });
}

void mean_squared_error_forward(ForwardCall& call) {
  const at::Tensor& a = call.input(0);
  const at::Tensor b = in_type(call.input(1), a.scalar_type());
  with_float_type(a.scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    const double total = squared_distance(a.data_ptr<E>(), b.data_ptr<E>(), a.numel());
    const double count = divisor_of(call.facts, static_cast<double>(a.numel()));
    call.outputs[0].allocate().fill_(total / count);
  });
}

void mean_squared_error_backward(BackwardCall& call) {
  for (const size_t i : {0, 1}) {
    if (!call.wants(i)) continue;
    const at::ScalarType type = scalar_type(call.input_types[i].dtype);
    const at::Tensor a = in_type(call.input(i), type), b = in_type(call.input(1 - i), type);
    const double count = divisor_of(call.facts, static_cast<double>(a.numel()));
    const double factor = 2 * call.gradient().item<double>() / count;
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
