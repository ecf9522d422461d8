// Ops of training graphs, whole and in pieces.

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "windlass/base/error.h"
#include "windlass/graph/coupled.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

// What an op of a training graph is run on.
struct OpOperands {
  const Op& op;
  const Attrs& attrs;
  const PieceFacts& facts;
  std::span<const at::Tensor> inputs;
  std::span<Result> results;
  RandomKey random;
  const at::Tensor* statistics = nullptr;
  double mean_count = -1;
};

// The facts with what mean_counts says of a CrossEntropy.
class CountedFacts {
 public:
  CountedFacts(const Op& op, const PieceFacts& facts, double mean_count) : facts_(&facts) {
    if (op.kind != OpKind::CrossEntropy || mean_count < 0) return;
    counted_ = facts;
    counted_.mean_count = mean_count;
    facts_ = &counted_;
  }
  CountedFacts(const CountedFacts&) = delete;
  CountedFacts& operator=(const CountedFacts&) = delete;

  const PieceFacts& get() const { return *facts_; }

 private:
  const PieceFacts* facts_;
  PieceFacts counted_;
};

ForwardCall forward_call(const OpOperands& o, bool again = false) {
  const size_t outputs = std::min(o.results.size(), o.op.outputs.size());
  return {.kind = o.op.kind,
          .attributes = o.attrs,
          .inputs = o.inputs,
          .outputs = o.results.first(outputs),
          .auxiliaries = o.results.subspan(outputs),
          .random = o.random,
          .again = again,
          .facts = o.facts,
          .statistics = o.statistics,
          .known_result = o.op.kind == OpKind::CrossEntropy ? -1 : o.mean_count};
}

BackwardCall backward_call(const OpOperands& o, std::span<const TensorType> input_types) {
  const size_t gradients = o.inputs.size() - o.op.saved.size();
  return {.kind = o.op.kind,
          .attributes = o.attrs,
          .input_types = input_types,
          .gradients = o.inputs.first(gradients),
          .saved_refs = o.op.saved,
          .saved = o.inputs.subspan(gradients),
          .results = o.results,
          .random = o.random,
          .facts = o.facts,
          .statistics = o.statistics};
}

bool is_backward(const Op& op) { return op.forward.valid(); }

Exchange needed_exchange(const Op& op, const OpPiece& piece) {
  if (!piece.coupled) return {};
  return is_backward(op) ? exchange_of(piece, Pass::Backward, wanted_of(op))
                         : exchange_of(piece, Pass::Forward);
}

void check_statistics(const at::Tensor& statistics, const TensorType& type) {
  ensure(statistics.sizes() == at::IntArrayRef(type.shape) &&
             statistics.scalar_type() == scalar_type(type.dtype) && statistics.is_contiguous(),
         "statistics are not of the type that the op table says");
}

}  // namespace

void run_op(const Graph& graph, const Op& op, std::span<const at::Tensor> inputs,
            std::span<Result> results, RandomKey random, bool again, const PieceFacts& facts,
            double mean_count) {
  const CountedFacts counted(op, facts, mean_count);
  const OpOperands operands = {op,      op.attrs, counted.get(), inputs,
                               results, random,   nullptr,       mean_count};
  if (!is_backward(op)) {
    ForwardCall call = forward_call(operands, again);
    return run_forward(call);
  }
  std::vector<TensorType> types;
  for (TensorId id : graph[op.forward].inputs) types.push_back(graph.type_of(id));
  BackwardCall call = backward_call(operands, types);
  run_backward(call);
}

void run_piece(const Op& op, const OpPiece& piece, std::span<const at::Tensor> inputs,
               std::span<Result> results, RandomKey random, bool again,
               const at::Tensor* statistics, double mean_count) {
  const Exchange exchange = needed_exchange(op, piece);
  if (exchange.needed()) {
    ensure(statistics != nullptr, "a coupled piece is ended without statistics");
    check_statistics(*statistics, exchange.type);
  }
  const CountedFacts counted(op, piece.facts, mean_count);
  const OpOperands operands = {op,
                               piece.attrs,
                               counted.get(),
                               inputs,
                               results,
                               random,
                               exchange.needed() ? statistics : nullptr,
                               mean_count};
  if (!is_backward(op)) {
    ForwardCall call = forward_call(operands, again);
    return run_forward(call);
  }
  BackwardCall call = backward_call(operands, piece.inputs);
  run_backward(call);
}

void begin_piece(const Op& op, const OpPiece& piece, std::span<const at::Tensor> inputs,
                 RandomKey random, at::Tensor& statistics) {
  const Exchange exchange = needed_exchange(op, piece);
  ensure(exchange.needed(), "a piece is begun that exchanges nothing");
  if (statistics.defined())
    check_statistics(statistics, exchange.type);
  else
    statistics = at::empty(exchange.type.shape, scalar_type(exchange.type.dtype));
  OpOperands operands = {op, piece.attrs, piece.facts, inputs, {}, random};
  if (!is_backward(op)) return begin_forward(forward_call(operands), statistics);
  std::vector<Result> wanted;
  const std::vector<bool> wishes = wanted_of(op);
  for (size_t i = 0; i < wishes.size(); ++i)
    wanted.push_back(wishes[i] ? Result(piece.inputs[i]) : Result());
  operands.results = wanted;
  begin_backward(backward_call(operands, piece.inputs), statistics);
}

}  // namespace windlass
