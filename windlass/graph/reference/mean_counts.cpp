#include "windlass/graph/reference/mean_counts.h"

#include <algorithm>
#include <map>

#include "windlass/base/error.h"
#include "windlass/graph/from_data.h"

namespace windlass {
namespace {

// What follows from the data of all micro-batches.
class DataWalk {
 public:
  DataWalk(const std::vector<const Graph*>& graphs, const BatchAxes& batch, int32_t micro_batches,
           const MicroBatchData& data)
      : graphs_(graphs),
        graph_(*graphs[0]),
        batch_(batch),
        micro_batches_(micro_batches),
        data_(data) {}

  // One array for each micro-batch; one alone if it is the same for all, or their sum.
  const std::vector<Array>& value(TensorId id) {
    if (const auto known = values_.find(id); known != values_.end()) return known->second;
    const Tensor& tensor = graph_[id];
    std::vector<Array> made;
    if (tensor.producer.valid()) {
      made = run(tensor.producer, id);
    } else if (tensor.constant >= 0) {
      made.emplace_back(tensor.type.shape,
                        graph_.constants[static_cast<size_t>(tensor.constant)].values);
    } else {
      const bool differs = tensor.role != TensorRole::Buffer && has_samples(id);
      for (int32_t m = 0; m < (differs ? micro_batches_ : 1); ++m) made.push_back(data_(id, m));
    }
    return values_.emplace(id, std::move(made)).first->second;
  }

 private:
  bool has_samples(TensorId id) const {
    return batch_.axis.empty() || batch_.axis[id.index()] >= 0;
  }

  std::vector<Array> run(OpId id, TensorId wanted) {
    const Op& op = graph_[id];
    const auto output =
        static_cast<size_t>(std::ranges::find(op.outputs, wanted) - op.outputs.begin());
    std::vector<const std::vector<Array>*> inputs;
    size_t count = 1;
    for (TensorId input : op.inputs) {
      inputs.push_back(input.valid() ? &value(input) : nullptr);
      if (input.valid()) count = std::max(count, inputs.back()->size());
    }
    std::vector<Array> made;
    for (size_t m = 0; m < count; ++m) {
      std::vector<const Array*> operands;
      for (const std::vector<Array>* input : inputs)
        operands.push_back(input == nullptr ? nullptr : &(*input)[input->size() == 1 ? 0 : m]);
      const Graph& own = *graphs_[m % graphs_.size()];
      made.push_back(
          std::move(interpret_forward(signature_of(own, own[id]), operands).outputs[output]));
    }
    if (count > 1 && !has_samples(wanted)) add_up(made);
    return made;
  }

  // Sums over the samples: find_batch lets no other op forget which sample is which.
  static void add_up(std::vector<Array>& terms) {
    for (size_t m = 1; m < terms.size(); ++m)
      for (size_t i = 0; i < terms[0].values.size(); ++i) terms[0].values[i] += terms[m].values[i];
    terms.resize(1);
  }

  const std::vector<const Graph*>& graphs_;
  const Graph& graph_;  // the first one
  const BatchAxes& batch_;
  const int32_t micro_batches_;
  const MicroBatchData& data_;
  std::map<TensorId, std::vector<Array>> values_;
};

// Elements of a tensor in a micro-batch, on average.
double mean_elements(const std::vector<const Graph*>& graphs, TensorId tensor) {
  int64_t elements = 0;
  for (const Graph* graph : graphs) elements += element_count((*graph)[tensor].type.shape);
  return static_cast<double>(elements) / static_cast<double>(graphs.size());
}

}  // namespace

std::vector<double> mean_counts(const std::vector<const Graph*>& graphs, const BatchAxes& batch,
                                int32_t micro_batches, const MicroBatchData& data) {
  const Graph& graph = *graphs[0];
  std::vector<double> counts(graph.ops.size(), -1);
  DataWalk walk(graphs, batch, micro_batches, data);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    if (op.kind != OpKind::CrossEntropy || op.forward.valid()) continue;
    if (!ops_from_data(graph, op.inputs[1])) {
      if (graphs.size() > 1) counts[i] = mean_elements(graphs, op.inputs[1]);
      continue;
    }
    const std::vector<Array>& labels = walk.value(op.inputs[1]);
    double total = 0;
    for (const Array& part : labels)
      total += counted_labels(std::get<CrossEntropyAttrs>(op.attrs), part);
    counts[i] = total / static_cast<double>(labels.size());
  }
  for (OpId id : batch.divisors) {
    const double total = walk.value(graph[id].outputs[0])[0].values[0];
    if (total < 0)
      fail_input("\"{}\": the loss divides by {}, a sum over the samples: the batch cannot be cut",
                 graph[id].name, total);
    counts[id.index()] = total / micro_batches;
  }
  return counts;
}

}  // namespace windlass
