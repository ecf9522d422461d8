// What the passes over attention share: products of heads, memory for scores, and what belongs to a
// row of them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>

#include "windlass/runtime/kernels/attention_blocks.h"
#include "windlass/runtime/kernels/attention_rows.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/threads.h"

namespace windlass {

// out = old out + factor a b if it `adds`, otherwise a b, for each of the first axis.
inline void multiply_heads(at::Tensor out, const at::Tensor& a, const at::Tensor& b,
                           bool adds = false, double factor = 1) {
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
class AttentionRows {
 public:
  AttentionRows(const AttentionAttrs& attrs, const AttentionSizes& sizes, RandomKey random,
                const PieceFacts& facts, const at::Tensor& mask)
      : attrs_(attrs), sizes_(sizes), random_(random), elements_(facts.random) {
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
    return {random_, &elements_, index * sizes_.keys + block.key, threshold_,
            1 / (1 - attrs_.dropout)};
  }

  const AttentionAttrs& attrs_;
  const AttentionSizes& sizes_;
  RandomKey random_;
  DrawnElements elements_;
  uint32_t threshold_ = 0;
  at::Tensor mask_;
  std::vector<int64_t> mask_strides_;
};

}  // namespace windlass
