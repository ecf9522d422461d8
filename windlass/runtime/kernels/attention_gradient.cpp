// The gradients of attention, by the blocks of attention.cpp. Pieces of the keys add up the
// gradient of the queries between them; those of keys and values are each piece's own.

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/ops/bmm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "windlass/runtime/kernels/attention_scores.h"

namespace windlass {
namespace {

// Where the gradient of keys or values is summed: the result itself, or an fp32 copy of the part
// that the key heads at hand have.
class UnitSum {
 public:
  UnitSum(Result* result, at::ScalarType type) : result_(result), type_(type) {
    if (result == nullptr) return;
    whole_ = result->adds() ? result->sum() : result->allocate();
    direct_ = whole_.scalar_type() == type;
    if (direct_ && !result->adds()) whole_.zero_();
  }

  bool wanted() const { return result_ != nullptr; }

  void start(const AttentionSizes& s, const QueryBlock& block) {
    if (!wanted()) return;
    part_ = unit_part(whole_, s, block);
    sum_ = direct_ ? part_ : at::zeros(part_.sizes(), type_);
  }
  // Adds factor a b to the keys of the block.
  void add(const QueryBlock& block, const at::Tensor& a, const at::Tensor& b, double factor) {
    multiply_heads(seen(sum_, block), a, b, true, factor);
  }
  void finish() {
    if (!wanted() || direct_) return;
    if (result_->adds())
      part_.add_(sum_);
    else
      part_.copy_(sum_);
  }

 private:
  Result* result_;
  at::ScalarType type_;
  bool direct_ = false;
  at::Tensor whole_, part_, sum_;
};

// Adds dS of a block to the gradient of the mask, summed where the mask was broadcast.
void add_mask_gradient(const AttentionSizes& s, const QueryBlock& block, const at::Tensor& slopes,
                       const at::Tensor& mask) {
  const at::Tensor heads = slopes.view({block.heads, block.queries, block.keys});
  for (int64_t h = 0; h < block.heads; ++h) {
    const int64_t head = block.head + h;
    at::Tensor part = heads.select(0, h);
    at::Tensor to = mask.select(0, mask.size(0) == 1 ? 0 : head / s.heads);
    to = to.select(0, to.size(0) == 1 ? 0 : head % s.heads);
    if (to.size(0) == 1)
      part = at::sum(part, {0}, true);
    else
      to = to.narrow(0, block.query, block.queries);
    if (to.size(1) == 1)
      part = at::sum(part, {1}, true);
    else
      to = to.narrow(1, block.key, block.keys);
    to.add_(part);
  }
}

// Sum of the products of a row of dy and of y.
template <class T, class E>
T row_total(const E* dy, const E* y, int64_t n) {
  T total = 0;
#pragma omp simd reduction(+ : total)
  for (int64_t i = 0; i < n; ++i) total += static_cast<T>(dy[i]) * static_cast<T>(y[i]);
  return total;
}

// What a backward pass makes: all that is wanted, or the gradient of the queries alone, or all but
// that, which is known.
enum class Made : uint8_t { All, Queries, Others };

// With P the probabilities and F the dropout factors: dV = (P F)^T dY, dP = F (dY V^T),
// dS = P (dP - rowsum(dY Y)), dQ = scale dS K, dK = scale dS^T Q, dmask = dS. `dq` is written, or
// added to; the other results are those of the call.
template <class E>
void attention_gradients(const BackwardCall& call, Made made, at::Tensor dq, bool dq_adds) {
  using T = wide_t<E>;
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  const auto& attrs = call.attrs<AttentionAttrs>();
  const AttentionSizes s(call.facts, call.shape(0), call.shape(1), call.shape(2));
  const at::Tensor& dy = call.gradient();
  const at::Tensor& q = call.input(0);
  const at::Tensor& k = call.input(1);
  const at::Tensor& v = call.input(2);
  const AttentionRows<T> rows(attrs, s, call.random, call.facts,
                              call.has_input(3) ? call.input(3) : at::Tensor());
  const T* lse = call.auxiliary(0).data_ptr<T>();
  const auto wants = [&](size_t i) { return made != Made::Queries && call.wants(i); };
  // The same number added to all scores of a query changes nothing.
  const bool mask_wanted = wants(3) && !call.facts.mask_lacks_keys;
  const bool slopes_wanted = dq.defined() || wants(1) || mask_wanted;
  const E* dy_rows = dy.data_ptr<E>();
  const E* y_rows = slopes_wanted ? call.output(0).data_ptr<E>() : nullptr;

  const auto result = [&](size_t i) { return wants(i) ? &call.results[i] : nullptr; };
  UnitSum dk(result(1), kType), dv(result(2), kType);
  at::Tensor dmask;
  if (wants(3)) {
    std::vector<int64_t> shape(4, 1);
    std::copy(call.shape(3).rbegin(), call.shape(3).rend(), shape.rbegin());
    dmask = at::zeros(shape, kType);
  }

  ScoreMemory score_memory(kType), slope_memory(kType);
  at::Tensor keys, values;
  const auto start = [&](const QueryBlock& block) {
    keys = in_type(unit_part(k, s, block), kType);
    if (slopes_wanted) values = in_type(unit_part(v, s, block), kType);
    dk.start(s, block);
    dv.start(s, block);
  };
  const auto run = [&](const QueryBlock& block) {
    const at::Tensor queries = in_type(query_part(q, s, block), kType);
    const at::Tensor arriving = in_type(query_part(dy, s, block), kType);
    at::Tensor scores = score_memory.take(block), slopes;
    multiply_heads(scores, queries, seen(keys, block).transpose(1, 2));
    if (slopes_wanted) {
      slopes = slope_memory.take(block);
      multiply_heads(slopes, arriving, seen(values, block).transpose(1, 2));
    }
    T* score_data = scores.data_ptr<T>();
    T* slope_data = slopes_wanted ? slopes.data_ptr<T>() : nullptr;
    rows.each(block, [=](int64_t index, const ScoreRow<T>& row, const RowDropout& dropout,
                         int64_t offset) {
      const T total = slope_data == nullptr ? T(0)
                                            : row_total<T>(dy_rows + index * s.width,
                                                           y_rows + index * s.width, s.width);
      score_gradients(row, dropout, lse[index], total, score_data + offset,
                      slope_data == nullptr ? nullptr : slope_data + offset);
    });
    if (dv.wanted()) dv.add(block, scores.transpose(1, 2), arriving, 1);
    if (dk.wanted()) dk.add(block, slopes.transpose(1, 2), queries, attrs.scale);
    if (mask_wanted) add_mask_gradient(s, block, slopes, dmask);
    if (!dq.defined()) return;
    at::Tensor part = query_part(dq, s, block);
    if (dq_adds && dq.scalar_type() == kType) {
      multiply_heads(part, slopes, seen(keys, block), true, attrs.scale);
    } else if (dq.scalar_type() == kType) {
      multiply_heads(part, slopes, seen(keys, block));
      part.mul_(attrs.scale);
    } else {
      const at::Tensor product = at::bmm(slopes, seen(keys, block)).mul_(attrs.scale);
      if (dq_adds)
        part.add_(product);
      else
        part.copy_(product);
    }
  };
  const auto finish = [&](const QueryBlock&) {
    dk.finish();
    dv.finish();
  };
  if (slopes_wanted || dv.wanted()) for_each_block(attrs, s, start, run, finish);
  if (dmask.defined()) call.results[3].set(dmask.view(call.shape(3)));
}

}  // namespace

void attention_backward(BackwardCall& call) {
  with_float_type(call.gradient().scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    if (call.statistics != nullptr) {
      if (call.wants(0)) call.results[0].set(call.statistics->view(call.shape(0)));
      return attention_gradients<E>(call, Made::Others, {}, false);
    }
    at::Tensor dq;
    const bool adds = call.wants(0) && call.results[0].adds();
    if (call.wants(0)) dq = adds ? call.results[0].sum() : call.results[0].allocate();
    attention_gradients<E>(call, Made::All, dq, adds);
  });
}

void attention_begin_backward(const BackwardCall& call, at::Tensor& statistics) {
  with_float_type(call.gradient().scalar_type(), [&](auto zero) {
    attention_gradients<decltype(zero)>(call, Made::Queries, statistics.view(call.shape(0)), false);
  });
}

}  // namespace windlass
