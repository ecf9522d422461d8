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

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/attention_blocks.h"
#include "windlass/runtime/kernels/attention_rows.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/threads.h"

namespace windlass {
namespace {

// out = old out + factor a b if it `adds`, otherwise a b, for each of the first axis.
void multiply(at::Tensor out, const at::Tensor& a, const at::Tensor& b, bool adds = false,
              double factor = 1) {
  const int64_t axis = out.size(0) > 1 ? 0 : 1;
  divide_product(out.size(axis), a.numel() * b.size(2), [&](int64_t begin, int64_t end) {
    at::Tensor part = out.narrow(axis, begin, end - begin);
    const at::Tensor left = a.narrow(axis, begin, end - begin);
    const at::Tensor right = axis == 0 ? b.narrow(0, begin, end - begin) : b;
    if (adds)
      part.baddbmm_(left, right, 1, factor);
    else
      at::bmm_out(part, left, right);
  });
}

// Memory for the scores of any block.
class ScoreMemory {
 public:
  explicit ScoreMemory(at::ScalarType type) : type_(type) {}

  at::Tensor take(const QueryBlock& block) {
    const int64_t size = block.units * block.rows() * block.keys;
    if (!memory_.defined() || memory_.numel() < size) {
      memory_.reset();
      memory_ = at::empty({size}, type_);
    }
    return memory_.narrow(0, 0, size).view({block.units, block.rows(), block.keys});
  }

 private:
  at::ScalarType type_;
  at::Tensor memory_;
};

// Finds what belongs to a row of a block's scores.
template <class T>
class Rows {
 public:
  Rows(const AttentionAttrs& attrs, const AttentionSizes& sizes, RandomKey random,
       const at::Tensor& mask)
      : attrs_(attrs), sizes_(sizes), random_(random) {
    if (attrs.dropout > 0) threshold_ = chance_threshold(attrs.dropout);
    if (!mask.defined()) return;
    mask_ = in_type(mask, c10::CppTypeToScalarType<T>::value).contiguous();
    mask_strides_.assign(4, 0);
    const size_t extra = 4 - static_cast<size_t>(mask_.dim());
    for (int64_t i = 0; i < mask_.dim(); ++i)
      if (mask_.size(i) != 1) mask_strides_[extra + static_cast<size_t>(i)] = mask_.stride(i);
  }

  // Calls f(index of the row in [b, h, s], score row, dropout, offset of the row in the scores) on
  // several threads.
  template <class F>
  void each(const QueryBlock& block, const F& f) const {
    const int64_t per_unit = block.rows();
    const int64_t grain =
        std::max<int64_t>(1, (int64_t{1} << 14) / std::max<int64_t>(1, block.keys));
    at::parallel_for(0, block.units * per_unit, grain, [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r) {
        const int64_t head = block.head + r / block.queries;
        const int64_t query = block.query + r % block.queries;
        const int64_t index = head * sizes_.queries + query;
        f(index, row(block, head, query), dropout(block, index), r * block.keys);
      }
    });
  }

 private:
  ScoreRow<T> row(const QueryBlock& block, int64_t head, int64_t query) const {
    const Range range = visible_keys(attrs_, sizes_, query);
    ScoreRow<T> result;
    result.size = block.keys;
    result.begin = std::clamp<int64_t>(range.begin - block.key, 0, block.keys);
    result.end = std::clamp<int64_t>(range.end - block.key, result.begin, block.keys);
    result.scale = static_cast<T>(attrs_.scale);
    if (mask_.defined()) {
      result.mask = mask_.template data_ptr<T>() + head / sizes_.heads * mask_strides_[0] +
                    head % sizes_.heads * mask_strides_[1] + query * mask_strides_[2] +
                    block.key * mask_strides_[3];
      result.mask_stride = mask_strides_[3];
    }
    return result;
  }

  RowDropout dropout(const QueryBlock& block, int64_t index) const {
    return {random_, index * sizes_.keys + block.key, threshold_, 1 / (1 - attrs_.dropout)};
  }

  const AttentionAttrs& attrs_;
  const AttentionSizes& sizes_;
  RandomKey random_;
  uint32_t threshold_ = 0;
  at::Tensor mask_;
  std::vector<int64_t> mask_strides_;
};

template <class T>
void forward(ForwardCall& call, at::ScalarType type) {
  const auto& attrs = call.attrs<AttentionAttrs>();
  const at::Tensor& q = call.input(0);
  const at::Tensor& k = call.input(1);
  const at::Tensor& v = call.input(2);
  const AttentionSizes s(q.sizes(), k.sizes(), v.sizes());
  const Rows<T> rows(attrs, s, call.random, call.has(3) ? call.input(3) : at::Tensor());
  at::Tensor& y = call.outputs[0].allocate();
  T* lse =
      call.wants_auxiliary(0) ? call.auxiliaries[0].allocate().template data_ptr<T>() : nullptr;
  ScoreMemory memory(type);
  at::Tensor keys, values;
  const auto start = [&](const QueryBlock& block) {
    keys = in_type(unit_part(k, s, block), type);
    values = in_type(unit_part(v, s, block), type);
  };
  const auto run = [&](const QueryBlock& block) {
    at::Tensor scores = memory.take(block);
    multiply(scores, in_type(query_part(q, s, block), type), seen(keys, block).transpose(1, 2));
    T* data = scores.data_ptr<T>();
    rows.each(block, [=](int64_t index, const ScoreRow<T>& row, const RowDropout& dropout,
                         int64_t offset) {
      const T found = probabilities(row, dropout, data + offset);
      if (lse != nullptr) lse[index] = found;
    });
    at::Tensor part = query_part(y, s, block);
    if (y.scalar_type() == type)
      multiply(part, scores, seen(values, block));
    else
      part.copy_(at::bmm(scores, seen(values, block)));
  };
  for_each_block(attrs, s, start, run, [](const QueryBlock&) {});
}

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
    multiply(seen(sum_, block), a, b, true, factor);
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

// With P the probabilities and F the dropout factors: dV = (P F)^T dY, dP = F (dY V^T),
// dS = P (dP - rowsum(dY Y)), dQ = scale dS K, dK = scale dS^T Q, dmask = dS.
template <class E>
void backward(BackwardCall& call, at::ScalarType type) {
  using T = wide_t<E>;
  const auto& attrs = call.attrs<AttentionAttrs>();
  const AttentionSizes s(call.shape(0), call.shape(1), call.shape(2));
  const at::Tensor& dy = call.gradient();
  const at::Tensor& q = call.input(0);
  const at::Tensor& k = call.input(1);
  const at::Tensor& v = call.input(2);
  const Rows<T> rows(attrs, s, call.random, call.has_input(3) ? call.input(3) : at::Tensor());
  const T* lse = call.auxiliary(0).data_ptr<T>();
  const bool slopes_wanted = call.wants(0) || call.wants(1) || call.wants(3);
  const E* dy_rows = dy.data_ptr<E>();
  const E* y_rows = slopes_wanted ? call.output(0).data_ptr<E>() : nullptr;

  const auto result = [&](size_t i) { return call.wants(i) ? &call.results[i] : nullptr; };
  UnitSum dk(result(1), type), dv(result(2), type);
  at::Tensor dq;
  if (call.wants(0))
    dq = call.results[0].adds() ? call.results[0].sum() : call.results[0].allocate();
  at::Tensor dmask;
  if (call.wants(3)) {
    std::vector<int64_t> shape(4, 1);
    std::copy(call.shape(3).rbegin(), call.shape(3).rend(), shape.rbegin());
    dmask = at::zeros(shape, type);
  }

  ScoreMemory score_memory(type), slope_memory(type);
  at::Tensor keys, values;
  const auto start = [&](const QueryBlock& block) {
    keys = in_type(unit_part(k, s, block), type);
    if (slopes_wanted) values = in_type(unit_part(v, s, block), type);
    dk.start(s, block);
    dv.start(s, block);
  };
  const auto run = [&](const QueryBlock& block) {
    const at::Tensor queries = in_type(query_part(q, s, block), type);
    const at::Tensor arriving = in_type(query_part(dy, s, block), type);
    at::Tensor scores = score_memory.take(block), slopes;
    multiply(scores, queries, seen(keys, block).transpose(1, 2));
    if (slopes_wanted) {
      slopes = slope_memory.take(block);
      multiply(slopes, arriving, seen(values, block).transpose(1, 2));
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
    if (dmask.defined()) add_mask_gradient(s, block, slopes, dmask);
    if (!dq.defined()) return;
    at::Tensor part = query_part(dq, s, block);
    const bool adds = call.results[0].adds();
    if (adds && dq.scalar_type() == type) {
      multiply(part, slopes, seen(keys, block), true, attrs.scale);
    } else if (dq.scalar_type() == type) {
      multiply(part, slopes, seen(keys, block));
      part.mul_(attrs.scale);
    } else {
      const at::Tensor product = at::bmm(slopes, seen(keys, block)).mul_(attrs.scale);
      if (adds)
        part.add_(product);
      else
        part.copy_(product);
    }
  };
  const auto finish = [&](const QueryBlock&) {
    dk.finish();
    dv.finish();
  };
  for_each_block(attrs, s, start, run, finish);
  if (dmask.defined()) call.results[3].set(dmask.view(call.shape(3)));
}

}  // namespace

void attention_forward(ForwardCall& call) {
  if (call.input(0).scalar_type() == at::kDouble)
    forward<double>(call, at::kDouble);
  else
    forward<float>(call, at::kFloat);
}

void attention_backward(BackwardCall& call) {
  with_float_type(call.gradient().scalar_type(), [&](auto zero) {
    using E = decltype(zero);
    backward<E>(call, c10::CppTypeToScalarType<wide_t<E>>::value);
  });
}

}  // namespace windlass
