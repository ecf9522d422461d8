// Small matchers over a Rewriter's old graph, shared by the fusion passes.
#pragma once

#include <cmath>
#include <optional>
#include <utility>

#include "windlass/graph/rewrite.h"

namespace windlass::match {

// Constants in files are rounded to their type, often twice.
inline bool near(double a, double b) { return std::abs(a - b) <= 2e-3 * std::abs(b) + 1e-12; }

// Input of the unary op that produced `id`, if it is that function. With `sole`, nobody else may
// read the result.
inline std::optional<TensorId> unary(const Rewriter& r, TensorId id, UnaryFn fn, bool sole = true) {
  const Op* op = r.producer(id, OpKind::Unary);
  if (!op || std::get<UnaryAttrs>(op->attrs).fn != fn) return std::nullopt;
  if (sole && r.uses(id) != 1) return std::nullopt;
  return op->inputs[0];
}

struct Affine {
  TensorId input;
  double alpha, beta;
};
inline std::optional<Affine> affine(const Rewriter& r, TensorId id, bool sole = true) {
  const auto input = unary(r, id, UnaryFn::Affine, sole);
  if (!input) return std::nullopt;
  const auto& attrs = std::get<UnaryAttrs>(r.producer(id)->attrs);
  return Affine{*input, attrs.alpha, attrs.beta};
}
// alpha x + beta with those values.
inline std::optional<TensorId> affine(const Rewriter& r, TensorId id, double alpha, double beta,
                                      bool sole = true) {
  const auto found = affine(r, id, sole);
  if (!found || !near(found->alpha, alpha) || !near(found->beta, beta)) return std::nullopt;
  return found->input;
}

// Operands of the binary op that produced `id`, if it is that function.
inline std::optional<std::pair<TensorId, TensorId>> binary(const Rewriter& r, TensorId id,
                                                           BinaryFn fn, bool sole = true) {
  const Op* op = r.producer(id, OpKind::Binary);
  if (!op || std::get<BinaryAttrs>(op->attrs).fn != fn) return std::nullopt;
  if (sole && r.uses(id) != 1) return std::nullopt;
  return std::pair{op->inputs[0], op->inputs[1]};
}

// For a commutative op with `known` as one operand: the other one.
inline std::optional<TensorId> other_operand(
    const std::optional<std::pair<TensorId, TensorId>>& pair, TensorId known) {
  if (!pair) return std::nullopt;
  if (pair->first == known) return pair->second;
  if (pair->second == known) return pair->first;
  return std::nullopt;
}

inline bool is_weight(const Rewriter& r, TensorId id) {
  const TensorRole role = r.tensor(id).role;
  return role == TensorRole::Weight || role == TensorRole::Constant;
}

}  // namespace windlass::match
