#include "windlass/graph/autocast.h"

#include <map>
#include <optional>

#include "windlass/graph/op_info.h"
#include "windlass/graph/rewrite.h"

namespace windlass {
namespace {

bool castable(const TensorType& type) {
  return type.dtype == DType::F32 || type.dtype == DType::F16 || type.dtype == DType::BF16;
}

bool wants_fp32(UnaryFn fn) {
  switch (fn) {
    case UnaryFn::Exp:
    case UnaryFn::Log:
    case UnaryFn::Power:
    case UnaryFn::Reciprocal:
    case UnaryFn::Rsqrt:
    case UnaryFn::Square: return true;
    default: return false;
  }
}

// Type that an op wants its float operands in; none: the widest of them.
std::optional<DType> wanted_by(const Op& op, DType narrow) {
  switch (op.kind) {
    case OpKind::MatMul:
    case OpKind::Linear:
    case OpKind::GroupedLinear:
    case OpKind::SlotLinear:
    case OpKind::Conv:
    case OpKind::Attention:
    case OpKind::Lstm:
    case OpKind::Gru: return narrow;
    case OpKind::Softmax:
    case OpKind::LayerNorm:
    case OpKind::RmsNorm:
    case OpKind::GroupNorm:
    case OpKind::LocalResponseNorm:
    case OpKind::Reduce:
    case OpKind::CumSum:
    case OpKind::CrossEntropy:
    case OpKind::MeanSquaredError: return DType::F32;
    case OpKind::Unary:
      if (wants_fp32(std::get<UnaryAttrs>(op.attrs).fn)) return DType::F32;
      return std::nullopt;
    default: return std::nullopt;
  }
}

// Goes through the ops of a graph, puts casts before them, and follows what becomes of the types.
class CastInserter {
 public:
  explicit CastInserter(const Graph& graph) : graph_(graph) { graph_.ops.clear(); }

  // The type that each of the op's float operands is to have; none: as it is.
  void add(Op op, std::optional<DType> wanted) {
    if (wanted)
      for (TensorId& id : op.inputs)
        if (id.valid() && castable(graph_[id].type)) id = cast(id, *wanted);
    const std::vector<TensorType> types = op_info(op.kind).infer(signature_of(graph_, op));
    for (size_t k = 0; k < types.size(); ++k) graph_[op.outputs[k]].type = types[k];
    append(std::move(op));
  }

  // The widest type of the float operands that have axes.
  std::optional<DType> widest(const Op& op) const {
    std::optional<DType> result;
    for (TensorId id : op.inputs) {
      if (!id.valid() || !castable(graph_[id].type) || graph_[id].type.shape.empty()) continue;
      const DType dtype = graph_[id].type.dtype;
      if (!result || element_bytes(dtype) > element_bytes(*result)) result = dtype;
    }
    return result;
  }

  Graph finish() { return std::move(graph_); }

 private:
  void append(Op op) {
    const OpId id(graph_.ops.size());
    for (TensorId output : op.outputs)
      if (output.valid()) graph_[output].producer = id;
    graph_.ops.push_back(std::move(op));
  }

  TensorId cast(TensorId id, DType dtype) {
    const Tensor from = graph_[id];
    if (from.type.dtype == dtype) return id;
    const bool stays = from.role == TensorRole::Weight || from.constant >= 0;
    if (stays)
      if (const auto known = known_.find({id, dtype}); known != known_.end()) return known->second;
    Tensor to = from;
    to.type.dtype = dtype;
    to.producer = {};
    const TensorId result(graph_.tensors.size());
    if (from.constant < 0) {
      to.name += ".cast";
      to.role = TensorRole::Activation;
      to.trainable = false;
    }
    graph_.tensors.push_back(to);
    if (from.constant < 0)
      append({.kind = OpKind::Cast,
              .attrs = CastAttrs{dtype},
              .inputs = {id},
              .outputs = {result},
              .name = to.name});
    if (stays) known_[{id, dtype}] = result;
    return result;
  }

  Graph graph_;
  std::map<std::pair<TensorId, DType>, TensorId> known_;
};

}  // namespace

Graph autocast(const Graph& graph, DType dtype) {
  CastInserter inserter(graph);
  for (const Op& op : graph.ops) {
    std::optional<DType> wanted = wanted_by(op, dtype);
    const bool as_it_is = op.kind == OpKind::Cast || op.kind == OpKind::BatchNorm;
    if (!wanted && !as_it_is) wanted = inserter.widest(op);
    inserter.add(op, wanted);
  }
  return inserter.finish();
}

Graph with_fp32_losses(const Graph& graph) {
  CastInserter inserter(graph);
  for (const Op& op : graph.ops) {
    const bool loss = op_info(op.kind).family == OpFamily::Loss;
    inserter.add(op, loss ? std::optional(DType::F32) : std::nullopt);
  }
  return inserter.finish();
}

int fuse_scores(Graph& graph) {
  Rewriter r(graph);
  // Ops on the way to a softmax that nobody else reads: of additions, the operand with the scores.
  std::map<TensorId, TensorId> passed;
  const auto scores_of = [&](const Op& op) {
    const bool scales =
        op.kind == OpKind::Unary && std::get<UnaryAttrs>(op.attrs).fn == UnaryFn::Affine;
    const bool masks =
        op.kind == OpKind::Binary && std::get<BinaryAttrs>(op.attrs).fn == BinaryFn::Add;
    if ((!scales && !masks) || r.uses(op.outputs[0]) != 1) return TensorId();
    return r.tensor(op.inputs[0]).type == r.tensor(op.outputs[0]).type ? op.inputs[0] : TensorId();
  };
  const std::vector<Op> ops = graph.ops;
  for (const Op& op : ops) {
    if (op.kind != OpKind::Softmax) continue;
    std::vector<const Op*> between;
    const Op* before = r.producer(op.inputs[0]);
    while (before != nullptr && scores_of(*before).valid()) {
      between.push_back(before);
      before = r.producer(scores_of(*before));
    }
    if (before == nullptr || before->kind != OpKind::MatMul) continue;
    for (const Op* gone : between) passed[gone->outputs[0]] = before->outputs[0];
  }
  for (const Op& op : ops) {
    const auto gone = passed.find(op.outputs[0]);
    if (gone == passed.end())
      r.keep(op);
    else
      r.substitute(gone->first, gone->second);
  }
  r.finish();
  return static_cast<int>(passed.size());
}

}  // namespace windlass
