#include <fmt/format.h>

#include "windlass/export/exporters.h"

namespace windlass {
namespace {

// "Ettt|ttt|tttL": a letter a layer, a bar between stages.
std::string pipeline_layout(const TargetSettings& to) {
  std::string layout = "E";
  for (size_t s = 0; s < to.stage_layers.size(); ++s) {
    if (s > 0) layout += '|';
    layout.append(static_cast<size_t>(to.stage_layers[s]), 't');
  }
  return layout + "L";
}

}  // namespace

ExportedText megatron_settings(const TargetSettings& to) {
  ExportedText made;
  std::string& text = made.text;
  const auto add = [&](std::string_view line) { text.append(line).append("\n"); };
  add(fmt::format("--tensor-model-parallel-size {}", to.tp));
  add(fmt::format("--pipeline-model-parallel-size {}", to.pp));
  add(fmt::format("--context-parallel-size {}", to.cp));
  if (to.cp > 1) add("--cp-comm-type all_gather");
  if (to.ep > 1) {
    add(fmt::format("--expert-model-parallel-size {}", to.ep));
    add("--moe-token-dispatcher-type alltoall");
  }
  if (to.sequence) add("--sequence-parallel");
  add(fmt::format("--micro-batch-size {}", to.micro));
  add(fmt::format("--global-batch-size {}", to.batch));
  if (to.pp > 1) add(fmt::format("--pipeline-model-parallel-layout {}", pipeline_layout(to)));
  if (to.recompute == RecomputePolicy::Selective) add("--recompute-granularity selective");
  if (to.recompute == RecomputePolicy::Full) {
    add("--recompute-granularity full");
    add("--recompute-method uniform");
    add("--recompute-num-layers 1");
  }
  if (to.zero == 1) add("--use-distributed-optimizer");
  if (to.zero >= 2) {
    add("--use-megatron-fsdp");
    add(fmt::format("--data-parallel-sharding-strategy {}",
                    to.zero == 2 ? "optim_grads" : "optim_grads_params"));
  }
  add("--overlap-grad-reduce");
  if (to.zero > 0) add("--overlap-param-gather");
  if (to.host_states > 0) {
    add("--optimizer-cpu-offload");
    add(fmt::format("--optimizer-offload-fraction {:.3g}", to.host_states));
    add("--use-precision-aware-optimizer");
  }
  if (to.dtype == DType::BF16) add("--bf16");
  if (to.dtype == DType::F16) add("--fp16");
  const bool adam = to.optimizer == OptimizerKind::Adam || to.optimizer == OptimizerKind::AdamW;
  add(fmt::format("--optimizer {}", adam ? "adam" : "sgd"));
  if (to.optimizer == OptimizerKind::Adam) add("--weight-decay 0");
  add(fmt::format("--clip-grad {}", to.clip_norm));
  made.notes.push_back(
      fmt::format("run on {} devices; the model's own arguments (--num-layers {}, "
                  "--hidden-size, ...) are yours",
                  to.devices(), to.layers));
  return made;
}

}  // namespace windlass
