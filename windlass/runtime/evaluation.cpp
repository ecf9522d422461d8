#include "windlass/runtime/evaluation.h"

#include <cstring>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include "windlass/base/error.h"
#include "windlass/graph/op_info.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/memory/torch_allocator.h"

namespace windlass {
namespace {

// The attributes of an op when nothing is trained.
Attrs attributes_in_use(const Op& op) {
  Attrs attrs = op.attrs;
  if (auto* norm = std::get_if<BatchNormAttrs>(&attrs)) norm->training = false;
  if (auto* attention = std::get_if<AttentionAttrs>(&attrs)) attention->dropout = 0;
  return attrs;
}

// Whether output 0 is input 0 under another shape.
bool passes_on(const Op& op) { return op_info(op.kind).view || op.kind == OpKind::Dropout; }

class ForwardPass {
 public:
  ForwardPass(const TrainingGraph& training, Executor& executor,
              const std::function<void(TensorId, std::span<std::byte>)>& load)
      : training_(training),
        graph_(training.graph),
        load_(load),
        values_(graph_.tensors.size()),
        root_(graph_.tensors.size()),
        last_(graph_.tensors.size(), 0),
        resting_(graph_.tensors.size()) {
    for (const PersistentTensor& tensor : executor.persistent())
      if (tensor.kind == BufferKind::Weight) {
        if (tensor.on_device)
          values_[tensor.tensor.index()] = tensor.bytes.data();
        else
          resting_[tensor.tensor.index()] = tensor.bytes;
      }
    for (size_t i = 0; i < root_.size(); ++i) root_[i] = TensorId(i);
    for (size_t i = 0; i < training.forward_ops; ++i) {
      const Op& op = graph_.ops[i];
      for (TensorId id : op.inputs)
        if (id.valid()) last_[root_[id.index()].index()] = i;
      if (passes_on(op)) root_[op.outputs[0].index()] = root_[op.inputs[0].index()];
    }
  }

  double run() {
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      run(graph_.ops[i], i);
      if (!graph_.ops[i].outputs.empty() && graph_.ops[i].outputs[0] == graph_.loss)
        return view(graph_.loss).item().toDouble();
    }
    ensure(false, "the loss is not computed by the forward pass");
    return 0;
  }

 private:
  at::Tensor view(TensorId id) const {
    const TensorType& type = graph_[id].type;
    return at::from_blob(values_[root_[id.index()].index()], type.shape, scalar_type(type.dtype));
  }

  // Inputs come when they are read first; resting weights for one op.
  void bring(TensorId id) {
    const TensorId root = root_[id.index()];
    if (values_[root.index()] != nullptr) return;
    const Tensor& tensor = graph_[root];
    ensure(!tensor.producer.valid(), "a value is read before it is made");
    at::Tensor made = at::empty(tensor.type.shape, scalar_type(tensor.type.dtype));
    const std::span<std::byte> bytes(static_cast<std::byte*>(made.data_ptr()), made.nbytes());
    if (const std::span<std::byte> rest = resting_[root.index()]; !rest.empty())
      std::memcpy(bytes.data(), rest.data(), bytes.size());
    else
      load_(root, bytes);
    hold(root, std::move(made));
  }

  void hold(TensorId root, at::Tensor made) {
    values_[root.index()] = made.data_ptr();
    held_.emplace_back(root, std::move(made));
  }

  void run(const Op& op, size_t index) {
    for (TensorId id : op.inputs)
      if (id.valid()) bring(id);
    if (!passes_on(op)) {
      std::vector<at::Tensor> inputs;
      for (TensorId id : op.inputs) inputs.push_back(id.valid() ? view(id) : at::Tensor());
      std::vector<Result> outputs;
      for (TensorId id : op.outputs) outputs.emplace_back(graph_.type_of(id));
      std::vector<Result> auxiliaries(op.auxiliaries.size());
      const Attrs attrs = attributes_in_use(op);
      ForwardCall call = {.kind = op.kind,
                          .attributes = attrs,
                          .inputs = inputs,
                          .outputs = outputs,
                          .auxiliaries = auxiliaries,
                          .again = true};
      run_forward(call);
      for (size_t i = 0; i < outputs.size(); ++i)
        if (op.outputs[i].valid()) hold(op.outputs[i], outputs[i].take());
    }
    std::erase_if(held_, [&](const auto& entry) {
      const bool resting = !resting_[entry.first.index()].empty();
      if (last_[entry.first.index()] > index && !resting) return false;
      if (entry.first == graph_.loss) return false;
      values_[entry.first.index()] = nullptr;
      return true;
    });
  }

  const TrainingGraph& training_;
  const Graph& graph_;
  const std::function<void(TensorId, std::span<std::byte>)>& load_;
  std::vector<void*> values_;  // by tensor; of views, that of the root
  std::vector<TensorId> root_;
  std::vector<size_t> last_;  // by root: the op that reads it last
  std::vector<std::span<std::byte>> resting_;
  std::vector<std::pair<TensorId, at::Tensor>> held_;
};

}  // namespace

double evaluate_loss(const TrainingGraph& training, Executor& executor,
                     const std::function<void(TensorId, std::span<std::byte>)>& load) {
  const ArenaScope scope(executor.device_arena());
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return ForwardPass(training, executor, load).run();
}

}  // namespace windlass
