// Mixture of experts without dropped tokens: route, multiply (GroupedLinear), combine. A token has
// a row for each expert that is chosen for it, and rows stay in the order of tokens, so that tokens
// can be cut anywhere; only which rows meet which expert is data. Or rows lie in slots of their
// experts: route, dispatch, multiply (SlotLinear), collect.

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

int64_t blocks_of(const Signature& s, int64_t tokens) {
  const auto& a = s.as<SlotAttrs>();
  if (a.experts < 1 || a.block < 1 || a.slots < 1)
    fail_input("{} experts with {} slots for every {} tokens", a.experts, a.slots, a.block);
  if (tokens % a.block != 0)
    fail_input("{} tokens are no whole number of blocks of {}", tokens, a.block);
  return tokens / a.block;
}

// x [t, width], chosen [t, k]: rows [e, blocks * slots, width], and how many of the slots are used,
// [e, blocks].
std::vector<TensorType> infer_dispatch(const Signature& s) {
  const auto& a = s.as<SlotAttrs>();
  require_float(s, 0);
  require_rank(s, 0, 2);
  require_integer(s, 1);
  require_rank(s, 1, 2);
  const Shape &x = s.shape(0), &chosen = s.shape(1);
  if (x[0] != chosen[0])
    fail_input("input {} does not fit the chosen experts {}", format_shape(x),
               format_shape(chosen));
  const int64_t blocks = blocks_of(s, x[0]);
  return {{s.input(0).dtype, {a.experts, checked_mul(blocks, a.slots), x[1]}},
          {DType::I64, {a.experts, blocks}}};
}

// Slots of a block follow its tokens; those of an expert need all tokens of the block.
LoopNest slot_loops(const Signature& s, int64_t tokens, int64_t width, LoopRole experts) {
  const auto& a = s.as<SlotAttrs>();
  LoopNest nest;
  nest.loops = {{.name = "block", .size = tokens / a.block},
                {.name = "expert", .size = a.experts, .role = experts},
                {.name = "width", .size = width}};
  return nest;
}
AxisMap tokens_of_block(const Signature& s) {
  const int64_t block = s.as<SlotAttrs>().block;
  return {.loop = 0, .stride = block, .window = block};
}
OperandMap slot_rows(const Signature& s) {
  const int64_t slots = s.as<SlotAttrs>().slots;
  return {{.loop = 1}, {.loop = 0, .stride = slots, .window = slots}, {.loop = 2}};
}

LoopNest dispatch_loops(const Signature& s) {
  LoopNest nest = slot_loops(s, s.shape(0)[0], s.shape(0)[1], LoopRole::Free);
  nest.inputs = {{tokens_of_block(s), {.loop = 2}}, {tokens_of_block(s), {}}};
  nest.outputs = {slot_rows(s), {{.loop = 1}, {.loop = 0}}};
  return nest;
}

void dispatch_piece(const Signature&, OpPiece& piece) {
  piece.facts.rows = piece.output_regions[0][0];
  std::get<SlotAttrs>(piece.attrs).experts = piece.outputs[0].shape[0];
}

GradientRule dispatch_gradient(const Signature& s, const std::vector<bool>&) {
  GradientRule rule = no_gradient(2);
  rule.inputs[0] = GradientSource::Computed;
  rule.saved = {saved_input(1)};
  rule.arithmetic = pointwise(elements(s.input(0)));
  return rule;
}

// Rows in slots, chosen [t, k] and weights [t, k]: [t, width], the weighted sum of a token's rows.
std::vector<TensorType> infer_collect(const Signature& s) {
  const auto& a = s.as<SlotAttrs>();
  require_float(s, 0);
  require_rank(s, 0, 3);
  require_integer(s, 1);
  require_rank(s, 1, 2);
  require_float(s, 2);
  require_shape(s, 2, s.shape(1), "weights");
  const Shape& rows = s.shape(0);
  const int64_t tokens = s.shape(1)[0];
  require_shape(s, 0, {a.experts, checked_mul(blocks_of(s, tokens), a.slots), rows[2]}, "rows");
  return {{s.input(0).dtype, {tokens, rows[2]}}};
}

LoopNest collect_loops(const Signature& s) {
  LoopNest nest = slot_loops(s, s.shape(1)[0], s.shape(0)[2], LoopRole::Reduced);
  nest.inputs = {slot_rows(s), {tokens_of_block(s), {}}, {tokens_of_block(s), {}}};
  nest.outputs = {{tokens_of_block(s), {.loop = 2}}};
  return nest;
}

void collect_piece(const Signature&, OpPiece& piece) {
  piece.facts.rows = piece.input_regions[0][0];
  std::get<SlotAttrs>(piece.attrs).experts = piece.inputs[0].shape[0];
}

Arithmetic collect_arithmetic(const Signature& s) {
  return pointwise(elements(s.input(1)) * static_cast<double>(s.shape(0)[2]) * 2);
}

GradientRule collect_gradient(const Signature& s, const std::vector<bool>& wanted) {
  GradientRule rule = no_gradient(3);
  rule.inputs[0] = rule.inputs[2] = GradientSource::Computed;
  if (wanted[2]) rule.saved.push_back(saved_input(0));
  rule.saved.push_back(saved_input(1));
  if (wanted[0]) rule.saved.push_back(saved_input(2));
  rule.arithmetic = collect_arithmetic(s);
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
      {.kind = OpKind::Dispatch,
       .name = "Dispatch",
       .family = OpFamily::Routing,
       .min_inputs = 2,
       .max_inputs = 2,
       .memory_bound = true,
       .infer = infer_dispatch,
       .loops = dispatch_loops,
       .piece = dispatch_piece,
       .arithmetic = no_arithmetic,
       .gradient = dispatch_gradient},
      {.kind = OpKind::Collect,
       .name = "Collect",
       .family = OpFamily::Routing,
       .min_inputs = 3,
       .max_inputs = 3,
       .memory_bound = true,
       .infer = infer_collect,
       .loops = collect_loops,
       .piece = collect_piece,
       .arithmetic = collect_arithmetic,
       .gradient = collect_gradient},
  };
}

}  // namespace windlass::ops
