// Mixture of experts: choice of experts, and the weighted sum of what they make.

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/_softmax.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

constexpr int64_t kRoutingGrain = int64_t{1} << 14;  // elements worth a thread

int64_t grain_of(int64_t width) {
  return std::max<int64_t>(1, kRoutingGrain / std::max<int64_t>(1, width));
}

// The k greatest of a row of scores, best first; of equal ones the lower id. Any order that keeps
// the scores' own does: backward chooses again from the probabilities.
template <class T>
void choose(const T* row, int64_t experts, int64_t k, std::vector<int64_t>& ids) {
  ids.resize(static_cast<size_t>(experts));
  std::iota(ids.begin(), ids.end(), int64_t{0});
  std::partial_sort(ids.begin(), ids.begin() + k, ids.end(), [row](int64_t a, int64_t b) {
    const auto x = static_cast<wide_t<T>>(row[a]), y = static_cast<wide_t<T>>(row[b]);
    return x > y || (x == y && a < b);
  });
}

}  // namespace

void route_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<RouteAttrs>();
  const at::Tensor& logits = call.input(0);
  const int64_t tokens = logits.size(0), experts = logits.size(1), k = attrs.top_k;
  at::Tensor probabilities;
  if (call.wants_auxiliary(0) || !attrs.renormalize) {
    const bool half = logits.scalar_type() == at::kHalf;  // for which ATen has no softmax
    at::Tensor found = at::_softmax(half ? logits.to(at::kFloat) : logits, 1, false);
    if (half) found = found.to(at::kHalf);
    if (call.wants_auxiliary(0)) {
      call.auxiliaries[0].set(std::move(found));
      probabilities = call.auxiliaries[0].tensor();
    } else {
      probabilities = std::move(found);
    }
  }
  at::Tensor& weights = call.outputs[0].allocate();
  auto* chosen = call.outputs[1].allocate().data_ptr<int64_t>();
  with_float_type(logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const T* scores = logits.data_ptr<T>();
    const T* all = attrs.renormalize ? nullptr : probabilities.data_ptr<T>();
    T* out = weights.data_ptr<T>();
    at::parallel_for(0, tokens, grain_of(experts * 8), [&](int64_t begin, int64_t end) {
      std::vector<int64_t> ids;
      std::vector<W> parts(static_cast<size_t>(k));
      for (int64_t t = begin; t < end; ++t) {
        const T* row = scores + t * experts;
        choose(row, experts, k, ids);
        std::copy_n(ids.begin(), k, chosen + t * k);
        if (!attrs.renormalize) {
          for (int64_t j = 0; j < k; ++j)
            out[t * k + j] = all[t * experts + ids[static_cast<size_t>(j)]];
          continue;
        }
        // Softmax over the chosen, the first of which is the greatest.
        W sum = 0;
        for (size_t j = 0; j < parts.size(); ++j) {
          parts[j] = std::exp(static_cast<W>(row[ids[j]]) - static_cast<W>(row[ids[0]]));
          sum += parts[j];
        }
        for (size_t j = 0; j < parts.size(); ++j)
          out[t * k + static_cast<int64_t>(j)] = static_cast<T>(parts[j] / sum);
      }
    });
  });
}

// The weights are a softmax over the chosen experts or over all of them; either way
// dlogits = w (g - sum(g w)) over the experts of that softmax, g being 0 where an expert was not
// chosen.
void route_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const auto& attrs = call.attrs<RouteAttrs>();
  const int64_t tokens = call.shape(0)[0], experts = call.shape(0)[1], k = attrs.top_k;
  Result& result = call.results[0];
  at::Tensor& dlogits = result.adds() ? result.sum() : result.allocate().zero_();
  with_float_type(dlogits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const T* g = call.gradient().data_ptr<T>();
    const T* weights = call.output(0).data_ptr<T>();
    const T* probabilities = call.auxiliary(0).data_ptr<T>();
    T* out = dlogits.data_ptr<T>();
    at::parallel_for(0, tokens, grain_of(experts * 8), [&](int64_t begin, int64_t end) {
      std::vector<int64_t> ids;
      std::vector<W> row(static_cast<size_t>(experts));
      for (int64_t t = begin; t < end; ++t) {
        const T* p = probabilities + t * experts;
        choose(p, experts, k, ids);
        W total = 0;
        for (int64_t j = 0; j < k; ++j)
          total += static_cast<W>(g[t * k + j]) * static_cast<W>(weights[t * k + j]);
        for (size_t e = 0; e < row.size(); ++e)
          row[e] = attrs.renormalize ? W(0) : -static_cast<W>(p[e]) * total;
        for (int64_t j = 0; j < k; ++j)
          row[static_cast<size_t>(ids[static_cast<size_t>(j)])] +=
              static_cast<W>(weights[t * k + j]) *
              (static_cast<W>(g[t * k + j]) - (attrs.renormalize ? total : W(0)));
        for (int64_t e = 0; e < experts; ++e) {
          T& to = out[t * experts + e];
          to = static_cast<T>(static_cast<W>(to) + row[static_cast<size_t>(e)]);
        }
      }
    });
  });
}

void combine_forward(ForwardCall& call) {
  const at::Tensor &rows = call.input(0), &weights = call.input(1);
  const int64_t tokens = rows.size(0), k = rows.size(1), width = rows.size(2);
  at::Tensor& y = call.outputs[0].allocate();
  with_float_type(rows.scalar_type(), [&](auto zero) {
    with_float_type(weights.scalar_type(), [&](auto weight_zero) {
      using T = decltype(zero);
      using V = decltype(weight_zero);
      using W = wide_t<T>;
      const T* from = rows.data_ptr<T>();
      const V* weight = weights.data_ptr<V>();
      T* out = y.data_ptr<T>();
      at::parallel_for(0, tokens, grain_of(width * k), [&](int64_t begin, int64_t end) {
        std::vector<W> total(static_cast<size_t>(width));
        W* sum = total.data();
        for (int64_t t = begin; t < end; ++t) {
          std::fill(total.begin(), total.end(), W(0));
          for (int64_t r = t * k; r < (t + 1) * k; ++r) {
            const auto w = static_cast<W>(weight[r]);
            const T* row = from + r * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i) sum[i] += w * static_cast<W>(row[i]);
          }
          for (int64_t i = 0; i < width; ++i) out[t * width + i] = static_cast<T>(sum[i]);
        }
      });
    });
  });
}

void combine_backward(BackwardCall& call) {
  const at::Tensor& g = call.gradient();
  const int64_t tokens = call.shape(0)[0], k = call.shape(0)[1], width = call.shape(0)[2];
  const auto target = [&](size_t i) -> at::Tensor {
    if (!call.wants(i)) return {};
    return call.results[i].adds() ? call.results[i].sum() : call.results[i].allocate();
  };
  const bool wants_rows = call.wants(0), wants_weights = call.wants(1);
  at::Tensor drows = target(0), dweights = target(1);
  with_float_type(g.scalar_type(), [&](auto zero) {
    with_float_type(scalar_type(call.input_types[1].dtype), [&](auto weight_zero) {
      using T = decltype(zero);
      using V = decltype(weight_zero);
      using W = wide_t<T>;
      const T* gradient = g.data_ptr<T>();
      const T* rows = wants_weights ? call.input(0).data_ptr<T>() : nullptr;
      const V* weights = wants_rows ? call.input(1).data_ptr<V>() : nullptr;
      T* to_rows = wants_rows ? drows.data_ptr<T>() : nullptr;
      V* to_weights = wants_weights ? dweights.data_ptr<V>() : nullptr;
      const bool add_rows = wants_rows && call.results[0].adds();
      const bool add_weights = wants_weights && call.results[1].adds();
      at::parallel_for(0, tokens * k, grain_of(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const T* dy = gradient + r / k * width;
          if (wants_rows) {
            const auto weight = static_cast<W>(weights[r]);
            T* to = to_rows + r * width;
#pragma omp simd
            for (int64_t i = 0; i < width; ++i)
              to[i] = static_cast<T>(weight * static_cast<W>(dy[i]) +
                                     (add_rows ? static_cast<W>(to[i]) : W(0)));
          }
          if (wants_weights) {
            const T* row = rows + r * width;
            W total = add_weights ? static_cast<W>(to_weights[r]) : W(0);
#pragma omp simd reduction(+ : total)
            for (int64_t i = 0; i < width; ++i)
              total += static_cast<W>(row[i]) * static_cast<W>(dy[i]);
            to_weights[r] = static_cast<V>(static_cast<wide_t<V>>(total));
          }
        }
      });
    });
  });
}

}  // namespace windlass
