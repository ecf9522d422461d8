#include "windlass/graph/micro_batch.h"

#include "windlass/base/error.h"
#include "windlass/graph/even_parts.h"

namespace windlass {
namespace {

// The step of a micro-batch of `samples`, from that of one with more: the same ops, tensors and
// loops. It is not differentiated anew: where an axis becomes 1 gradients may pass ops in other
// ways, and loops may vanish.
class Resizer {
 public:
  // `network` is the forward graph on so many samples, `batch` that of the network before it was
  // cut.
  Resizer(const TrainingGraph& large, const Graph& network, const BatchAxes& batch,
          int64_t large_samples, int64_t samples)
      : large_(large),
        network_(network),
        batch_(batch),
        large_samples_(large_samples),
        samples_(samples),
        made_(large) {}

  TrainingGraph run() {
    for (size_t t = 0; t < network_.tensors.size(); ++t)
      made_.graph.tensors[t].type = network_.tensors[t].type;
    for (size_t c = 0; c < network_.constants.size(); ++c)
      made_.graph.constants[c] = network_.constants[c];
    std::vector<LoopNest> nests;
    for (size_t i = 0; i < large_.forward_ops; ++i) nests.push_back(forward(OpId(i)));
    made_.graph.loops = std::make_shared<const std::vector<LoopNest>>(std::move(nests));
    for (size_t i = 0; i < large_.backward_ops; ++i) backward(OpId(large_.forward_ops + i));
    for (SavedTensor& saved : made_.saved) saved.bytes = byte_size(type(saved.tensor));
    return std::move(made_);
  }

 private:
  TensorType& type(TensorId id) { return made_.graph.tensors[id.index()].type; }

  // Returns the loops of the op.
  LoopNest forward(OpId id) {
    const Op& op = large_.graph[id];
    Op& made = made_.graph.ops[id.index()];
    made.attrs = network_[id].attrs;
    LoopNest nest = loops_of(large_.graph, op);
    std::vector<LoopPart> parts = whole_parts(nest);
    if (const int32_t loop = batch_.loop[id.index()]; loop >= 0) {
      Range& range = parts[static_cast<size_t>(loop)].range;
      range.end = range.end * samples_ / large_samples_;
    }
    const OpPiece piece = piece_of(signature_of(large_.graph, op), nest, parts);
    for (size_t k = 0; k < op.auxiliaries.size(); ++k)
      if (op.auxiliaries[k].valid()) type(op.auxiliaries[k]) = piece.auxiliaries[k];
    bool alike = true;
    for (size_t k = 0; k < op.outputs.size(); ++k)
      alike = alike && piece.outputs[k] == made_.graph.type_of(op.outputs[k]);
    if (!alike)
      fail_input(
          "the batch cannot be cut into micro-batches of {} and {} samples: {} \"{}\" is another "
          "computation on {}; choose a number of micro-batches that divides the batch",
          large_samples_, samples_, op_info(op.kind).name, op.name, samples_);
    for (size_t l = 0; l < parts.size(); ++l) nest.loops[l].size = parts[l].range.size();
    return nest;
  }

  // Gradients have the sizes of what they are gradients of.
  void backward(OpId id) {
    Op& op = made_.graph.ops[id.index()];
    if (!op.forward.valid()) {
      type(op.outputs[0]).shape = type(op.inputs[0]).shape;
      return;
    }
    const Op& forward = made_.graph[op.forward];
    op.attrs = forward.attrs;
    for (size_t k = 0; k < op.outputs.size(); ++k)
      if (op.outputs[k].valid()) type(op.outputs[k]).shape = type(forward.inputs[k]).shape;
  }

  const TrainingGraph& large_;
  const Graph& network_;
  const BatchAxes& batch_;
  const int64_t large_samples_, samples_;
  TrainingGraph made_;
};

// Where the elements that draw random numbers lie in the micro-batch, if some do: all of `whole`.
TensorId drawn_elements(const Graph& graph, const Op& op, Shape& whole) {
  if (op.kind == OpKind::Attention) {
    const Shape& queries = graph[op.inputs[0]].type.shape;
    whole = {queries[0], queries[1], queries[2], graph[op.inputs[1]].type.shape[2]};
    return op.inputs[0];
  }
  if (op.kind != OpKind::Dropout && op.kind != OpKind::Random) return {};
  whole = graph[op.outputs[0]].type.shape;
  return op.outputs[0];
}

void place_random(const TrainingGraph& training, const Op& op, int32_t micro_batch,
                  int64_t micro_batches, const std::vector<int32_t>& sample_axes, Region& region) {
  Shape whole;
  const TensorId drawn = drawn_elements(training.of(micro_batch).graph, op, whole);
  if (!drawn.valid() || whole.empty()) return;
  const int32_t axis = sample_axes.empty() ? 0 : sample_axes[drawn.index()];
  if (axis < 0) return;
  if (region.empty())
    for (int64_t size : whole) region.push_back({size, {0, size}, 1});
  if (!training.unequal) {
    // Micro-batches lie one behind the other along the axis: they are an axis around it.
    region.insert(region.begin() + axis, {micro_batches, {micro_batch, micro_batch + 1}, 1});
    return;
  }
  AxisPart& part = region[static_cast<size_t>(axis)];
  if (part.blocks != 1)
    fail_unsupported("\"{}\": samples of unequal micro-batches are cut in blocks", op.name);
  const Range samples = samples_of(*training.unequal, micro_batch);
  const auto rows = [&](int64_t of) {
    return whole[static_cast<size_t>(axis)] * of / samples.size();
  };
  const int64_t before = rows(samples.begin);
  part = {rows(training.unequal->batch.samples),
          {before + part.range.begin, before + part.range.end}};
}

int64_t count_larger(const TrainingGraph& training, int64_t micro_batches) {
  return training.unequal ? training.unequal->batch.samples % training.unequal->count
                          : micro_batches;
}

// Whether the op takes a mean over samples, among others.
bool means_samples(const TrainingGraph& training, OpId forward) {
  const Op& op = training.graph[forward];
  const auto* reduce = std::get_if<ReduceAttrs>(&op.attrs);
  const bool mean =
      op.kind == OpKind::MeanSquaredError || (reduce != nullptr && reduce->fn == ReduceFn::Mean);
  const int32_t loop = training.unequal->batch.loop[forward.index()];
  return mean && loop >= 0 &&
         loops_of(training.graph, op).loops[static_cast<size_t>(loop)].role == LoopRole::Reduced;
}

}  // namespace

MicroBatch cut_training(const Graph& network, const BatchAxes& batch, int64_t parts,
                        const TrainingOptions& options) {
  if (parts == 1) return {differentiate(network, options), batch};
  if (parts < 1 || parts > batch.samples)
    fail_input("a batch of {} samples cannot be cut into {} micro-batches", batch.samples, parts);
  const int64_t samples = largest_part(batch.samples, parts);
  const Graph part = with_samples(network, batch, samples);
  MicroBatch made = {differentiate(part, options), find_batch(part)};
  if (batch.samples % parts == 0) return made;
  const Graph less = with_samples(network, batch, samples - 1);
  UnequalMicroBatches unequal = {parts, batch,
                                 Resizer(made.training, less, batch, samples, samples - 1).run()};
  made.training.unequal = std::make_shared<const UnequalMicroBatches>(std::move(unequal));
  return made;
}

Range samples_of(const UnequalMicroBatches& batches, int32_t micro_batch) {
  return part_of(batches.batch.samples, batches.count, micro_batch);
}

Bytes saved_bytes(const TrainingGraph& training, size_t saved, int64_t micro_batches) {
  const int64_t larger = count_larger(training, micro_batches);
  Bytes bytes = training.saved[saved].bytes * larger;
  if (training.unequal)
    bytes += training.unequal->smaller.saved[saved].bytes * (micro_batches - larger);
  return bytes;
}

Flops flops_of(const TrainingGraph& training, int64_t micro_batches) {
  const auto each = [](const TrainingGraph& step) {
    const TrainingTotals totals = totals_of(step);
    return (totals.forward.flops() + totals.backward.flops()).value;
  };
  const int64_t larger = count_larger(training, micro_batches);
  double flops = each(training) * static_cast<double>(larger);
  if (training.unequal)
    flops += each(training.unequal->smaller) * static_cast<double>(micro_batches - larger);
  return Flops(flops);
}

std::vector<const Graph*> graphs_of(const TrainingGraph& training) {
  std::vector<const Graph*> graphs;
  const auto count = training.unequal ? static_cast<int32_t>(training.unequal->count) : 1;
  for (int32_t m = 0; m < count; ++m) graphs.push_back(&training.of(m).graph);
  return graphs;
}

void place_in_batch(const TrainingGraph& training, OpId forward, int32_t micro_batch,
                    int64_t micro_batches, const std::vector<int32_t>& sample_axes,
                    PieceFacts& facts) {
  if (micro_batches == 1 || micro_batch < 0) return;
  place_random(training, training.graph[forward], micro_batch, micro_batches, sample_axes,
               facts.random);
  if (!training.unequal || !means_samples(training, forward)) return;
  const auto samples = static_cast<double>(samples_of(*training.unequal, micro_batch).size());
  facts.mean_count *= static_cast<double>(training.unequal->batch.samples) /
                      (static_cast<double>(training.unequal->count) * samples);
}

}  // namespace windlass
