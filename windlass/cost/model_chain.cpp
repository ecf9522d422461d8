#include "windlass/cost/model_chain.h"

#include <algorithm>
#include <set>

#include "windlass/base/error.h"
#include "windlass/cost/allocation.h"
#include "windlass/cost/layer_peaks.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/network_layers.h"

namespace windlass {
namespace {

int64_t bytes_of(const Graph& graph, TensorId id) {
  return id.valid() ? byte_size(graph[id].type).value : 0;
}

bool passes_on(const Tensor& tensor) {
  return tensor.role == TensorRole::Activation || tensor.role == TensorRole::Input;
}

// Weights and buffers with the layers that read them, be it through views; each pair once, in the
// order of ops.
std::vector<std::pair<int32_t, TensorId>> state_of_layers(const TrainingGraph& training,
                                                          const std::vector<int32_t>& layer_of) {
  const Graph& graph = training.graph;
  const std::vector<TensorId> roots = storage_roots(graph);
  std::vector<std::pair<int32_t, TensorId>> result;
  std::set<std::pair<int32_t, TensorId>> seen;
  for (size_t op = 0; op < training.forward_ops; ++op) {
    if (op_info(graph.ops[op].kind).view) continue;
    for (TensorId input : graph.ops[op].inputs) {
      if (!input.valid()) continue;
      const TensorId id = roots[input.index()];
      const TensorRole role = graph[id].role;
      if (role != TensorRole::Weight && role != TensorRole::Buffer) continue;
      if (seen.insert({layer_of[op], id}).second) result.emplace_back(layer_of[op], id);
    }
  }
  return result;
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
    piece_of_ = find_layers(network);
    pieces_ = static_cast<size_t>(piece_of_.back()) + 1;
  }

  size_t layers() const { return pieces_; }
  LayerProfile weigh(int64_t size) const;
  void time(LayerProfile& profile, int64_t size) const;

 private:
  Price price(const Op& op) const {
    if (op_info(op.kind).view) return {};
    const Op& forward = op.forward.valid() ? graph_[op.forward] : op;
    const LoopNest nest = loops_of(graph_, forward);
    LocalSizes local;
    for (const auto& loop : nest.loops) local.push_back(loop.size);
    return cost_.price(work_of(graph_, op, nest, local), type_);
  }
  size_t piece(size_t op) const { return static_cast<size_t>(piece_of_[op]); }

  TrainingGraph training_;
  const Graph& graph_;
  const DeviceType& type_;
  const Node& node_;
  const CostModel& cost_;
  std::vector<int32_t> piece_of_;  // by forward op
  size_t pieces_ = 0;
};

// What does not depend on the micro-batch size.
LayerProfile SizedChain::weigh(int64_t size) const {
  LayerProfile profile = bytes_of_layers(training_, piece_of_, size);
  profile.forward = profile.backward = {};
  const bool masters = training_.options.master_weights;
  std::set<TensorId> updated;
  for (const auto& [layer, id] : state_of_layers(training_, piece_of_)) {
    const Tensor& tensor = graph_[id];
    // The first layer that reads a weight runs backward last: then its gradient is whole.
    if (tensor.role != TensorRole::Weight || !tensor.trainable || !updated.insert(id).second)
      continue;
    const auto elements = static_cast<double>(element_count(tensor.type.shape));
    const bool master = masters && tensor.type.dtype != DType::F32;
    const DType gradient = training_.options.gradient_dtype.value_or(tensor.type.dtype);
    profile.host_update[static_cast<size_t>(layer)] +=
        cost_
            .price_on_host(update_work(training_.options.optimizer, elements, tensor.type.dtype,
                                       gradient, master),
                           node_)
            .time.value;
  }
  return profile;
}

void SizedChain::time(LayerProfile& profile, int64_t size) const {
  PassCosts forward, backward;
  for (PassCosts* costs : {&forward, &backward}) {
    costs->seconds.assign(pieces_, 0);
    costs->peak.assign(pieces_, 0);
  }
  const size_t end = training_.forward_ops + training_.backward_ops;
  std::vector<int64_t> workspace(end, 0);
  for (size_t op = 0; op < training_.forward_ops; ++op) {
    const Price cost = price(graph_.ops[op]);
    forward.seconds[piece(op)] += cost.time.value;
    workspace[op] = cost.workspace.value;
  }
  backward.seconds = forward.seconds;
  size_t at = pieces_ - 1;
  for (size_t op = training_.forward_ops; op < end; ++op) {
    const Op& entry = graph_.ops[op];
    if (entry.forward.valid()) at = piece(entry.forward.index());
    const Price cost = price(entry);
    backward.seconds[at] += cost.time.value;
    workspace[op] = cost.workspace.value;
  }
  const LayerPeaks peaks = layer_peaks(training_, piece_of_, workspace);
  std::vector<int64_t> rounding(pieces_, 0);
  for (const auto& [layer, id] : state_of_layers(training_, piece_of_)) {
    const int64_t bytes = bytes_of(graph_, id);
    rounding[static_cast<size_t>(layer)] += allocated(bytes).value - bytes;
  }
  for (size_t p = 0; p < pieces_; ++p) {
    const int64_t state =
        profile.weights[p] + profile.buffers[p] + profile.input[p] * size + rounding[p];
    forward.peak[p] = state + peaks.forward[p];
    backward.peak[p] = state + profile.weights[p] + rounding[p] + peaks.backward[p];
  }
  for (auto [pass, costs] :
       {std::pair(&profile.forward, &forward), std::pair(&profile.backward, &backward)}) {
    pass->sizes.push_back(size);
    pass->at_size.push_back(std::move(*costs));
  }
}

// Bytes of each layer's input: the one tensor that is passed on, or the data.
std::vector<int64_t> input_bytes(const TrainingGraph& training,
                                 const std::vector<int32_t>& layer_of, size_t layers) {
  const Graph& graph = training.graph;
  std::vector<int64_t> result(layers, 0);
  std::set<std::pair<int32_t, TensorId>> seen;
  for (size_t op = 0; op < training.forward_ops; ++op)
    for (TensorId id : graph.ops[op].inputs) {
      const int32_t layer = layer_of[op];
      if (!id.valid() || !passes_on(graph[id])) continue;
      const OpId producer = graph[id].producer;
      const bool data = layer == 0 && !producer.valid();
      const bool passed = producer.valid() && layer_of[producer.index()] + 1 == layer;
      if ((data || passed) && seen.insert({layer, id}).second)
        result[static_cast<size_t>(layer)] += bytes_of(graph, id);
    }
  return result;
}

}  // namespace

LayerProfile bytes_of_layers(const TrainingGraph& training, const std::vector<int32_t>& layer_of,
                             int64_t samples) {
  const Graph& graph = training.graph;
  const size_t layers = static_cast<size_t>(layer_of.back()) + 1;
  LayerProfile profile;
  for (auto* list : {&profile.weights, &profile.buffers, &profile.optimizer})
    list->assign(layers, 0);
  profile.host_update.assign(layers, 0);
  const int states = optimizer_state_count(training.options.optimizer);
  std::set<TensorId> stored, updated;
  for (const auto& [reader, id] : state_of_layers(training, layer_of)) {
    const Tensor& tensor = graph[id];
    const auto layer = static_cast<size_t>(reader);
    if (tensor.role == TensorRole::Buffer) profile.buffers[layer] += bytes_of(graph, id);
    if (tensor.role != TensorRole::Weight) continue;
    profile.weights[layer] += bytes_of(graph, id);
    if (!stored.insert(id).second) profile.tied += bytes_of(graph, id);
    if (!tensor.trainable || !updated.insert(id).second) continue;
    const bool master = training.options.master_weights && tensor.type.dtype != DType::F32;
    profile.optimizer[layer] += element_count(tensor.type.shape) * 4 * (states + (master ? 1 : 0));
  }
  profile.input = input_bytes(training, layer_of, layers);
  for (int64_t& bytes : profile.input) bytes = (bytes + samples - 1) / samples;
  for (PassProfile* pass : {&profile.forward, &profile.backward})
    for (int64_t size : {int64_t{1}, samples}) {
      if (!pass->sizes.empty() && pass->sizes.back() == size) continue;
      pass->sizes.push_back(size);
      pass->at_size.push_back({std::vector<double>(layers, 0), std::vector<int64_t>(layers, 0)});
    }
  return profile;
}

LayerProfile chain_of_network(const Graph& network, const TrainingOptions& training,
                              const Machine& machine, const CostModel& cost, int64_t most) {
  const BatchAxes batch = find_batch(network);
  if (!batch.obstacle.empty())
    fail_unsupported("{}: the batch cannot be cut: {}", network.name, batch.obstacle);
  LayerProfile profile;
  for (int64_t size = 1; size <= std::min(batch.samples, most); ++size) {
    if (batch.samples % size != 0) continue;
    const SizedChain chain(cut_batch(network, batch, batch.samples / size), training, machine,
                           cost);
    if (chain.layers() < 2)
      fail_unsupported("{}: no place to cut the network into layers", network.name);
    if (profile.weights.empty()) {
      profile = chain.weigh(size);
      profile.source = cost.provenance();
    }
    chain.time(profile, size);
  }
  return profile;
}

}  // namespace windlass
