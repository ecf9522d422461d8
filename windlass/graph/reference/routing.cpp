// Mixture of experts: choice of experts, and the weighted sum of what they make.

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

}  // namespace

ForwardResult route_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<RouteAttrs>();
  const Array& logits = call.input(0);
  const int64_t tokens = logits.shape[0], experts = logits.shape[1], k = attrs.top_k;
  ensure(k >= 1 && k <= experts, "Route: top_k out of range");
  const Array probabilities = softmax_rows(logits);
  const std::vector<int64_t> chosen = choose_experts(logits, k);
  Array weights({tokens, k}), experts_of({tokens, k});
  for (int64_t t = 0; t < tokens; ++t) {
    double sum = 0;
    for (int64_t j = 0; j < k; ++j) {
      weights.values[t * k + j] = probabilities.values[t * experts + chosen[t * k + j]];
      sum += weights.values[t * k + j];
    }
    if (attrs.renormalize)
      for (int64_t j = 0; j < k; ++j) weights.values[t * k + j] /= sum;
  }
  std::copy(chosen.begin(), chosen.end(), experts_of.values.begin());
  return {{weights, experts_of}, {probabilities}};
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

ForwardResult combine_forward(const ForwardCall& call) {
  const Array& rows = call.input(0);
  const Array& weights = call.input(1);
  const int64_t tokens = rows.shape[0], k = rows.shape[1], width = rows.shape[2];
  Array y({tokens, width});
  for (int64_t r = 0; r < tokens * k; ++r)
    for (int64_t i = 0; i < width; ++i)
      y.values[r / k * width + i] += weights.values[r] * rows.values[r * width + i];
  return {{y}, {}};
}

std::vector<Array> combine_backward(const BackwardCall& call) {
  const Array& g = call.gradient();
  const int64_t tokens = call.shape(0)[0], k = call.shape(0)[1], width = call.shape(0)[2];
  Array drows = call.zeros_if_wanted(0), dweights = call.zeros_if_wanted(1);
  for (int64_t r = 0; r < tokens * k; ++r)
    for (int64_t i = 0; i < width; ++i) {
      const double dy = g.values[r / k * width + i];
      if (call.wants(0)) drows.values[r * width + i] = call.input(1).values[r] * dy;
      if (call.wants(1)) dweights.values[r] += call.input(0).values[r * width + i] * dy;
    }
  return {drows, dweights};
}

}  // namespace windlass::reference
