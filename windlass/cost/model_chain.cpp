#include "windlass/cost/model_chain.h"

#include <algorithm>
#include <set>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/blocks.h"

namespace windlass {
namespace {

int64_t bytes_of(const Graph& graph, TensorId id) {
  return id.valid() ? byte_size(graph[id].type).value : 0;
}

bool passes_on(const Tensor& tensor) {
  return tensor.role == TensorRole::Activation || tensor.role == TensorRole::Input;
}

// One micro-batch size of a network.
class SizedChain {
 public:
  SizedChain(const Graph& network, const TrainingOptions& options, const Machine& machine,
             const CostModel& cost)
      : training_(differentiate(network, options)),
        graph_(training_.graph),
        type_(machine.type_of(DeviceId(size_t{0}))),
        node_(machine.nodes.front()),
        cost_(cost) {
    size_t piece = 0;
    const std::vector<size_t> cuts = cut_points(network);
    for (size_t op = 0; op < training_.forward_ops; ++op) {
      piece_of_.push_back(piece);
      if (piece < cuts.size() && cuts[piece] == op && op + 1 < training_.forward_ops) ++piece;
    }
    pieces_ = piece + 1;
  }

  size_t layers() const { return pieces_; }
  void weigh(LayerProfile& profile) const;
  void time(LayerProfile& profile, int64_t size) const;
  std::vector<int64_t> inputs() const;

 private:
  Price price(const Op& op) const {
    if (op_info(op.kind).view) return {};
    const Op& forward = op.forward.valid() ? graph_[op.forward] : op;
    const LoopNest nest = loops_of(graph_, forward);
    LocalSizes local;
    for (const auto& loop : nest.loops) local.push_back(loop.size);
    return cost_.price(work_of(graph_, op, nest, local), type_);
  }
  int64_t operands(const Op& op) const {
    int64_t bytes = 0;
    for (const auto* list : {&op.inputs, &op.outputs})
      for (TensorId id : *list)
        if (id.valid() && graph_[id].role != TensorRole::Weight &&
            graph_[id].role != TensorRole::WeightGradient && graph_[id].role != TensorRole::Buffer)
          bytes += bytes_of(graph_, id);
    return bytes;
  }

  TrainingGraph training_;
  const Graph& graph_;
  const DeviceType& type_;
  const Node& node_;
  const CostModel& cost_;
  std::vector<size_t> piece_of_;  // by forward op
  size_t pieces_ = 0;
};

// What does not depend on the micro-batch size.
void SizedChain::weigh(LayerProfile& profile) const {
  for (auto* list : {&profile.weights, &profile.buffers, &profile.optimizer})
    list->assign(pieces_, 0);
  profile.host_update.assign(pieces_, 0);
  const int states = optimizer_state_count(training_.options.optimizer);
  std::set<std::pair<size_t, TensorId>> seen;
  std::set<TensorId> stored, updated;
  for (size_t op = 0; op < training_.forward_ops; ++op)
    for (TensorId id : graph_.ops[op].inputs) {
      if (!id.valid() || !seen.insert({piece_of_[op], id}).second) continue;
      const Tensor& tensor = graph_[id];
      const size_t piece = piece_of_[op];
      if (tensor.role == TensorRole::Buffer) profile.buffers[piece] += bytes_of(graph_, id);
      if (tensor.role != TensorRole::Weight) continue;
      profile.weights[piece] += bytes_of(graph_, id);
      if (!stored.insert(id).second) profile.tied += bytes_of(graph_, id);
      // The first layer that reads a weight runs backward last: then its gradient is whole.
      if (!tensor.trainable || !updated.insert(id).second) continue;
      const auto elements = static_cast<double>(element_count(tensor.type.shape));
      const bool master = training_.options.master_weights && tensor.type.dtype != DType::F32;
      profile.optimizer[piece] += static_cast<int64_t>(elements) * 4 * (states + (master ? 1 : 0));
      const DType gradient = training_.options.gradient_dtype.value_or(tensor.type.dtype);
      profile.host_update[piece] +=
          cost_
              .price_on_host(update_work(training_.options.optimizer, elements, tensor.type.dtype,
                                         gradient, master),
                             node_)
              .time.value;
    }
}

// Bytes of each layer's input: the one tensor that is passed on, or the data.
std::vector<int64_t> SizedChain::inputs() const {
  std::vector<int64_t> result(pieces_, 0);
  std::set<std::pair<size_t, TensorId>> seen;
  for (size_t op = 0; op < training_.forward_ops; ++op)
    for (TensorId id : graph_.ops[op].inputs) {
      const size_t piece = piece_of_[op];
      if (!id.valid() || !passes_on(graph_[id])) continue;
      const OpId producer = graph_[id].producer;
      const bool data = piece == 0 && !producer.valid();
      const bool passed = producer.valid() && piece_of_[producer.index()] + 1 == piece;
      if ((data || passed) && seen.insert({piece, id}).second)
        result[piece] += bytes_of(graph_, id);
    }
  return result;
}

void SizedChain::time(LayerProfile& profile, int64_t size) const {
  PassCosts forward, backward;
  for (PassCosts* costs : {&forward, &backward}) {
    costs->seconds.assign(pieces_, 0);
    costs->peak.assign(pieces_, 0);
  }
  const std::vector<int64_t> passed = inputs();
  std::vector<int64_t> saved(pieces_, 0);
  for (const SavedTensor& tensor : training_.saved)
    if (tensor.producer.valid()) saved[piece_of_[tensor.producer.index()]] += tensor.bytes.value;
  std::vector<int64_t> forward_most(pieces_, 0), backward_most(pieces_, 0);
  for (size_t op = 0; op < training_.forward_ops; ++op) {
    const Price cost = price(graph_.ops[op]);
    const size_t piece = piece_of_[op];
    forward.seconds[piece] += cost.time.value;
    forward_most[piece] =
        std::max(forward_most[piece], operands(graph_.ops[op]) + cost.workspace.value);
  }
  backward.seconds = forward.seconds;
  size_t piece = pieces_ - 1;
  for (size_t op = training_.forward_ops; op < training_.forward_ops + training_.backward_ops;
       ++op) {
    const Op& entry = graph_.ops[op];
    if (entry.pass == Pass::Backward && entry.forward.valid())
      piece = piece_of_[entry.forward.index()];
    const Price cost = price(entry);
    backward.seconds[piece] += cost.time.value;
    backward_most[piece] = std::max(backward_most[piece], operands(entry) + cost.workspace.value);
  }
  for (size_t p = 0; p < pieces_; ++p) {
    const int64_t state = profile.weights[p] + profile.buffers[p] + passed[p];
    forward.peak[p] = state + forward_most[p];
    backward.peak[p] = state + profile.weights[p] + saved[p] + backward_most[p];
  }
  for (auto [pass, costs] :
       {std::pair(&profile.forward, &forward), std::pair(&profile.backward, &backward)}) {
    pass->sizes.push_back(size);
    pass->at_size.push_back(std::move(*costs));
  }
}

}  // namespace

LayerProfile chain_of_network(const Graph& network, const TrainingOptions& training,
                              const Machine& machine, const CostModel& cost, int64_t most) {
  const BatchAxes batch = find_batch(network);
  if (!batch.obstacle.empty())
    fail_unsupported("{}: the batch cannot be cut: {}", network.name, batch.obstacle);
  LayerProfile profile;
  profile.source = cost.provenance();
  for (int64_t size = 1; size <= std::min(batch.samples, most); ++size) {
    if (batch.samples % size != 0) continue;
    const SizedChain chain(cut_batch(network, batch, batch.samples / size), training, machine,
                           cost);
    if (chain.layers() < 2)
      fail_unsupported("{}: no place to cut the network into layers", network.name);
    if (profile.weights.empty()) {
      chain.weigh(profile);
      profile.input = chain.inputs();
      for (int64_t& bytes : profile.input) bytes = (bytes + size - 1) / size;
    }
    chain.time(profile, size);
  }
  return profile;
}

}  // namespace windlass
