#include "windlass/runtime/not_finite.h"

#include <algorithm>
#include <cmath>

#include <ATen/ops/isfinite.h>
#include <ATen/ops/isnan.h>
#include <fmt/format.h>

#include "windlass/graph/op_info.h"
#include "windlass/runtime/forward_pass.h"

namespace windlass {
namespace {

// The first element that `bad` marks.
NotFinite first_of(TensorId id, const at::Tensor& tensor, const at::Tensor& bad) {
  const int64_t place = bad.flatten().to(at::kByte).argmax().item().toLong();
  return {
      .tensor = id, .value = tensor.flatten().select(0, place).item().toDouble(), .place = place};
}

}  // namespace

std::optional<NotFinite> find_not_finite(
    const TrainingGraph& training, Executor& executor,
    const std::function<void(TensorId, std::span<std::byte>)>& load,
    const std::vector<double>& mean_counts) {
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const Graph& graph = training.graph;
  std::vector<bool> infinite(graph.tensors.size()), meant(graph.tensors.size());
  std::optional<NotFinite> nan, infinity;
  ForwardPass(training, executor, load, mean_counts, ForwardMode::Train)
      .run([&](TensorId id, const at::Tensor& tensor, const Op& op) {
        if (!is_float(graph[id].type.dtype) || tensor.numel() == 0) return true;
        const Tensor& stored = graph[id];
        const bool made = stored.producer.valid();
        const at::Tensor nans = at::isnan(tensor);
        if (nans.any().item().toBool()) {
          nan = first_of(id, tensor, nans);
          for (TensorId input : op.inputs)
            if (made && input.valid() && infinite[input.index()]) nan->from = input;
          return false;
        }
        const at::Tensor bad = at::isfinite(tensor).logical_not();
        if (!bad.any().item().toBool()) return true;
        infinite[id.index()] = true;
        meant[id.index()] =
            made
                ? std::any_of(op.inputs.begin(), op.inputs.end(),
                              [&](TensorId input) { return input.valid() && meant[input.index()]; })
                : stored.role == TensorRole::Constant || stored.role == TensorRole::Buffer;
        if (!infinity && !meant[id.index()]) infinity = first_of(id, tensor, bad);
        return true;
      });
  return infinity ? infinity : nan;
}

std::string describe(const Graph& graph, const NotFinite& found, int64_t step) {
  constexpr std::string_view kAdvice =
      "lower the learning rate, clip gradients, or go on from the last checkpoint";
  const Tensor& tensor = graph[found.tensor];
  const std::string what =
      fmt::format("\"{}\" {} holds {} at element {}", tensor.name, format_type(tensor.type),
                  std::isnan(found.value) ? "nan"
                  : found.value > 0       ? "inf"
                                          : "-inf",
                  found.place);
  switch (tensor.role) {
    case TensorRole::Input:
    case TensorRole::Label: return fmt::format("input {}: the data are at fault", what);
    case TensorRole::Buffer:
    case TensorRole::Constant: return fmt::format("buffer {}, before anything was computed", what);
    case TensorRole::Weight:
      if (step == 1)
        return fmt::format(
            "weight {}, before training began: either the file is damaged, or it is no weight "
            "(--freeze '{}')",
            what, tensor.name);
      return fmt::format("weight {} since the update of step {}: {}", what, step - 1, kAdvice);
    default: break;
  }
  const Op& op = graph[tensor.producer];
  std::string text = fmt::format("the first tensor that is not finite is {}, made by {} \"{}\"",
                                 what, op_info(op.kind).name, op.name);
  if (found.from.valid())
    text += fmt::format(" of \"{}\", which holds infinities", graph[found.from].name);
  else
    text += " of finite operands";
  if (step > 1) text += fmt::format(": {}", kAdvice);
  return text;
}

}  // namespace windlass
