// Attention and rotary position embedding.

#include <algorithm>
#include <cmath>
#include <limits>

#include "windlass/base/philox.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct AttentionSizes {
  int64_t batch, heads, key_heads, queries, keys, depth, value_depth;
  const PieceFacts& facts;
  int64_t key_head(int64_t head) const { return head * key_heads / heads; }
};

AttentionSizes attention_sizes(const Shape& q, const Shape& k, const Shape& v,
                               const PieceFacts& facts) {
  return {q[0], q[1], k[1], q[2], k[2], q[3], v[3], facts};
}

// Queries and keys are told by their places in the whole op.
bool visible(const AttentionAttrs& attrs, const AttentionSizes& s, int64_t query, int64_t key) {
  const AxisPart &queries = s.facts.positions, &keys = s.facts.keys;
  const int64_t position =
      queries.to_whole(query) + keys.whole_size(s.keys) - queries.whole_size(s.queries);
  const int64_t place = keys.to_whole(key);
  if (attrs.causal && place > position) return false;
  return attrs.window <= 0 || place > position - attrs.window;
}

// Scores of one query row against all keys: -infinity where the key is not visible.
class Scores {
 public:
  Scores(const AttentionAttrs& attrs, const AttentionSizes& sizes, const Array& q, const Array& k,
         const Array* mask)
      : attrs_(attrs), sizes_(sizes), q_(q), k_(k), mask_(mask) {
    if (mask != nullptr) {
      mask_strides_ =
          broadcast_strides(mask->shape, {sizes.batch, sizes.heads, sizes.queries, sizes.keys});
    }
  }

  int64_t mask_offset(int64_t b, int64_t h, int64_t i, int64_t j) const {
    return b * mask_strides_[0] + h * mask_strides_[1] + i * mask_strides_[2] +
           j * mask_strides_[3];
  }

  std::vector<double> row(int64_t b, int64_t h, int64_t i) const {
    const AttentionSizes& s = sizes_;
    std::vector<double> result(s.keys, -kInfinity);
    const double* q = &q_.values[((b * s.heads + h) * s.queries + i) * s.depth];
    const double* k = &k_.values[(b * s.key_heads + s.key_head(h)) * s.keys * s.depth];
    for (int64_t j = 0; j < s.keys; ++j) {
      if (!visible(attrs_, s, i, j)) continue;
      double dot = 0;
      for (int64_t d = 0; d < s.depth; ++d) dot += q[d] * k[j * s.depth + d];
      result[j] = attrs_.scale * dot;
      if (mask_ != nullptr) result[j] += mask_->values[mask_offset(b, h, i, j)];
    }
    return result;
  }

 private:
  const AttentionAttrs& attrs_;
  const AttentionSizes& sizes_;
  const Array& q_;
  const Array& k_;
  const Array* mask_;
  Strides mask_strides_;
};

// A query that sees no key has probability 0 for all of them. Relative to the maximum instead of
// the logarithm of the sum it is not yet divided by the sum.
double probability(double score, double lse) {
  return lse == -kInfinity ? 0 : std::exp(score - lse);
}

// Factor of a probability: 0 if dropped, else what makes up for the dropped ones.
double dropout_factor(double ratio, RandomState random, const Region& region, int64_t element) {
  if (ratio <= 0) return 1;
  const auto word = static_cast<uint64_t>(whole_element(region, element));
  const bool drop = random_chance(random.seed, random.op, word, ratio);
  return drop ? 0 : 1 / (1 - ratio);
}

struct AttentionGradients {
  Array q, k, v, mask;
};

// With P the probabilities and F the dropout factors: dV = (P F)^T dY, dP = F (dY V^T),
// dS = P (dP - rowsum(dY Y)), dQ = scale dS K, dK = scale dS^T Q, dmask = dS.
AttentionGradients attention_gradients(const BackwardCall& call, bool of_queries, bool of_others) {
  const auto& attrs = call.attrs<AttentionAttrs>();
  const AttentionSizes s =
      attention_sizes(call.shape(0), call.shape(1), call.shape(2), call.facts());
  const Array& dy = call.gradient();
  const Array& q = call.input(0);
  const Array& k = call.input(1);
  const Array& lse = call.auxiliary(0);
  const Scores scores(attrs, s, q, k, call.signature().has_input(3) ? &call.input(3) : nullptr);
  const auto wants = [&](size_t i) { return of_others && call.wants(i); };
  const bool wants_scores = of_queries || wants(1) || wants(3);
  // The same number added to all scores of a query changes nothing: such a mask has no gradient,
  // and none that pieces would have to add up.
  const bool wants_mask = wants(3) && !call.facts().mask_lacks_keys;
  AttentionGradients result;
  if (of_queries) result.q = Array(call.shape(0));
  if (wants(1)) result.k = Array(call.shape(1));
  if (wants(2)) result.v = Array(call.shape(2));
  if (wants(3)) result.mask = Array(call.shape(3));
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) {
        const int64_t row = (b * s.heads + h) * s.queries + i;
        const std::vector<double> score = scores.row(b, h, i);
        double total = 0;
        if (wants_scores) {
          for (int64_t e = 0; e < s.value_depth; ++e) {
            total +=
                dy.values[row * s.value_depth + e] * call.output(0).values[row * s.value_depth + e];
          }
        }
        for (int64_t j = 0; j < s.keys; ++j) {
          const double p = probability(score[j], lse.values[row]);
          if (p == 0) continue;
          const double factor =
              dropout_factor(attrs.dropout, call.random(), call.facts().random, row * s.keys + j);
          const int64_t key_row = (b * s.key_heads + s.key_head(h)) * s.keys + j;
          double dp = 0;
          for (int64_t e = 0; e < s.value_depth; ++e) {
            const double g = dy.values[row * s.value_depth + e];
            if (wants(2)) result.v.values[key_row * s.value_depth + e] += p * factor * g;
            if (wants_scores) dp += factor * g * call.input(2).values[key_row * s.value_depth + e];
          }
          const double ds = p * (dp - total);
          for (int64_t d = 0; d < s.depth; ++d) {
            const int64_t at_q = row * s.depth + d, at_k = key_row * s.depth + d;
            if (of_queries) result.q.values[at_q] += attrs.scale * ds * k.values[at_k];
            if (wants(1)) result.k.values[at_k] += attrs.scale * ds * q.values[at_q];
          }
          if (wants_mask) result.mask.values[scores.mask_offset(b, h, i, j)] += ds;
        }
      }
    }
  }
  return result;
}

// Rotates the pairs by their angles (direction 1) or back (-1).
Array rotate(const RotaryAttrs& attrs, const Array& x, double direction,
             const AxisPart& positions) {
  Array y = x;
  const int64_t depth = x.shape[x.shape.size() - 1], steps = x.shape[x.shape.size() - 2];
  const int64_t rows = product(x.shape, 0, x.shape.size() - 1), half = attrs.dims / 2;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t i = 0; i < half; ++i) {
      const double frequency =
          std::pow(attrs.theta, -2 * static_cast<double>(i) / static_cast<double>(attrs.dims));
      const double angle =
          direction * static_cast<double>(positions.to_whole(row % steps)) * frequency;
      const int64_t first = row * depth + (attrs.interleaved ? 2 * i : i);
      const int64_t second = attrs.interleaved ? first + 1 : first + half;
      const double a = x.values[first], b = x.values[second];
      y.values[first] = a * std::cos(angle) - b * std::sin(angle);
      y.values[second] = b * std::cos(angle) + a * std::sin(angle);
    }
  }
  return y;
}

}  // namespace

// Of each query: the maximum of the scores, the sum of their exponentials relative to it, and the
// sum of the values weighted with those exponentials that are not dropped.
Array attention_begin(const ForwardCall& call) {
  const auto& attrs = call.attrs<AttentionAttrs>();
  const Array& v = call.input(2);
  const AttentionSizes s =
      attention_sizes(call.input(0).shape, call.input(1).shape, v.shape, call.facts);
  const Scores scores(attrs, s, call.input(0), call.input(1),
                      call.has(3) ? &call.input(3) : nullptr);
  const int64_t width = s.value_depth + 2;
  Array statistics({s.batch, s.heads, s.queries, width});
  for (int64_t b = 0; b < s.batch; ++b) {
    for (int64_t h = 0; h < s.heads; ++h) {
      for (int64_t i = 0; i < s.queries; ++i) {
        const int64_t row = (b * s.heads + h) * s.queries + i;
        const std::vector<double> score = scores.row(b, h, i);
        const Exponentials found =
            exponentials_of(s.keys, [&](int64_t j) { return score[static_cast<size_t>(j)]; });
        double* out = &statistics.values[row * width];
        out[0] = found.top;
        out[1] = found.sum;
        for (int64_t j = 0; j < s.keys; ++j) {
          const double p =
              probability(score[j], found.top) *
              dropout_factor(attrs.dropout, call.random, call.facts.random, row * s.keys + j);
          const int64_t value_row = (b * s.key_heads + s.key_head(h)) * s.keys + j;
          for (int64_t e = 0; e < s.value_depth; ++e)
            out[e + 2] += p * v.values[value_row * s.value_depth + e];
        }
      }
    }
  }
  return statistics;
}

ForwardResult attention_forward(const ForwardCall& call) {
  const Shape& q = call.input(0).shape;
  const int64_t rows = q[0] * q[1] * q[2], depth = call.input(2).shape[3], width = depth + 2;
  const Array statistics = call.statistics != nullptr ? *call.statistics : attention_begin(call);
  Array y({q[0], q[1], q[2], depth}), lse({q[0], q[1], q[2]});
  for (int64_t row = 0; row < rows; ++row) {
    const double* found = &statistics.values[row * width];
    lse.values[row] = found[0] + std::log(found[1]);
    for (int64_t e = 0; e < depth; ++e)
      y.values[row * depth + e] = found[1] == 0 ? 0 : found[e + 2] / found[1];
  }
  return {{y}, {lse}};
}

Array attention_begin_backward(const BackwardCall& call) {
  return attention_gradients(call, true, false).q;
}

std::vector<Array> attention_backward(const BackwardCall& call) {
  const Array* shared = call.statistics();
  AttentionGradients found = attention_gradients(call, shared == nullptr && call.wants(0), true);
  if (shared != nullptr && call.wants(0)) found.q = *shared;
  return {found.q, found.k, found.v, found.mask};
}

ForwardResult rotary_forward(const ForwardCall& call) {
  return {{rotate(call.attrs<RotaryAttrs>(), call.input(0), 1, call.facts.positions)}, {}};
}

std::vector<Array> rotary_backward(const BackwardCall& call) {
  if (!call.wants(0)) return {Array()};
  return {rotate(call.attrs<RotaryAttrs>(), call.gradient(), -1, call.facts().positions)};
}

}  // namespace windlass::reference
