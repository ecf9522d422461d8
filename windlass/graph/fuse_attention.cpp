// Attention out of its parts: softmax(scale Q K' + masks) V, where
//  - the scale may sit on the scores, on Q or on K, as multiplication or division;
//  - masks are added (a bias), or chosen by Where (masked_fill); several add up; a mask that hides
//    exactly the future becomes `causal`;
//  - probabilities may pass through dropout;
//  - a mask may differ by window: scores [b x w, h, s, t] are seen as [b, w, h, s, t] while it is
//  added;
//  - keys and values may be repeated for groups of query heads (Reshape, Expand, Reshape);
//  - operands have 3 dimensions [batch x heads, s, d] or 4.

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/graph/fuse.h"
#include "windlass/graph/match.h"

namespace windlass {
namespace {

using namespace match;

// Scores this low never win against a finite one.
constexpr double kHidden = -1e4;

struct Found {
  TensorId q, k, v;
  TensorId product;           // of q and k
  bool k_transposed = false;  // k is [.., d, t], as the plain matmul reads it
  double scale = 1;
  double dropout = 0;
  bool causal = false;
  std::vector<TensorId> added;     // masks to add
  std::vector<TensorId> windowed;  // masks to add to the scores seen as [b, w, h, s, t]
  Shape window_shape;              // that shape
  struct Choice {
    TensorId condition;
    double shown_where;  // condition value for which the score stays
    double hidden;       // what stands in its place otherwise
  };
  std::vector<Choice> chosen;
};

// Whether `hidden(i, j)` for constant values of a mask [.., s, t] is exactly the future. Leading
// axes must all look alike.
template <typename Hidden>
bool hides_exactly_the_future(const std::vector<double>& values, const Shape& shape, int64_t s,
                              int64_t t, Hidden hidden) {
  if (shape.size() < 2 || shape[shape.size() - 2] != s || shape.back() != t) return false;
  // With more queries than keys the first ones would see nothing at all.
  if (s < 2 || t < s) return false;
  const int64_t matrix = s * t;
  for (size_t n = 0; n < values.size(); ++n) {
    const auto within = static_cast<int64_t>(n) % matrix;
    const int64_t i = within / t, j = within % t;
    if (hidden(values[n]) != (j > i + (t - s))) return false;
  }
  return true;
}

// What was found out about constant masks, which layers share: by mask and by what its values mean.
using KnownMasks = std::map<std::pair<TensorId, int>, bool>;

template <typename Test>
bool remembered(KnownMasks& known, TensorId mask, int meaning, Test test) {
  const auto [entry, is_new] = known.try_emplace({mask, meaning});
  if (is_new) entry->second = test();
  return entry->second;
}

// Reshape(Reshape(scores) + mask) with a shape of five dimensions between: the scores, or none.
TensorId read_windowed(const Rewriter& r, const Op& op, Found& found) {
  if (op.kind != OpKind::Reshape || r.shape(op.outputs[0]).size() != 4) return {};
  const auto sum = binary(r, op.inputs[0], BinaryFn::Add);
  if (!sum || r.shape(op.inputs[0]).size() != 5) return {};
  for (const auto& [score, mask] : {*sum, std::pair{sum->second, sum->first}}) {
    const Op* split = r.producer(score, OpKind::Reshape);
    if (!split || r.uses(score) != 1 || r.shape(score) != r.shape(op.inputs[0])) continue;
    if (r.shape(split->inputs[0]) != r.shape(op.outputs[0]) || r.shape(mask).size() != 5) continue;
    const Shape& wide = r.shape(score);
    const Shape& flat = r.shape(op.outputs[0]);
    if (wide[2] != flat[1] || wide[3] != flat[2] || wide[4] != flat[3]) continue;
    if (!found.windowed.empty() && found.window_shape != wide) continue;
    found.windowed.push_back(mask);
    found.window_shape = wide;
    return split->inputs[0];
  }
  return {};
}

// Peels scale and masks off the scores until their product is reached; at most `sums` masks are
// added.
bool read_scores(const Rewriter& r, TensorId id, Found& found, int sums = 3) {
  for (;;) {
    if (r.uses(id) != 1) return false;
    const Op* op = r.producer(id);
    if (!op) return false;
    if (op->kind == OpKind::MatMul) {
      const auto& attrs = std::get<MatMulAttrs>(op->attrs);
      if (attrs.transpose_a) return false;
      found.product = id;
      found.q = op->inputs[0];
      found.k = op->inputs[1];
      found.k_transposed = !attrs.transpose_b;
      return true;
    }
    if (const auto scaled = affine(r, id); scaled && scaled->beta == 0) {
      found.scale *= scaled->alpha;
      id = scaled->input;
      continue;
    }
    if (const TensorId inner = read_windowed(r, *op, found); inner.valid()) {
      if (found.scale != 1) return false;
      id = inner;
      continue;
    }
    if (op->kind == OpKind::Where) {
      // The branch that is a hidden constant tells which values of the condition show the score.
      const auto hidden_constant = [&](TensorId branch) {
        const auto* values = r.value(branch);
        return values && values->size() == 1 && values->front() <= kHidden;
      };
      const bool first_hidden = hidden_constant(op->inputs[1]);
      const bool second_hidden = hidden_constant(op->inputs[2]);
      if (first_hidden == second_hidden) return false;
      // A scale further down applies to the score only; the hidden constant stays hidden.
      const double hidden = r.value(op->inputs[second_hidden ? 2 : 1])->front();
      found.chosen.push_back({op->inputs[0], second_hidden ? 1.0 : 0.0, hidden});
      id = op->inputs[second_hidden ? 1 : 2];
      continue;
    }
    if (const auto sum = binary(r, id, BinaryFn::Add)) {
      // A mask inside of a scale is scaled with the scores: not the usual form, left alone.
      if (sums == 0 || found.scale != 1) return false;
      --sums;
      // The operand that leads to a product is the score; the other is a mask.
      const auto leads = [&](TensorId operand) {
        Found ignored;
        return r.shape(operand) == r.shape(id) && read_scores(r, operand, ignored, sums);
      };
      const bool first = leads(sum->first);
      if (first == leads(sum->second)) return false;
      found.added.push_back(first ? sum->second : sum->first);
      id = first ? sum->first : sum->second;
      continue;
    }
    return false;
  }
}

// k [b, g, t, d] behind a k that repeats each head h / g times.
TensorId peel_repeat(const Rewriter& r, TensorId id) {
  const Op* merge = r.producer(id, OpKind::Reshape);
  if (!merge || r.shape(id).size() != 4) return id;
  const Op* repeat = r.producer(merge->inputs[0], OpKind::Expand);
  if (!repeat) return id;
  const Op* split = r.producer(repeat->inputs[0], OpKind::Reshape);
  if (!split) return id;
  const TensorId source = split->inputs[0];
  const Shape& base = r.shape(source);
  const Shape& wide = r.shape(merge->inputs[0]);
  const Shape& narrow = r.shape(repeat->inputs[0]);
  if (base.size() != 4 || wide.size() != 5) return id;
  const Shape expected_narrow = {base[0], base[1], 1, base[2], base[3]};
  const Shape expected_wide = {base[0], base[1], wide[2], base[2], base[3]};
  const Shape merged = {base[0], base[1] * wide[2], base[2], base[3]};
  const bool fits = narrow == expected_narrow && wide == expected_wide && r.shape(id) == merged;
  return fits ? source : id;
}

// K as [.., t, d]: through the transpose that made it [.., d, t], or by a new one.
TensorId untransposed(Rewriter& r, TensorId id, const std::string& name) {
  Ints order;
  TensorId source = id;
  if (const Op* op = r.producer(id, OpKind::Transpose)) {
    order = std::get<TransposeAttrs>(op->attrs).order;
    source = op->inputs[0];
  } else {
    for (size_t i = 0; i < r.shape(id).size(); ++i) order.push_back(static_cast<int64_t>(i));
  }
  std::swap(order[order.size() - 1], order[order.size() - 2]);
  bool identity = true;
  for (size_t i = 0; i < order.size(); ++i)
    identity = identity && order[i] == static_cast<int64_t>(i);
  return identity ? source
                  : r.emit(OpKind::Transpose, TransposeAttrs{order}, {source}, name + ".key");
}

// Takes a scale off an operand of the product.
TensorId peel_scale(const Rewriter& r, TensorId id, double& scale) {
  while (const auto scaled = affine(r, id)) {
    if (scaled->beta != 0) break;
    scale *= scaled->alpha;
    id = scaled->input;
  }
  return id;
}

TensorId with_rank_4(Rewriter& r, TensorId id, const std::string& name) {
  const Shape& shape = r.shape(id);
  if (shape.size() == 4) return id;
  return r.emit(OpKind::Reshape, ShapeAttrs{{shape[0], 1, shape[1], shape[2]}}, {id}, name);
}

// All masks as one tensor to add to the scores; none if `causal` says it all.
TensorId build_mask(Rewriter& r, KnownMasks& known, Found& found, int64_t s, int64_t t, DType dtype,
                    const std::string& name) {
  TensorId mask;
  // A mask that is the future of one shape of scores is [.., s, t] itself.
  const auto has_shape = [&](TensorId id) {
    const Shape& shape = r.shape(id);
    return shape.size() >= 2 && shape[shape.size() - 2] == s && shape.back() == t;
  };
  const auto join = [&](TensorId more) {
    mask = mask.valid()
               ? r.emit(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {mask, more}, name + ".mask")
               : more;
  };
  for (TensorId added : found.added) {
    const auto* values = r.value(added);
    const auto hidden = [](double v) { return v <= kHidden; };
    const auto hides_the_future = [&] {
      return std::all_of(values->begin(), values->end(),
                         [&](double v) { return v == 0 || hidden(v); }) &&
             hides_exactly_the_future(*values, r.shape(added), s, t, hidden);
    };
    if (values && has_shape(added) && remembered(known, added, 2, hides_the_future))
      found.causal = true;
    else
      join(added);
  }
  for (TensorId windowed : found.windowed) {
    Shape wide = found.window_shape;
    if (r.shape(windowed)[2] == 1) wide[2] = 1;
    if (r.shape(windowed) != wide)
      windowed = r.emit(OpKind::Expand, ShapeAttrs{wide}, {windowed}, name + ".windows");
    join(r.emit(OpKind::Reshape, ShapeAttrs{{wide[0] * wide[1], wide[2], wide[3], wide[4]}},
                {windowed}, name + ".window_mask"));
  }
  for (const Found::Choice& choice : found.chosen) {
    const auto* values = r.value(choice.condition);
    const bool shown_first = choice.shown_where != 0;
    const auto hides_the_future = [&] {
      return hides_exactly_the_future(*values, r.shape(choice.condition), s, t,
                                      [&](double v) { return (v != 0) != shown_first; });
    };
    if (values && has_shape(choice.condition) &&
        remembered(known, choice.condition, shown_first ? 1 : 0, hides_the_future)) {
      found.causal = true;
      continue;
    }
    const TensorId zero = r.constant(name + ".shown", {dtype, {}}, {0});
    const TensorId low = r.constant(name + ".hidden", {dtype, {}}, {choice.hidden});
    join(r.emit(OpKind::Where, NoAttrs{},
                {choice.condition, shown_first ? zero : low, shown_first ? low : zero},
                name + ".mask"));
  }
  return mask;
}

bool fuse_one(Rewriter& r, KnownMasks& known, const Op& op) {
  if (op.kind != OpKind::MatMul) return false;
  const auto& attrs = std::get<MatMulAttrs>(op.attrs);
  if (attrs.transpose_a || attrs.transpose_b) return false;
  const size_t rank = r.shape(op.outputs[0]).size();
  if (rank != 3 && rank != 4) return false;

  Found found;
  found.v = op.inputs[1];
  TensorId probabilities = op.inputs[0];
  if (r.uses(probabilities) != 1) return false;
  if (const Op* dropout = r.producer(probabilities, OpKind::Dropout)) {
    found.dropout = std::get<DropoutAttrs>(dropout->attrs).ratio;
    probabilities = dropout->inputs[0];
    if (r.uses(probabilities) != 1) return false;
  }
  const Op* softmax = r.producer(probabilities, OpKind::Softmax);
  if (!softmax) return false;
  const auto& softmax_attrs = std::get<SoftmaxAttrs>(softmax->attrs);
  if (softmax_attrs.log || softmax_attrs.axis != static_cast<int64_t>(rank) - 1) return false;
  if (!read_scores(r, softmax->inputs[0], found)) return false;

  const Shape scores = r.shape(softmax->inputs[0]);
  const int64_t s = scores[rank - 2], t = scores[rank - 1];
  const auto fits = [&](TensorId id) {
    const Shape& shape = r.shape(id);
    return shape.size() == rank && shape[0] == scores[0] && (rank == 3 || shape[1] == scores[1]);
  };
  if (!fits(found.q) || !fits(found.k) || !fits(found.v)) return false;
  // Masks that widen the scores, and attention over nothing, stay as they are.
  if (r.shape(found.product) != scores || element_count(scores) == 0) return false;
  for (const auto& choice : found.chosen)
    if (r.shape(choice.condition).size() > rank) return false;
  for (TensorId added : found.added)
    if (r.shape(added).size() > rank) return false;

  TensorId q = peel_scale(r, found.q, found.scale);
  TensorId k = found.k_transposed ? found.k : peel_scale(r, found.k, found.scale);
  if (found.k_transposed) {
    k = peel_scale(r, k, found.scale);
    k = untransposed(r, k, op.name);
    k = peel_scale(r, k, found.scale);
  }
  TensorId mask = build_mask(r, known, found, s, t, r.tensor(q).type.dtype, op.name);

  AttentionAttrs fused{.scale = found.scale, .causal = found.causal, .dropout = found.dropout};
  if (rank == 4) {
    const TensorId narrow_k = peel_repeat(r, k), narrow_v = peel_repeat(r, found.v);
    const bool grouped = r.shape(narrow_k)[1] == r.shape(narrow_v)[1];
    r.replace(
        op, OpKind::Attention, fused,
        mask.valid()
            ? std::vector<TensorId>{q, grouped ? narrow_k : k, grouped ? narrow_v : found.v, mask}
            : std::vector<TensorId>{q, grouped ? narrow_k : k, grouped ? narrow_v : found.v});
    return true;
  }
  std::vector<TensorId> inputs = {with_rank_4(r, q, op.name + ".query"),
                                  with_rank_4(r, k, op.name + ".key"),
                                  with_rank_4(r, found.v, op.name + ".value")};
  if (mask.valid())
    inputs.push_back(r.shape(mask).size() == 3 ? with_rank_4(r, mask, op.name + ".mask") : mask);
  const TensorId fused_output = r.emit(OpKind::Attention, fused, inputs, op.name);
  r.replace(op, OpKind::Reshape, ShapeAttrs{r.shape(op.outputs[0])}, {fused_output});
  return true;
}

}  // namespace

int fuse_attention(Graph& graph) {
  Rewriter rewriter(graph);
  const std::vector<Op> ops = graph.ops;
  KnownMasks known;
  int count = 0;
  for (const Op& op : ops) {
    if (fuse_one(rewriter, known, op))
      ++count;
    else
      rewriter.keep(op);
  }
  rewriter.finish();
  return count;
}

}  // namespace windlass
