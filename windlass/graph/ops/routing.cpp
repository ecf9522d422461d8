// Mixture of experts without dropped tokens: route, gather rows by expert, multiply
// (GroupedLinear), combine. The number of rows is fixed (tokens x top_k); only how they fall to the
// experts is data.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

std::vector<TensorType> infer_route(const Signature& s) {
  require_float(s, 0);
  require_rank(s, 0, 2);
  const int64_t tokens = s.shape(0)[0], experts = s.shape(0)[1];
  const int64_t top_k = s.as<RouteAttrs>().top_k;
  if (top_k < 1 || top_k > experts) fail_input("cannot choose {} of {} experts", top_k, experts);
  return {{s.input(0).dtype, {tokens, top_k}},
          {DType::I64, {checked_mul(tokens, top_k)}},
          {DType::I64, {experts}}};
}

std::vector<TensorType> route_auxiliaries(const Signature& s) {
  return {{s.input(0).dtype, s.shape(0)}};
}

// Order and counts depend on all tokens.
LoopNest route_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = {{.name = "token", .size = s.shape(0)[0], .role = LoopRole::Whole},
                {.name = "expert", .size = s.shape(0)[1], .role = LoopRole::Whole}};
  nest.inputs = {aligned_map(2)};
  nest.outputs = {{{.loop = 0}, {}}, {{}}, {{}}};
  nest.auxiliaries = {aligned_map(2)};
  return nest;
}

Arithmetic route_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 6); }

GradientRule route_gradient(const Signature& s, const std::vector<bool>&) {
  return {.inputs = {GradientSource::Computed},
          .saved = {saved_output(0), saved_aux(0)},
          .arithmetic = pointwise(elements(s.input(0)) * 4)};
}

std::vector<TensorType> infer_dispatch(const Signature& s) {
  require_float(s, 0);
  require_rank(s, 0, 2);
  require_integer(s, 1);
  require_rank(s, 1, 1);
  const int64_t tokens = s.shape(0)[0], rows = s.shape(1)[0];
  if (tokens == 0 || rows % tokens != 0)
    fail_input("{} rows are not a multiple of {} tokens", rows, tokens);
  return {{s.input(0).dtype, {rows, s.shape(0)[1]}}};
}

LoopNest dispatch_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = {{.name = "row", .size = s.shape(1)[0]}, {.name = "width", .size = s.shape(0)[1]}};
  nest.inputs = {{{}, {.loop = 1}}, {{.loop = 0}}};
  nest.outputs = {aligned_map(2)};
  return nest;
}

// Rows of the order, or tokens of the weights: either is input 1.
void routed_piece(const Signature&, OpPiece& piece) {
  piece.facts.rows = piece.input_regions[1][0];
}

GradientRule dispatch_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  rule.inputs[0] = GradientSource::Computed;
  rule.saved = {saved_input(1)};
  rule.arithmetic = pointwise(elements(s.outputs[0]));
  return rule;
}

std::vector<TensorType> infer_combine(const Signature& s) {
  require_float(s, 0);
  require_rank(s, 0, 2);
  require_float(s, 1);
  require_rank(s, 1, 2);
  require_integer(s, 2);
  const int64_t rows = checked_product(s.shape(1));
  if (s.shape(0)[0] != rows)
    fail_input("{} rows do not fit weights {}", s.shape(0)[0], format_shape(s.shape(1)));
  require_shape(s, 2, {rows}, "order");
  return {{s.input(0).dtype, {s.shape(1)[0], s.shape(0)[1]}}};
}

LoopNest combine_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = {{.name = "token", .size = s.shape(1)[0]}, {.name = "width", .size = s.shape(0)[1]}};
  nest.inputs = {{{}, {.loop = 1}}, {{.loop = 0}, {}}, {{}}};
  nest.outputs = {aligned_map(2)};
  return nest;
}

Arithmetic combine_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 2); }

GradientRule combine_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(3);
  rule.inputs[0] = rule.inputs[1] = GradientSource::Computed;
  if (wanted[1]) rule.saved.push_back(saved_input(0));
  if (wanted[0]) rule.saved.push_back(saved_input(1));
  rule.saved.push_back(saved_input(2));
  rule.arithmetic = pointwise(elements(s.input(0)) * 3);
  return rule;
}

}  // namespace

std::vector<OpInfo> routing_ops() {
  return {
      {.kind = OpKind::Route,
       .name = "Route",
       .family = OpFamily::Routing,
       .min_inputs = 1,
       .max_inputs = 1,
       .memory_bound = true,
       .infer = infer_route,
       .auxiliaries = route_auxiliaries,
       .loops = route_loops,
       .arithmetic = route_arithmetic,
       .gradient = route_gradient},
      {.kind = OpKind::Dispatch,
       .name = "Dispatch",
       .family = OpFamily::Routing,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_dispatch,
       .loops = dispatch_loops,
       .piece = routed_piece,
       .arithmetic = no_arithmetic,
       .gradient = dispatch_gradient},
      {.kind = OpKind::Combine,
       .name = "Combine",
       .family = OpFamily::Routing,
       .min_inputs = 3,
       .max_inputs = 3,
       .memory_bound = true,
       .infer = infer_combine,
       .loops = combine_loops,
       .piece = routed_piece,
       .arithmetic = combine_arithmetic,
       .gradient = combine_gradient},
  };
}

}  // namespace windlass::ops
