#include "windlass/runtime/forward_pass.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "windlass/base/error.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/graph/op_info.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

Attrs attributes_in(ForwardMode mode, const Op& op) {
  Attrs attrs = op.attrs;
  if (auto* norm = std::get_if<BatchNormAttrs>(&attrs); norm && mode == ForwardMode::Use)
    norm->training = false;
  if (auto* attention = std::get_if<AttentionAttrs>(&attrs)) attention->dropout = 0;
  return attrs;
}

// Whether output 0 is input 0 under another shape.
bool passes_on(const Op& op) { return op_info(op.kind).view || op.kind == OpKind::Dropout; }

}  // namespace

ForwardPass::ForwardPass(const TrainingGraph& training, Executor& executor,
                         const std::function<void(TensorId, std::span<std::byte>)>& load,
                         const std::vector<double>& mean_counts, ForwardMode mode,
                         int32_t micro_batch)
    : training_(training),
      micro_batch_(micro_batch),
      graph_(training.of(micro_batch).graph),
      load_(load),
      mean_counts_(mean_counts),
      mode_(mode),
      values_(graph_.tensors.size()),
      root_(graph_.tensors.size()),
      last_(graph_.tensors.size(), 0),
      resting_(graph_.tensors.size()),
      seen_(graph_.tensors.size()) {
  for (PersistentTensor& tensor : executor.persistent())
    if (tensor.kind == BufferKind::Weight &&
        tensor.bytes == byte_size(graph_[tensor.tensor].type).value) {
      if (!tensor.on_device.empty())
        values_[tensor.tensor.index()] = tensor.on_device.data();
      else
        resting_[tensor.tensor.index()] = std::move(tensor.read);
    }
  for (size_t i = 0; i < root_.size(); ++i) root_[i] = TensorId(i);
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = graph_.ops[i];
    for (TensorId id : op.inputs)
      if (id.valid()) last_[root_[id.index()].index()] = i;
    if (passes_on(op)) root_[op.outputs[0].index()] = root_[op.inputs[0].index()];
  }
}

double ForwardPass::run(const Watch& watch) {
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    const Op& op = graph_.ops[i];
    if (!run(OpId(i), watch)) return 0;
    drop_after(i);
    if (!op.outputs.empty() && op.outputs[0] == graph_.loss)
      return view(graph_.loss).item().toDouble();
  }
  ensure(false, "the loss is not computed by the forward pass");
  return 0;
}

at::Tensor ForwardPass::view(TensorId id) const {
  const TensorType& type = graph_[id].type;
  return at::from_blob(values_[root_[id.index()].index()], type.shape, scalar_type(type.dtype));
}

// Inputs come when they are read first; resting weights for one op.
bool ForwardPass::bring(TensorId id, const Op& reader, const Watch& watch) {
  const TensorId root = root_[id.index()];
  if (values_[root.index()] == nullptr) {
    const Tensor& tensor = graph_[root];
    ensure(!tensor.producer.valid(), "a value is read before it is made");
    at::Tensor made = at::empty(tensor.type.shape, scalar_type(tensor.type.dtype));
    const std::span<std::byte> bytes(static_cast<std::byte*>(made.data_ptr()), made.nbytes());
    if (resting_[root.index()])
      resting_[root.index()](bytes);
    else
      load_(root, bytes);
    hold(root, std::move(made));
  }
  if (!watch || seen_[root.index()]) return true;
  seen_[root.index()] = true;
  return watch(root, view(root), reader);
}

void ForwardPass::hold(TensorId root, at::Tensor made) {
  values_[root.index()] = made.data_ptr();
  held_.emplace_back(root, std::move(made));
}

double ForwardPass::mean_count(OpId id) const {
  if (!training_.unequal) return -1;
  const Op& op = graph_[id];
  const LoopNest nest = loops_of(graph_, op);
  PieceFacts facts = piece_of(signature_of(graph_, op), nest, whole_parts(nest)).facts;
  const UnequalMicroBatches& batches = *training_.unequal;
  place_in_batch(training_, id, micro_batch_, batches.count, batches.batch.axis, facts);
  return facts.mean_count;
}

bool ForwardPass::run(OpId id_of_op, const Watch& watch) {
  const Op& op = graph_[id_of_op];
  for (TensorId id : op.inputs)
    if (id.valid() && !bring(id, op, watch)) return false;
  if (passes_on(op)) return true;
  std::vector<at::Tensor> inputs;
  for (TensorId id : op.inputs) inputs.push_back(id.valid() ? view(id) : at::Tensor());
  std::vector<Result> outputs;
  for (TensorId id : op.outputs) outputs.emplace_back(graph_.type_of(id));
  std::vector<Result> auxiliaries(op.auxiliaries.size());
  const Attrs attrs = attributes_in(mode_, op);
  const double count = mean_counts_.empty() ? -1 : mean_counts_[id_of_op.index()];
  const bool divides = op.kind == OpKind::CrossEntropy;
  const PieceFacts facts = {.mean_count = divides ? count : mean_count(id_of_op)};
  ForwardCall call = {.kind = op.kind,
                      .attributes = attrs,
                      .inputs = inputs,
                      .outputs = outputs,
                      .auxiliaries = auxiliaries,
                      .again = true,
                      .facts = facts,
                      .known_result = divides ? -1 : count};
  run_forward(call);
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!op.outputs[i].valid()) continue;
    hold(op.outputs[i], outputs[i].take());
    seen_[op.outputs[i].index()] = true;
    if (watch && !watch(op.outputs[i], view(op.outputs[i]), op)) return false;
  }
  return true;
}

void ForwardPass::drop_after(size_t index) {
  std::erase_if(held_, [&](const auto& entry) {
    const bool resting = resting_[entry.first.index()] != nullptr;
    if (last_[entry.first.index()] > index && !resting) return false;
    if (entry.first == graph_.loss) return false;
    values_[entry.first.index()] = nullptr;
    return true;
  });
}

}  // namespace windlass
