#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/export/exporters.h"

namespace windlass {

using nlohmann::ordered_json;

// Micro-batch and accumulation only: the whole batch follows from them and the replicas.
ExportedText deepspeed_settings(const TargetSettings& to) {
  ExportedText made;
  ordered_json json = {{"train_micro_batch_size_per_gpu", to.micro},
                       {"gradient_accumulation_steps", to.accumulation},
                       {"gradient_clipping", to.clip_norm}};
  const bool adam = to.optimizer == OptimizerKind::Adam || to.optimizer == OptimizerKind::AdamW;
  if (adam) {
    json["optimizer"] = {{"type", "Adam"},
                         {"params",
                          {{"lr", 0.001},
                           {"betas", {0.9, 0.999}},
                           {"eps", 1e-8},
                           {"weight_decay", 0},
                           {"adam_w_mode", to.optimizer == OptimizerKind::AdamW}}}};
    made.notes.push_back("set lr and weight_decay: a plan does not have them");
  } else {
    json["zero_allow_untested_optimizer"] = true;
    made.notes.push_back("pass torch.optim.SGD to deepspeed.initialize(): it has none of its own");
  }
  if (to.dtype == DType::BF16) json["bf16"] = {{"enabled", true}};
  if (to.dtype == DType::F16) json["fp16"] = {{"enabled", true}, {"loss_scale", 0}};
  auto& zero = json["zero_optimization"] = {{"stage", to.zero}};
  if (to.zero > 0) {
    zero["contiguous_gradients"] = true;
    zero["overlap_comm"] = true;
  }
  if (to.host_states > 0) {
    zero["offload_optimizer"] = {{"device", "cpu"}, {"pin_memory", true}};
    if (!adam) json["zero_force_ds_cpu_optimizer"] = false;
  }
  if (to.host_weights) zero["offload_param"] = {{"device", "cpu"}, {"pin_memory", true}};
  if (to.tp > 1) {
    json["tensor_parallel"] = {{"autotp_size", to.tp}};
    made.notes.push_back(
        "tensor parallel: give deepspeed.initialize() an mpu, so that replicas are "
        "counted without it");
  }
  if (to.pp > 1) {
    std::string stages;
    for (int64_t layers : to.stage_layers)
      stages += (stages.empty() ? "" : ", ") + std::to_string(layers);
    made.notes.push_back(fmt::format(
        "pipeline: build the model as PipelineModule(num_stages={}); the plan's stages have {} "
        "layers",
        to.pp, stages));
  }
  if (to.recompute != RecomputePolicy::None) {
    json["activation_checkpointing"] = {{"partition_activations", false},
                                        {"cpu_checkpointing", false},
                                        {"contiguous_memory_optimization", false},
                                        {"number_checkpoints", to.layers}};
    made.notes.push_back(
        "recompute: call deepspeed.checkpointing.configure() and wrap each of the layers in "
        "deepspeed.checkpointing.checkpoint()");
  }
  if (to.devices() > 1)
    made.notes.push_back(
        fmt::format("run on {} devices: micro-batch {} x accumulation {} x {} "
                    "replicas = {} samples a step",
                    to.devices(), to.micro, to.accumulation, to.dp, to.batch));
  made.text = json.dump(2) + "\n";
  return made;
}

}  // namespace windlass
