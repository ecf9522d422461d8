// Fused attention: blocks of queries against the keys they can see, so that scores exist for one
// block at a time.
//
// A block is so many query heads times so many queries. Heads that have key heads of their own go
// together in a batched product; heads that share one are rows of a single product. Products are
// ATen's; what happens to a row of scores between them is in attention_rows.h. Keys that no query
// of the block can see are left out of the products: about half of them if causal.
//
// Workspace: one block of scores (two in the backward pass) of kScores elements, or of kFewestRows
// rows where the keys are more than that; for 16-bit types also fp32 copies of a block of queries
// and outputs and of the keys and values of its heads.
//
// Pieces of the keys exchange what a row of scores has found: attention_gradient.cpp is the
// backward pass.

#include <algorithm>

#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>

#include "windlass/runtime/kernels/attention_scores.h"

namespace windlass {
namespace {

// Calls weigh(index, row, dropout, values) for every row of scores of a block, which makes weights
// of products q k, and then put(block, weights, values seen) for the block.
template <class T, class Weigh, class Put>
void for_each_weighted(const ForwardCall& call, const Weigh& weigh, const Put& put) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  const auto& attrs = call.attrs<AttentionAttrs>();
  const at::Tensor &q = call.input(0), &k = call.input(1), &v = call.input(2);
  const AttentionSizes s(call.facts, q.sizes(), k.sizes(), v.sizes());
  const AttentionRows<T> rows(attrs, s, call.random, call.facts,
                              call.has(3) ? call.input(3) : at::Tensor());
  ScoreMemory memory(kType);
  at::Tensor keys, values;
  const auto start = [&](const QueryBlock& block) {
    keys = in_type(unit_part(k, s, block), kType);
    values = in_type(unit_part(v, s, block), kType);
  };
  const auto run = [&](const QueryBlock& block) {
    at::Tensor scores = memory.take(block);
    multiply_heads(scores, in_type(query_part(q, s, block), kType),
                   seen(keys, block).transpose(1, 2));
    T* data = scores.data_ptr<T>();
    rows.each(block, [&](int64_t index, const ScoreRow<T>& row, const RowDropout& dropout,
                         int64_t offset) { weigh(index, row, dropout, data + offset); });
    put(s, block, scores, seen(values, block));
  };
  for_each_block(attrs, s, start, run, [](const QueryBlock&) {});
}

template <class T>
void forward_attention(ForwardCall& call) {
  at::Tensor& y = call.outputs[0].allocate();
  T* lse =
      call.wants_auxiliary(0) ? call.auxiliaries[0].allocate().template data_ptr<T>() : nullptr;
  for_each_weighted<T>(
      call,
      [=](int64_t index, const ScoreRow<T>& row, const RowDropout& dropout, T* values) {
        const T found = probabilities(row, dropout, values);
        if (lse != nullptr) lse[index] = found;
      },
      [&](const AttentionSizes& s, const QueryBlock& block, const at::Tensor& weights,
          const at::Tensor& values) {
        at::Tensor part = query_part(y, s, block);
        if (y.scalar_type() == weights.scalar_type())
          multiply_heads(part, weights, values);
        else
          part.copy_(at::bmm(weights, values));
      });
}

// Of each query: the maximum of the scores, the sum of their exponentials relative to it, and the
// sum of the values weighted with those exponentials that are not dropped.
template <class T>
void begin_attention(const ForwardCall& call, at::Tensor& statistics) {
  const int64_t columns = statistics.size(3);
  T* out = statistics.data_ptr<T>();
  for_each_weighted<T>(
      call,
      [=](int64_t index, const ScoreRow<T>& row, const RowDropout& dropout, T* values) {
        const RowSums<T> found = exponentials(row, values);
        if (!found.nothing()) drop_and_scale(row, dropout, T(1), values);
        out[index * columns] = found.top;
        out[index * columns + 1] = found.sum;
      },
      [&](const AttentionSizes& s, const QueryBlock& block, const at::Tensor& weights,
          const at::Tensor& values) {
        query_part(statistics, s, block).narrow(2, 2, columns - 2).copy_(at::bmm(weights, values));
      });
}

// Output and log sum exp from merged statistics.
template <class E>
void end_attention(ForwardCall& call) {
  using T = wide_t<E>;
  E* y = call.outputs[0].allocate().template data_ptr<E>();
  T* lse =
      call.wants_auxiliary(0) ? call.auxiliaries[0].allocate().template data_ptr<T>() : nullptr;
  const int64_t columns = call.statistics->size(3), width = columns - 2;
  const int64_t rows = call.statistics->numel() / columns;
  const T* merged = call.statistics->data_ptr<T>();
  const int64_t grain = std::max<int64_t>(1, (int64_t{1} << 14) / columns);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const T* found = merged + r * columns;
      const RowSums<T> sums = {found[0], found[1]};
      if (lse != nullptr) lse[r] = sums.lse();
      const T inverse = sums.sum == 0 ? T(0) : T(1) / sums.sum;
      for (int64_t i = 0; i < width; ++i) y[r * width + i] = static_cast<E>(found[i + 2] * inverse);
    }
  });
}

}  // namespace

void attention_forward(ForwardCall& call) {
  if (call.statistics != nullptr)
    with_float_type(call.input(0).scalar_type(),
                    [&](auto zero) { end_attention<decltype(zero)>(call); });
  else if (call.input(0).scalar_type() == at::kDouble)
    forward_attention<double>(call);
  else
    forward_attention<float>(call);
}

void attention_begin(const ForwardCall& call, at::Tensor& statistics) {
  if (call.input(0).scalar_type() == at::kDouble)
    begin_attention<double>(call, statistics);
  else
    begin_attention<float>(call, statistics);
}

}  // namespace windlass
