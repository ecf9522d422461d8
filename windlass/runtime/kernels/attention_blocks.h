// Blocks of queries against keys, so that the scores of one block exist at a time.
#pragma once

#include <algorithm>
#include <cstdint>

#include <ATen/core/Tensor.h>

#include "windlass/graph/attributes.h"
#include "windlass/graph/op_piece.h"

namespace windlass {

inline constexpr int64_t kScores = int64_t{1} << 18;  // of a block: 1 MiB of fp32
inline constexpr int64_t kFewestRows = 64;
inline constexpr int64_t kCausalRows = 128;  // fewer rows hide more keys, but make slower products

struct AttentionSizes {
  int64_t batch, heads, key_heads, queries, keys, depth, width;
  const AxisPart &query_part, &key_part;  // of the whole op's

  AttentionSizes(const PieceFacts& facts, at::IntArrayRef q, at::IntArrayRef k, at::IntArrayRef v)
      : batch(q[0]),
        heads(q[1]),
        key_heads(k[1]),
        queries(q[2]),
        keys(k[2]),
        depth(q[3]),
        width(v[3]),
        query_part(facts.positions),
        key_part(facts.keys) {}
  int64_t shared() const { return heads / key_heads; }  // query heads to a key head
};

// Query heads [head, head + heads) of queries [query, query + queries), with the key heads
// [unit, unit + units) and keys [key, key + keys). Heads count through the batch.
struct QueryBlock {
  int64_t head, heads, query, queries, unit, units, key, keys;
  int64_t rows() const { return heads * queries / units; }  // of a key head
};

// How many of the keys here come before a place in the whole op.
inline int64_t keys_before(const AttentionSizes& s, int64_t place) {
  const AxisPart& part = s.key_part;
  place = std::clamp<int64_t>(place, 0, part.whole_size(s.keys));
  if (part.size == 0) return place;
  const int64_t run = part.size / part.blocks, in_run = place % run - part.range.begin;
  return place / run * part.range.size() + std::clamp<int64_t>(in_run, 0, part.range.size());
}

// Keys that a query can see, of those that are here: told by places in the whole op.
inline Range visible_keys(const AttentionAttrs& attrs, const AttentionSizes& s, int64_t query) {
  const int64_t position = s.query_part.to_whole(query) + s.key_part.whole_size(s.keys) -
                           s.query_part.whole_size(s.queries);
  const int64_t end = attrs.causal ? keys_before(s, position + 1) : s.keys;
  const int64_t begin = attrs.window > 0 ? keys_before(s, position - attrs.window + 1) : 0;
  return {std::min(begin, end), end};
}

// Calls start(block) before the first block of its key heads, run(block) for every block and
// finish(block) after the last of its key heads.
template <class Start, class Run, class Finish>
void for_each_block(const AttentionAttrs& attrs, const AttentionSizes& s, Start&& start, Run&& run,
                    Finish&& finish) {
  const int64_t most = attrs.causal || attrs.window > 0 ? kCausalRows : kScores;
  const int64_t wide =
      std::clamp(kScores / std::max<int64_t>(1, s.keys), kFewestRows, std::max(kFewestRows, most));
  const int64_t rows = std::min(wide, s.queries);
  const int64_t fitting =
      rows < s.queries ? 1 : std::max<int64_t>(1, kScores / std::max<int64_t>(1, rows * s.keys));
  const int64_t units = s.shared() == 1 ? fitting : 1;
  const int64_t heads = s.shared() == 1 ? units : std::min(fitting, s.shared());
  const int64_t all_units = s.batch * s.key_heads;
  for (int64_t unit = 0; unit < all_units; unit += units) {
    QueryBlock block{};
    block.unit = unit;
    block.units = std::min(units, all_units - unit);
    start(block);
    const int64_t last = (unit + block.units) * s.shared();
    for (block.head = unit * s.shared(); block.head < last; block.head += block.heads) {
      block.heads = std::min(s.shared() == 1 ? block.units : heads, last - block.head);
      for (block.query = 0; block.query < s.queries; block.query += block.queries) {
        block.queries = std::min(rows, s.queries - block.query);
        block.key = visible_keys(attrs, s, block.query).begin;
        block.keys = visible_keys(attrs, s, block.query + block.queries - 1).end - block.key;
        block.keys = std::max<int64_t>(0, block.keys);
        run(block);
      }
    }
    finish(block);
  }
}

// Rows [units, rows, d] of the block in a tensor [b, h, s, d].
inline at::Tensor query_part(const at::Tensor& x, const AttentionSizes& s,
                             const QueryBlock& block) {
  if (s.shared() == 1)
    return x.view({s.batch * s.heads, s.queries, -1})
        .narrow(0, block.head, block.heads)
        .narrow(1, block.query, block.queries);
  // A part of one head, or whole heads: contiguous either way.
  return x.view({1, s.batch * s.heads * s.queries, -1})
      .narrow(1, block.head * s.queries + block.query, block.rows());
}

// All keys of the block's key heads in a tensor [b, g, t, d].
inline at::Tensor unit_part(const at::Tensor& x, const AttentionSizes& s, const QueryBlock& block) {
  return x.view({s.batch * s.key_heads, s.keys, -1}).narrow(0, block.unit, block.units);
}

// Those that some query of the block can see.
inline at::Tensor seen(const at::Tensor& unit, const QueryBlock& block) {
  return unit.narrow(1, block.key, block.keys);
}

}  // namespace windlass
