// Mixture of experts: choice of experts, rows sorted by expert, and their weighted sum.

#include <algorithm>
#include <cmath>
#include <numeric>

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// The top_k experts of each row of scores [t, e], best first; of equal ones the lower id.
std::vector<int64_t> choose_experts(const Array& scores, int64_t top_k) {
  const int64_t tokens = scores.shape[0], experts = scores.shape[1];
  std::vector<int64_t> chosen;
  std::vector<int64_t> ids(experts);
  for (int64_t t = 0; t < tokens; ++t) {
    const double* row = &scores.values[t * experts];
    std::iota(ids.begin(), ids.end(), int64_t{0});
    std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return row[a] > row[b]; });
    chosen.insert(chosen.end(), ids.begin(), ids.begin() + top_k);
  }
  return chosen;
}

Array softmax_rows(const Array& logits) {
  const int64_t tokens = logits.shape[0], experts = logits.shape[1];
  Array result(logits.shape);
  for (int64_t t = 0; t < tokens; ++t) {
    const double* row = &logits.values[t * experts];
    const double top = *std::max_element(row, row + experts);
    double sum = 0;
    for (int64_t e = 0; e < experts; ++e) sum += std::exp(row[e] - top);
    for (int64_t e = 0; e < experts; ++e)
      result.values[t * experts + e] = std::exp(row[e] - top) / sum;
  }
  return result;
}

// Flat index token * k + choice that sorted row r came from, one of `count`.
int64_t source_of(const Array& order, int64_t row, int64_t count) {
  const auto source = static_cast<int64_t>(order.values[row]);
  if (source < 0 || source >= count)
    fail_input("entry {} of the expert order is {}, expected 0 to {}", row, source, count - 1);
  return source;
}

// Calls visit(row, token, weight) for the sorted rows whose tokens are here: the token, and the
// place of its weight for this row.
template <class Visit>
void for_each_weighted(const Array& order, int64_t k, const AxisPart& tokens, Visit&& visit) {
  const int64_t rows = order.shape[0];
  for (int64_t r = 0; r < rows; ++r) {
    const int64_t source = source_of(order, r, rows), token = tokens.to_local(source / k);
    if (token >= 0) visit(r, token, token * k + source % k);
  }
}

}  // namespace

ForwardResult route_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<RouteAttrs>();
  const Array& logits = call.input(0);
  const int64_t tokens = logits.shape[0], experts = logits.shape[1], k = attrs.top_k;
  ensure(k >= 1 && k <= experts, "Route: top_k out of range");
  const Array probabilities = softmax_rows(logits);
  const std::vector<int64_t> chosen = choose_experts(logits, k);
  Array weights({tokens, k}), order({tokens * k}), counts({experts});
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      weights.values[t * k + j] = probabilities.values[t * experts + chosen[t * k + j]];
      sum += weights.values[t * k + j];
      counts.values[chosen[t * k + j]] += 1;
    }
    if (attrs.renormalize)
      for (int64_t j = 0; j < k; ++j) weights.values[t * k + j] /= sum;
  }
  std::vector<int64_t> rows(chosen.size());
  std::iota(rows.begin(), rows.end(), int64_t{0});
  std::stable_sort(rows.begin(), rows.end(),
                   [&](int64_t a, int64_t b) { return chosen[a] < chosen[b]; });
  std::copy(rows.begin(), rows.end(), order.values.begin());
  return {{weights, order, counts}, {probabilities}};
}

// The weights are a softmax over the chosen experts or over all of them; either way
// dlogits = w (g - sum(g w)) over the experts of that softmax, g being 0 where an expert was not
// chosen.
std::vector<Array> route_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<RouteAttrs>();
  if (!call.wants(0)) return {};
  const int64_t tokens = call.shape(0)[0], experts = call.shape(0)[1], k = attrs.top_k;
  const Array& g = call.gradient();
  const Array& weights = call.output(0);
  const Array& probabilities = call.auxiliary(0);
  const std::vector<int64_t> chosen = choose_experts(probabilities, k);
  Array dlogits(call.shape(0));
  for (int64_t t = 0; t < tokens; ++t) {
    double total = 0;
    for (int64_t j = 0; j < k; ++j) total += g.values[t * k + j] * weights.values[t * k + j];
    double* row = &dlogits.values[t * experts];
    for (int64_t j = 0; j < k; ++j) {
      row[chosen[t * k + j]] =
          weights.values[t * k + j] * (g.values[t * k + j] - (attrs.renormalize ? total : 0));
    }
    if (!attrs.renormalize)
      for (int64_t e = 0; e < experts; ++e) row[e] -= probabilities.values[t * experts + e] * total;
  }
  return {dlogits};
}

ForwardResult dispatch_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  const Array& order = call.input(1);
  const int64_t rows = order.shape[0], width = x.shape[1];
  const int64_t all = call.facts.rows.whole_size(rows), k = all / x.shape[0];
  Array y({rows, width});
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(x.values.begin() + source_of(order, r, all) / k * width, width,
                y.values.begin() + r * width);
  }
  return {{y}, {}};
}

std::vector<Array> dispatch_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {};
  const Array& g = call.gradient();
  const Array& order = call.input(1);
  Array dx(call.shape(0));
  const int64_t rows = order.shape[0], width = dx.shape[1];
  const int64_t all = call.facts().rows.whole_size(rows), k = all / dx.shape[0];
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < width; ++i)
      dx.values[source_of(order, r, all) / k * width + i] += g.values[r * width + i];
  }
  return {dx};
}

ForwardResult combine_forward(const ForwardCall& call) {
  const Array& rows = call.input(0);
  const Array& weights = call.input(1);
  const Array& order = call.input(2);
  const int64_t tokens = weights.shape[0], k = weights.shape[1], width = rows.shape[1];
  Array y({tokens, width});
  for_each_weighted(order, k, call.facts.rows, [&](int64_t r, int64_t token, int64_t weight) {
    for (int64_t i = 0; i < width; ++i)
      y.values[token * width + i] += weights.values[weight] * rows.values[r * width + i];
  });
  return {{y}, {}};
}

std::vector<Array> combine_backward(const BackwardCall& call) {
  const Array& g = call.gradient();
  const Array& order = call.input(2);
  const int64_t width = call.shape(0)[1], k = call.shape(1)[1];
  Array drows = call.zeros_if_wanted(0), dweights = call.zeros_if_wanted(1);
  for_each_weighted(order, k, call.facts().rows, [&](int64_t r, int64_t token, int64_t weight) {
    for (int64_t i = 0; i < width; ++i) {
      const double dy = g.values[token * width + i];
      if (call.wants(0)) drows.values[r * width + i] = call.input(1).values[weight] * dy;
      if (call.wants(1)) dweights.values[weight] += call.input(0).values[r * width + i] * dy;
    }
  });
  return {drows, dweights};
}

}  // namespace windlass::reference
