#include "windlass/graph/samples.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"

namespace windlass {
namespace {

class SampleFinder {
 public:
  explicit SampleFinder(const TrainingGraph& training)
      : training_(training), graph_(training.graph) {
    Graph forward = graph_;
    forward.ops.resize(training.forward_ops);
    BatchAxes batch = find_batch(forward);
    if (!batch.obstacle.empty())
      fail_unsupported("{}: the batch cannot be cut: {}", graph_.name, batch.obstacle);
    axes_.samples = batch.samples;
    axes_.axis = std::move(batch.axis);
    axes_.loop = std::move(batch.loop);
    axes_.loop.resize(graph_.ops.size(), -1);
    axes_.kind.assign(graph_.tensors.size(), SampleKind::Fixed);
  }

  SampleAxes run() {
    for (size_t t = 0; t < graph_.tensors.size(); ++t)
      if (axes_.axis[t] >= 0) axes_.kind[t] = SampleKind::Apart;
    for (size_t i = 0; i < training_.forward_ops; ++i) forward(graph_.ops[i], i);
    const size_t end = training_.forward_ops + training_.backward_ops;
    for (size_t i = training_.forward_ops; i < end; ++i) backward(graph_.ops[i], i);
    return std::move(axes_);
  }

 private:
  SampleKind& kind(TensorId id) { return axes_.kind[id.index()]; }

  void forward(const Op& op, size_t i) {
    bool of_samples = axes_.loop[i] >= 0;
    for (TensorId id : op.inputs)
      of_samples = of_samples || (id.valid() && kind(id) != SampleKind::Fixed);
    if (!of_samples) return;
    for (TensorId id : op.outputs)
      if (id.valid() && axes_.axis[id.index()] < 0) kind(id) = SampleKind::Summed;
    check_sum(op, i);
    const LoopNest nest = loops_of(graph_, op);
    for (size_t k = 0; k < op.auxiliaries.size(); ++k) {
      const TensorId id = op.auxiliaries[k];
      const auto found = std::ranges::find(nest.auxiliaries[k], axes_.loop[i], &AxisMap::loop);
      // What lacks the samples is told to every piece: by how many a mean divides.
      if (axes_.loop[i] < 0 || found == nest.auxiliaries[k].end()) continue;
      axes_.axis[id.index()] = static_cast<int32_t>(found - nest.auxiliaries[k].begin());
      kind(id) = SampleKind::Apart;
    }
  }

  // What is no mean over samples would be added to the loss with every part of them.
  void check_sum(const Op& op, size_t i) {
    const auto* binary = std::get_if<BinaryAttrs>(&op.attrs);
    if (axes_.loop[i] >= 0 || binary == nullptr) return;
    if (binary->fn != BinaryFn::Add && binary->fn != BinaryFn::Sub) return;
    for (TensorId id : op.inputs)
      if (kind(id) == SampleKind::Fixed)
        fail_unsupported("{} \"{}\": \"{}\" is part of the loss, but no mean over samples",
                         op_info(op.kind).name, op.name, graph_[id].name);
  }

  // Gradients lie like what they are gradients of; those of what all samples share are sums over
  // them, those of sums are the same for all terms.
  void backward(const Op& op, size_t i) {
    if (!op.forward.valid()) {
      kind(op.outputs[0]) = kind(op.inputs[0]);
      axes_.axis[op.outputs[0].index()] = axes_.axis[op.inputs[0].index()];
      return;
    }
    axes_.loop[i] = axes_.loop[op.forward.index()];
    const Op& forward = graph_[op.forward];
    for (size_t k = 0; k < op.outputs.size(); ++k) {
      if (!op.outputs[k].valid()) continue;
      const TensorId of = forward.inputs[k];
      axes_.axis[op.outputs[k].index()] = axes_.axis[of.index()];
      kind(op.outputs[k]) = kind(of) == SampleKind::Apart    ? SampleKind::Apart
                            : kind(of) == SampleKind::Summed ? SampleKind::Fixed
                                                             : SampleKind::Summed;
    }
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  SampleAxes axes_;
};

}  // namespace

SampleAxes find_samples(const TrainingGraph& training) { return SampleFinder(training).run(); }

void take_samples(const SampleAxes& axes, OpId op, const LoopNest& nest, const Range& samples,
                  std::vector<LoopPart>& parts) {
  const int32_t loop = axes.loop[op.index()];
  if (loop < 0) return;
  Range& range = parts[static_cast<size_t>(loop)].range;
  range = axes.part(nest.loops[static_cast<size_t>(loop)].size, range, samples);
}

}  // namespace windlass
