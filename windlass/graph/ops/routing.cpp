// Mixture of experts without dropped tokens: route, multiply (GroupedLinear), combine. A token has
// a row for each expert that is chosen for it, and rows stay in the order of tokens, so that tokens
// can be cut anywhere; only which rows meet which expert is data.

#include "windlass/graph/ops/families.h"

namespace windlass::ops {
namespace {

std::vector<TensorType> infer_route(const Signature& s) {
  require_float(s, 0);
  require_rank(s, 0, 2);
  const int64_t tokens = s.shape(0)[0], experts = s.shape(0)[1];
  const int64_t top_k = s.as<RouteAttrs>().top_k;
  if (top_k < 1 || top_k > experts) fail_input("cannot choose {} of {} experts", top_k, experts);
  return {{s.input(0).dtype, {tokens, top_k}}, {DType::I64, {tokens, top_k}}};
}

std::vector<TensorType> route_auxiliaries(const Signature& s) {
  return {{s.input(0).dtype, s.shape(0)}};
}

LoopNest route_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = {{.name = "token", .size = s.shape(0)[0]},
                {.name = "expert", .size = s.shape(0)[1], .role = LoopRole::Whole}};
  nest.inputs = {aligned_map(2)};
  nest.outputs = {{{.loop = 0}, {}}, {{.loop = 0}, {}}};
  nest.auxiliaries = {aligned_map(2)};
  return nest;
}

Arithmetic route_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 6); }

GradientRule route_gradient(const Signature& s, const std::vector<bool>&) {
  return {.inputs = {GradientSource::Computed},
          .saved = {saved_output(0), saved_aux(0)},
          .arithmetic = pointwise(elements(s.input(0)) * 4)};
}

std::vector<TensorType> infer_combine(const Signature& s) {
  require_float(s, 0);
  require_rank(s, 0, 3);
  require_float(s, 1);
  const Shape& rows = s.shape(0);
  require_shape(s, 1, {rows[0], rows[1]}, "weights");
  return {{s.input(0).dtype, {rows[0], rows[2]}}};
}

LoopNest combine_loops(const Signature& s) {
  LoopNest nest;
  nest.loops = {{.name = "token", .size = s.shape(0)[0]}, {.name = "width", .size = s.shape(0)[2]}};
  nest.inputs = {{{.loop = 0}, {}, {.loop = 1}}, {{.loop = 0}, {}}};
  nest.outputs = {aligned_map(2)};
  return nest;
}

Arithmetic combine_arithmetic(const Signature& s) { return pointwise(elements(s.input(0)) * 2); }

GradientRule combine_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(2);
  rule.inputs[0] = rule.inputs[1] = GradientSource::Computed;
  if (wanted[1]) rule.saved.push_back(saved_input(0));
  if (wanted[0]) rule.saved.push_back(saved_input(1));
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
      {.kind = OpKind::Combine,
       .name = "Combine",
       .family = OpFamily::Routing,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_combine,
       .loops = combine_loops,
       .arithmetic = combine_arithmetic,
       .gradient = combine_gradient},
  };
}

}  // namespace windlass::ops
