// Marks spread along the loops of the ops until nothing changes: forward from the data, and
// backward to operands that must have a batch axis because another operand has (random masks,
// expanded constants). Linear in practice: each tensor is marked once.

#include "windlass/graph/batch.h"

#include <algorithm>
#include <numeric>
#include <optional>

#include "windlass/base/error.h"
#include "windlass/graph/from_data.h"
#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

class BatchFinder {
 public:
  explicit BatchFinder(const Graph& graph) : graph_(graph) {
    result_.axis.assign(graph.tensors.size(), -1);
    result_.loop.assign(graph.ops.size(), -1);
    for (const Op& op : graph.ops) nests_.push_back(loops_of(graph, op));
  }

  BatchAxes run() {
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const Tensor& tensor = graph_.tensors[t];
      const bool data = tensor.role == TensorRole::Input || tensor.role == TensorRole::Label;
      if (!data || tensor.type.shape.empty()) continue;
      result_.axis[t] = 0;
      const int64_t size = tensor.type.shape[0];
      result_.samples = result_.samples == 0 ? size : std::gcd(result_.samples, size);
    }
    for (bool changed = true; changed;) {
      changed = false;
      for (size_t i = 0; i < graph_.ops.size(); ++i) changed |= visit(i, false);
      for (size_t i = graph_.ops.size(); i-- > 0;) changed |= visit(i, true);
    }
    find_obstacle();
    return std::move(result_);
  }

 private:
  int32_t loop_at(const std::vector<OperandMap>& maps, size_t operand, TensorId id) const {
    if (!id.valid() || operand >= maps.size()) return -1;
    const int32_t axis = result_.axis[id.index()];
    if (axis < 0 || static_cast<size_t>(axis) >= maps[operand].size()) return -1;
    return maps[operand][static_cast<size_t>(axis)].loop;
  }

  int32_t find_loop(const Op& op, const LoopNest& nest) const {
    for (size_t k = 0; k < op.inputs.size(); ++k)
      if (const int32_t loop = loop_at(nest.inputs, k, op.inputs[k]); loop >= 0) return loop;
    for (size_t k = 0; k < op.outputs.size(); ++k)
      if (const int32_t loop = loop_at(nest.outputs, k, op.outputs[k]); loop >= 0) return loop;
    return -1;
  }

  // Marks the axes that follow `loop` in the operands that have none yet.
  bool mark(const std::vector<TensorId>& ids, const std::vector<OperandMap>& maps, int32_t loop,
            bool inputs) {
    bool changed = false;
    for (size_t k = 0; k < ids.size(); ++k) {
      if (!ids[k].valid() || k >= maps.size() || result_.axis[ids[k].index()] >= 0) continue;
      const Tensor& tensor = graph_[ids[k]];
      const bool fixed = tensor.role == TensorRole::Weight || tensor.role == TensorRole::Buffer;
      if (inputs && fixed) continue;
      for (size_t a = 0; a < maps[k].size(); ++a) {
        if (maps[k][a].loop != loop || tensor.type.shape[a] == 1) continue;
        result_.axis[ids[k].index()] = static_cast<int32_t>(a);
        changed = true;
        break;
      }
    }
    return changed;
  }

  bool visit(size_t i, bool backward) {
    const Op& op = graph_.ops[i];
    if (result_.loop[i] < 0) result_.loop[i] = find_loop(op, nests_[i]);
    const int32_t loop = result_.loop[i];
    if (loop < 0) return false;
    return backward ? mark(op.inputs, nests_[i].inputs, loop, true)
                    : mark(op.outputs, nests_[i].outputs, loop, false);
  }

  // Whether an op that follows the samples leaves each where it is: the first tenth of a batch
  // makes the first tenth of the result. Slices, shifts and joins of samples do not.
  bool keeps_places(const Op& op, const LoopNest& nest, int32_t loop) const {
    const int64_t size = nest.loops[static_cast<size_t>(loop)].size;
    const auto kept = [&](const std::vector<TensorId>& ids, const std::vector<OperandMap>& maps) {
      for (size_t k = 0; k < ids.size() && k < maps.size(); ++k) {
        if (!ids[k].valid() || loop_at(maps, k, ids[k]) != loop) continue;
        const auto axis = static_cast<size_t>(result_.axis[ids[k].index()]);
        const AxisMap& map = maps[k][axis];
        if (map.offset != 0 || map.blocks != 1 || map.window != map.stride ||
            map.stride * size != graph_[ids[k]].type.shape[axis])
          return false;
      }
      return true;
    };
    return kept(op.inputs, nest.inputs) && kept(op.outputs, nest.outputs);
  }

  // Whether an op that reduces over the samples takes their mean, so that the mean over
  // micro-batches is that of the batch.
  static bool takes_mean(const Op& op) {
    if (const auto* reduce = std::get_if<ReduceAttrs>(&op.attrs))
      return reduce->fn == ReduceFn::Mean;
    return op.kind == OpKind::MeanSquaredError || op.kind == OpKind::CrossEntropy;
  }

  // Whether it is known before a step how many labels of a cross-entropy count: they follow from
  // the data, or are places of greatest elements, none of which is left out.
  bool knows_labels(const Op& op) const {
    if (ops_from_data(graph_, op.inputs[1])) return true;
    TensorId id = op.inputs[1];
    while (graph_[id].producer.valid()) {
      const Op& producer = graph_[graph_[id].producer];
      if (producer.kind == OpKind::ArgMax)
        return std::get<CrossEntropyAttrs>(op.attrs).ignore_index < 0;
      if (!op_info(producer.kind).view && producer.kind != OpKind::Cast) return false;
      id = producer.inputs[0];
    }
    return false;
  }

  // Whether a scalar goes into the loss by sums and constant factors only, so that the losses of
  // micro-batches add up to that of the batch: what is a mean over samples stays one.
  bool adds_up(TensorId id) const {
    if (id == graph_.loss) return true;
    bool read = false;
    for (const Op& op : graph_.ops) {
      if (std::ranges::find(op.inputs, id) == op.inputs.end()) continue;
      read = true;
      bool linear = op.kind == OpKind::Cast || op.kind == OpKind::Reshape;
      if (const auto* unary = std::get_if<UnaryAttrs>(&op.attrs))
        linear = unary->fn == UnaryFn::Identity || unary->fn == UnaryFn::Neg ||
                 (unary->fn == UnaryFn::Affine && unary->beta == 0);
      if (const auto* binary = std::get_if<BinaryAttrs>(&op.attrs)) {
        linear = binary->fn == BinaryFn::Add || binary->fn == BinaryFn::Sub;
        const bool factor = binary->fn == BinaryFn::Mul || binary->fn == BinaryFn::Div;
        if (factor && op.inputs[0] == id && graph_[op.inputs[1]].constant >= 0) linear = true;
      }
      if (!linear || !adds_up(op.outputs[0])) return false;
    }
    return read;
  }

  bool reduces_samples(OpId id) const {
    const int32_t loop = result_.loop[id.index()];
    return loop >= 0 &&
           nests_[id.index()].loops[static_cast<size_t>(loop)].role == LoopRole::Reduced;
  }
  bool adds_samples(OpId id) const {
    const auto* reduce = std::get_if<ReduceAttrs>(&graph_[id].attrs);
    return reduces_samples(id) && reduce != nullptr && reduce->fn == ReduceFn::Sum;
  }

  // A number of data alone, for which sums over the samples are taken.
  bool is_total(TensorId id) const {
    if (element_count(graph_.type_of(id).shape) != 1 || result_.axis[id.index()] >= 0) return false;
    const std::optional<std::vector<OpId>> ops = ops_from_data(graph_, id);
    const auto adds = [&](OpId op) { return adds_samples(op); };
    const auto fits = [&](OpId op) { return adds_samples(op) || !reduces_samples(op); };
    return ops && std::ranges::any_of(*ops, adds) && std::ranges::all_of(*ops, fits);
  }

  // Whether an op multiplies its first operand by a constant.
  bool scales(const Op& op) const {
    if (op.kind == OpKind::Cast || op.kind == OpKind::Reshape) return true;
    if (const auto* unary = std::get_if<UnaryAttrs>(&op.attrs))
      return unary->fn == UnaryFn::Identity || unary->fn == UnaryFn::Neg ||
             (unary->fn == UnaryFn::Affine && unary->beta == 0);
    const auto* binary = std::get_if<BinaryAttrs>(&op.attrs);
    return binary != nullptr && (binary->fn == BinaryFn::Mul || binary->fn == BinaryFn::Div) &&
           graph_[op.inputs[1]].constant >= 0;
  }

  // A sum over the samples, or a multiple of one.
  bool is_sum(TensorId id) const {
    const OpId producer = graph_[id].producer;
    if (!producer.valid()) return false;
    return adds_samples(producer) ||
           (scales(graph_[producer]) && is_sum(graph_[producer].inputs[0]));
  }

  // Whether an op divides a sum over the samples by a total, on the way to the loss.
  bool divides(const Op& op) const {
    const auto* binary = std::get_if<BinaryAttrs>(&op.attrs);
    return binary != nullptr && binary->fn == BinaryFn::Div && op.inputs[0] != op.inputs[1] &&
           is_total(op.inputs[1]) && is_sum(op.inputs[0]) && adds_up(op.outputs[0]);
  }

  // Whether all that is made of a tensor ends in such divisions: as sums (side 0), as totals (1).
  bool goes_into_divisions(TensorId id, size_t side) const {
    if (id == graph_.loss) return false;
    bool read = false;
    for (const Op& op : graph_.ops) {
      if (std::ranges::find(op.inputs, id) == op.inputs.end()) continue;
      read = true;
      if (divides(op) && op.inputs[side] == id) continue;
      const bool on_the_way =
          side == 1 ? ops_from_data(graph_, op.outputs[0]).has_value() : scales(op);
      if (!on_the_way || !goes_into_divisions(op.outputs[0], side)) return false;
    }
    return read;
  }

  // Of views the op that makes what they show.
  void note_divisor(TensorId total) {
    OpId producer = graph_[total].producer;
    while (op_info(graph_[producer].kind).view)
      producer = graph_[graph_[producer].inputs[0]].producer;
    if (std::ranges::find(result_.divisors, producer) == result_.divisors.end())
      result_.divisors.push_back(producer);
  }

  void find_obstacle() {
    if (result_.samples <= 1) {
      result_.obstacle = "the batch is a single sample";
      return;
    }
    for (size_t i = 0; i < graph_.ops.size() && result_.obstacle.empty(); ++i) {
      const Op& op = graph_.ops[i];
      const int32_t loop = result_.loop[i];
      for (size_t k = 0; k < op.inputs.size(); ++k) {
        const TensorId id = op.inputs[k];
        if (!id.valid() || result_.axis[id.index()] < 0) continue;
        if (loop_at(nests_[i].inputs, k, id) == loop && loop >= 0) continue;
        result_.obstacle = fmt::format("{} \"{}\" reads the samples of \"{}\" as a whole",
                                       op_info(op.kind).name, op.name, graph_[id].name);
        return;
      }
      if (loop < 0) continue;
      const LoopDim& dim = nests_[i].loops[static_cast<size_t>(loop)];
      if (adds_samples(OpId(i)) && keeps_places(op, nests_[i], loop) &&
          (goes_into_divisions(op.outputs[0], 0) || goes_into_divisions(op.outputs[0], 1)))
        continue;
      if (dim.role == LoopRole::Coupled || dim.role == LoopRole::Whole)
        result_.obstacle = fmt::format("{} \"{}\" computes over all samples of the batch together",
                                       op_info(op.kind).name, op.name);
      else if (!keeps_places(op, nests_[i], loop))
        result_.obstacle =
            fmt::format("{} \"{}\" puts samples in other places", op_info(op.kind).name, op.name);
      else if (dim.role == LoopRole::Reduced && !adds_up(op.outputs[0]))
        result_.obstacle = fmt::format("{} \"{}\" reduces over the samples before the loss",
                                       op_info(op.kind).name, op.name);
      else if (dim.role == LoopRole::Reduced && !takes_mean(op))
        result_.obstacle = fmt::format(
            "{} \"{}\" takes no mean over the samples, so that the loss is none of the losses of "
            "micro-batches; let the loss be a mean",
            op_info(op.kind).name, op.name);
      else if (op.kind == OpKind::CrossEntropy && !knows_labels(op))
        result_.obstacle = fmt::format(
            "{} \"{}\": the network computes its labels, so that it is not known beforehand how "
            "many "
            "it leaves out",
            op_info(op.kind).name, op.name);
    }
    for (const Op& op : graph_.ops)
      if (result_.obstacle.empty() && divides(op)) note_divisor(op.inputs[1]);
  }

  const Graph& graph_;
  std::vector<LoopNest> nests_;
  BatchAxes result_;
};

// Attributes that repeat the size of an output axis.
void resize_attributes(Op& op, size_t axis, int64_t size) {
  if (auto* shape = std::get_if<ShapeAttrs>(&op.attrs)) shape->shape[axis] = size;
  if (auto* slice = std::get_if<SliceAttrs>(&op.attrs)) slice->size[axis] = size;
  if (auto* random = std::get_if<RandomAttrs>(&op.attrs)) random->shape[axis] = size;
}

// A constant that is repeated for each sample, as the first state of a recurrent layer is, or after
// every `period` of `rows` along the axis. `tensor` has been cut.
void cut_constant(std::vector<double>& values, const Tensor& tensor, size_t axis, int64_t rows,
                  int64_t period) {
  const Shape& shape = tensor.type.shape;
  const auto inner = static_cast<size_t>(
      element_count(Shape(shape.begin() + static_cast<ptrdiff_t>(axis) + 1, shape.end())));
  const size_t all = inner * static_cast<size_t>(rows), each = inner * static_cast<size_t>(period);
  const size_t part = inner * static_cast<size_t>(shape[axis]);
  std::vector<double> kept;
  for (size_t at = 0; at < values.size(); at += all) {
    for (size_t i = each; i < all; ++i)
      if (values[at + i] != values[at + i % each])
        fail_input("the batch cannot be cut: the constant \"{}\" differs from sample to sample",
                   tensor.name);
    kept.insert(kept.end(), values.begin() + static_cast<ptrdiff_t>(at),
                values.begin() + static_cast<ptrdiff_t>(at + part));
  }
  values = std::move(kept);
}

}  // namespace

BatchAxes find_batch(const Graph& graph) { return BatchFinder(graph).run(); }

Graph cut_batch(const Graph& graph, const BatchAxes& batch, int64_t parts) {
  if (parts == 1) return graph;
  if (parts < 1 || batch.samples % parts != 0)
    fail_input("a batch of {} samples cannot be cut into {} equal micro-batches", batch.samples,
               parts);
  return with_samples(graph, batch, batch.samples / parts);
}

Graph with_samples(const Graph& graph, const BatchAxes& batch, int64_t samples) {
  if (!batch.obstacle.empty()) fail_input("the batch cannot be cut: {}", batch.obstacle);
  Graph cut = graph;
  for (size_t t = 0; t < cut.tensors.size(); ++t) {
    if (batch.axis[t] < 0) continue;
    Tensor& tensor = cut.tensors[t];
    const auto axis = static_cast<size_t>(batch.axis[t]);
    const int64_t rows = tensor.type.shape[axis];
    // Both are sizes of tensors: the product of what is left of one and the other fits.
    const int64_t divisor = std::gcd(rows, batch.samples);
    if (samples % (batch.samples / divisor) != 0)
      fail_input(
          "the batch cannot be cut: \"{}\" has {} rows, of which {} of {} samples make no "
          "whole number",
          tensor.name, rows, samples, batch.samples);
    const auto part = [&](int64_t of) { return rows / divisor * (of / (batch.samples / divisor)); };
    tensor.type.shape[axis] = part(samples);
    if (tensor.constant < 0) continue;
    // Parts of one size may differ inside; parts of several sizes lie anywhere.
    const bool divides = batch.samples % samples == 0;
    const int64_t period = divides ? part(samples) : std::max<int64_t>(1, rows / batch.samples);
    cut_constant(cut.constants[static_cast<size_t>(tensor.constant)].values, tensor, axis, rows,
                 period);
  }
  for (Op& op : cut.ops)
    for (TensorId id : op.outputs)
      if (const int32_t axis = batch.axis[id.index()]; axis >= 0)
        resize_attributes(op, static_cast<size_t>(axis),
                          cut[id].type.shape[static_cast<size_t>(axis)]);
  for (const Op& op : cut.ops) {
    // A rule that disagrees means the samples were not followed rightly: refuse, do not guess.
    const Signature signature = signature_of(cut, op);
    std::vector<TensorType> inferred;
    try {
      inferred = op_info(op.kind).infer(signature);
    } catch (const Error& error) {
      fail_input("the batch cannot be cut: {} \"{}\": {}", op_info(op.kind).name, op.name,
                 error.message());
    }
    for (size_t k = 0; k < op.outputs.size(); ++k)
      if (inferred[k] != cut[op.outputs[k]].type)
        fail_input("the batch cannot be cut: {} \"{}\" would give {}, not {}",
                   op_info(op.kind).name, op.name, format_type(inferred[k]),
                   format_type(cut[op.outputs[k]].type));
  }
  return cut;
}

}  // namespace windlass
