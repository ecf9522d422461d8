#include "windlass/graph/simplify.h"

#include <cmath>
#include <optional>

#include "windlass/graph/rewrite.h"

namespace windlass {
namespace {

// The value of a constant with one element.
std::optional<double> scalar_value(const Rewriter& rewriter, TensorId id) {
  const std::vector<double>* values = rewriter.value(id);
  if (!values || values->size() != 1) return std::nullopt;
  return values->front();
}

bool is_identity_order(const Ints& order) {
  for (size_t i = 0; i < order.size(); ++i)
    if (order[i] != static_cast<int64_t>(i)) return false;
  return true;
}

// Whether the op hands its first input on unchanged.
bool does_nothing(const Rewriter& rewriter, const Op& op) {
  if (op.inputs.empty() || op.outputs.size() != 1) return false;
  if (rewriter.tensor(op.inputs[0]).type != rewriter.tensor(op.outputs[0]).type) return false;
  switch (op.kind) {
    case OpKind::Reshape:
    case OpKind::Expand:
    case OpKind::Cast:
    case OpKind::Split: return true;
    case OpKind::Concat: return op.inputs.size() == 1;
    case OpKind::Transpose: return is_identity_order(std::get<TransposeAttrs>(op.attrs).order);
    case OpKind::Slice: {
      const auto& attrs = std::get<SliceAttrs>(op.attrs);
      for (size_t i = 0; i < attrs.step.size(); ++i)
        if (attrs.size[i] > 0 && (attrs.start[i] != 0 || attrs.step[i] != 1)) return false;
      return true;
    }
    case OpKind::Pad: {
      const auto& attrs = std::get<PadAttrs>(op.attrs);
      for (size_t i = 0; i < attrs.begin.size(); ++i)
        if (attrs.begin[i] != 0) return false;
      return true;
    }
    case OpKind::Dropout: return std::get<DropoutAttrs>(op.attrs).ratio == 0;
    case OpKind::Unary: {
      const auto& attrs = std::get<UnaryAttrs>(op.attrs);
      return attrs.fn == UnaryFn::Identity ||
             (attrs.fn == UnaryFn::Affine && attrs.alpha == 1 && attrs.beta == 0);
    }
    default: return false;
  }
}

// x op c as a unary function of x; the shape of x must be that of the result.
std::optional<UnaryAttrs> as_unary(BinaryFn fn, double c, bool constant_first) {
  const auto affine = [](double alpha, double beta) {
    return UnaryAttrs{UnaryFn::Affine, alpha, beta};
  };
  switch (fn) {
    case BinaryFn::Add: return affine(1, c);
    case BinaryFn::Sub: return constant_first ? affine(-1, c) : affine(1, -c);
    case BinaryFn::Mul: return affine(c, 0);
    case BinaryFn::Div:
      if (!constant_first && c != 0) return affine(1 / c, 0);
      if (constant_first && c == 1) return UnaryAttrs{UnaryFn::Reciprocal, 0, 0};
      return std::nullopt;
    case BinaryFn::Pow:
      if (constant_first) return std::nullopt;
      if (c == 2) return UnaryAttrs{UnaryFn::Square, 0, 0};
      if (c == 0.5) return UnaryAttrs{UnaryFn::Sqrt, 0, 0};
      if (c == -1) return UnaryAttrs{UnaryFn::Reciprocal, 0, 0};
      if (c == -0.5) return UnaryAttrs{UnaryFn::Rsqrt, 0, 0};
      return UnaryAttrs{UnaryFn::Power, c, 0};
    case BinaryFn::Max: return UnaryAttrs{UnaryFn::Clip, c, HUGE_VAL};
    case BinaryFn::Min: return UnaryAttrs{UnaryFn::Clip, -HUGE_VAL, c};
    default: return std::nullopt;
  }
}

const UnaryAttrs* unary_of(const Op* op, UnaryFn fn) {
  if (!op || op->kind != OpKind::Unary) return nullptr;
  const auto* attrs = std::get_if<UnaryAttrs>(&op->attrs);
  return attrs && attrs->fn == fn ? attrs : nullptr;
}

bool simplify_binary(Rewriter& rewriter, const Op& op) {
  const auto& result = rewriter.tensor(op.outputs[0]).type;
  if (!is_float(result.dtype)) return false;
  const BinaryFn fn = std::get<BinaryAttrs>(op.attrs).fn;
  for (size_t side = 0; side < 2; ++side) {
    const auto c = scalar_value(rewriter, op.inputs[side]);
    const TensorId x = op.inputs[1 - side];
    if (!c || rewriter.tensor(x).type != result) continue;
    const auto attrs = as_unary(fn, *c, side == 0);
    if (!attrs) continue;
    rewriter.replace(op, OpKind::Unary, *attrs, {x});
    return true;
  }
  // x * x
  if (fn == BinaryFn::Mul && op.inputs[0] == op.inputs[1]) {
    rewriter.replace(op, OpKind::Unary, UnaryAttrs{UnaryFn::Square, 0, 0}, {op.inputs[0]});
    return true;
  }
  return false;
}

bool simplify_unary(Rewriter& rewriter, const Op& op) {
  const auto& outer = std::get<UnaryAttrs>(op.attrs);
  const Op* before = rewriter.producer(op.inputs[0]);
  const bool only_reader = rewriter.uses(op.inputs[0]) == 1;
  if (outer.fn == UnaryFn::Affine && only_reader) {
    if (const auto* inner = unary_of(before, UnaryFn::Affine)) {
      rewriter.replace(op, OpKind::Unary,
                       UnaryAttrs{UnaryFn::Affine, outer.alpha * inner->alpha,
                                  outer.alpha * inner->beta + outer.beta},
                       {before->inputs[0]});
      return true;
    }
  }
  if (outer.fn == UnaryFn::Reciprocal && only_reader && unary_of(before, UnaryFn::Sqrt)) {
    rewriter.replace(op, OpKind::Unary, UnaryAttrs{UnaryFn::Rsqrt, 0, 0}, {before->inputs[0]});
    return true;
  }
  return false;
}

bool merge_layout(Rewriter& rewriter, const Op& op) {
  const Op* before = rewriter.producer(op.inputs[0], op.kind);
  if (!before) return false;
  if (op.kind == OpKind::Reshape) {
    rewriter.replace(op, OpKind::Reshape, op.attrs, {before->inputs[0]});
    return true;
  }
  if (rewriter.uses(op.inputs[0]) != 1) return false;
  const Ints& first = std::get<TransposeAttrs>(before->attrs).order;
  const Ints& second = std::get<TransposeAttrs>(op.attrs).order;
  Ints order;
  for (int64_t axis : second) order.push_back(first[static_cast<size_t>(axis)]);
  rewriter.replace(op, OpKind::Transpose, TransposeAttrs{order}, {before->inputs[0]});
  return true;
}

size_t simplify_once(Graph& graph) {
  Rewriter rewriter(graph);
  const std::vector<Op> ops = graph.ops;
  size_t changes = 0;
  for (const Op& op : ops) {
    bool done = false;
    if (does_nothing(rewriter, op)) {
      rewriter.substitute(op.outputs[0], op.inputs[0]);
      done = true;
    } else if (op.kind == OpKind::Binary) {
      done = simplify_binary(rewriter, op);
    } else if (op.kind == OpKind::Unary) {
      done = simplify_unary(rewriter, op);
    } else if (op.kind == OpKind::Reshape || op.kind == OpKind::Transpose) {
      done = merge_layout(rewriter, op);
    }
    if (done)
      ++changes;
    else
      rewriter.keep(op);
  }
  rewriter.finish();
  return changes;
}

}  // namespace

void simplify(Graph& graph) {
  // Each round removes or shortens something, so this ends; chains need one round per link at most.
  while (simplify_once(graph) > 0) {
  }
}

}  // namespace windlass
