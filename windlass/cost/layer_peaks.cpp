#include "windlass/cost/layer_peaks.h"

#include <algorithm>
#include <map>
#include <set>

#include "windlass/cost/allocation.h"

namespace windlass {
namespace {

// The ops of one layer in the order they run, with what they make and read.
class LayerLiveness {
 public:
  LayerLiveness(const TrainingGraph& training, const std::vector<int32_t>& layer_of,
                const std::vector<TensorId>& roots, const std::vector<int64_t>& workspace)
      : training_(training), roots_(roots), workspace_(workspace) {
    const Graph& graph = training.graph;
    last_reader_.assign(graph.tensors.size(), -1);
    for (size_t i = 0; i < training.forward_ops; ++i)
      for (TensorId id : graph.ops[i].inputs)
        if (id.valid()) {
          int32_t& last = last_reader_[roots[id.index()].index()];
          last = std::max(last, layer_of[i]);
        }
  }

  int64_t forward(int32_t layer, const std::vector<OpId>& ops) {
    begin(layer);
    for (OpId id : ops) run(id);
    return peak(ops.size(), [&](TensorId tensor) {
      return last_reader_[tensor.index()] > layer ? ops.size() : 0;
    });
  }

  int64_t backward(int32_t layer, const std::vector<OpId>& again,
                   const std::vector<OpId>& backward) {
    begin(layer);
    for (OpId id : again) run(id);
    for (OpId id : backward) run(id);
    const size_t end = again.size() + backward.size();
    return peak(end, [&](TensorId tensor) {
      if (passed_back(tensor)) return end;
      return last_reader_[tensor.index()] > layer ? again.size() : 0;
    });
  }

 private:
  void begin(int32_t layer) {
    layer_ = layer;
    made_.clear();
    read_.clear();
    data_ = 0;
    spaces_.clear();
    seen_.clear();
  }

  void run(OpId id) {
    const Op& op = training_.graph[id];
    const size_t at = spaces_.size();
    spaces_.push_back(workspace_[id.index()]);
    for (TensorId input : op.inputs) {
      if (!input.valid()) continue;
      const TensorId root = roots_[input.index()];
      read_[root] = at;
      const Tensor& tensor = training_.graph[root];
      const bool state = tensor.role == TensorRole::Weight || tensor.role == TensorRole::Buffer;
      if (tensor.producer.valid() || state || !seen_.insert(root).second) continue;
      // Data is the input of the first layer; that for the next micro-batch may be there already.
      if (tensor.constant >= 0)
        data_ += size(root);
      else if (layer_ > 0)
        data_ += 2 * size(root);
    }
    for (const auto* list : {&op.outputs, &op.auxiliaries})
      for (TensorId output : *list) {
        if (!output.valid() || training_.graph[output].role == TensorRole::WeightGradient) continue;
        made_[output] = at;
      }
  }

  // Whether the gradient goes on to the layer before.
  bool passed_back(TensorId tensor) const {
    return training_.graph[tensor].role == TensorRole::Gradient && !read_.contains(tensor);
  }

  template <typename Until>
  int64_t peak(size_t end, Until until) const {
    std::vector<int64_t> change(end + 1, 0);
    for (const auto& [tensor, at] : made_) {
      const auto found = read_.find(tensor);
      const size_t last = std::max({at, found == read_.end() ? at : found->second, until(tensor)});
      change[at] += size(tensor);
      if (last + 1 <= end) change[last + 1] -= size(tensor);
    }
    int64_t alive = 0, most = 0;
    for (size_t i = 0; i < end; ++i) {
      alive += change[i];
      most = std::max(most, alive + spaces_[i]);
    }
    return most + data_;
  }

  int64_t size(TensorId tensor) const {
    return allocated(byte_size(training_.graph[tensor].type).value).value;
  }

  const TrainingGraph& training_;
  const std::vector<TensorId>& roots_;
  const std::vector<int64_t>& workspace_;
  std::vector<int32_t> last_reader_;        // by tensor: the last layer that reads it
  std::map<TensorId, size_t> made_, read_;  // by which op, and by which last
  std::set<TensorId> seen_;
  int32_t layer_ = 0;
  int64_t data_ = 0;
  std::vector<int64_t> spaces_;  // by op
};

}  // namespace

LayerPeaks layer_peaks(const TrainingGraph& training, const std::vector<int32_t>& layer_of,
                       const std::vector<int64_t>& workspace) {
  const Graph& graph = training.graph;
  const std::vector<TensorId> roots = storage_roots(graph);
  const auto layers = static_cast<size_t>(layer_of.back()) + 1;
  std::vector<std::vector<OpId>> forward(layers), backward(layers);
  for (size_t i = 0; i < training.forward_ops; ++i)
    if (!op_info(graph.ops[i].kind).view) forward[static_cast<size_t>(layer_of[i])].emplace_back(i);
  size_t at = layers - 1;
  for (size_t i = training.forward_ops; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = graph.ops[i];
    if (op_info(op.kind).view) continue;
    if (op.forward.valid()) at = static_cast<size_t>(layer_of[op.forward.index()]);
    backward[at].emplace_back(i);
  }
  LayerLiveness liveness(training, layer_of, roots, workspace);
  LayerPeaks peaks;
  for (size_t l = 0; l < layers; ++l) {
    const auto layer = static_cast<int32_t>(l);
    peaks.forward.push_back(liveness.forward(layer, forward[l]));
    peaks.backward.push_back(liveness.backward(layer, forward[l], backward[l]));
  }
  return peaks;
}

}  // namespace windlass
