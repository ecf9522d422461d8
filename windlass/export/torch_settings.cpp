// torchtitan, accelerate and the Trainer of transformers.

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/export/exporters.h"

namespace windlass {

using nlohmann::ordered_json;

ExportedText torchtitan_settings(const TargetSettings& to) {
  ExportedText made;
  // A pipeline cuts the local batch into its micro-batches itself.
  const int64_t local = to.pp > 1 ? to.micro * to.accumulation : to.micro;
  made.text = fmt::format(
      "# torchtitan v0.2.2\n[training]\nlocal_batch_size = {}\nglobal_batch_size = {}\n", local,
      to.batch);
  if (to.tokens) made.text += fmt::format("seq_len = {}\n", *to.tokens);
  if (to.host_weights) made.text += "enable_cpu_offload = true\n";
  if (to.clip_norm > 0) made.text += fmt::format("max_norm = {}\n", to.clip_norm);
  made.text += fmt::format(
      "\n[parallelism]\ndata_parallel_replicate_degree = {}\ndata_parallel_shard_degree = {}\n"
      "tensor_parallel_degree = {}\npipeline_parallel_degree = {}\ncontext_parallel_degree = {}\n",
      to.zero > 0 ? 1 : to.dp, to.zero > 0 ? to.dp : 1, to.tp, to.pp, to.cp);
  if (to.cp > 1) made.text += "context_parallel_rotate_method = \"allgather\"\n";
  if (to.ep > 1) made.text += fmt::format("expert_parallel_degree = {}\n", to.ep);
  if (to.zero > 0)
    made.text +=
        fmt::format("fsdp_reshard_after_forward = \"{}\"\n", to.zero == 3 ? "always" : "never");
  if (to.pp > 1)
    made.text += fmt::format("pipeline_parallel_schedule = \"{}\"\n",
                             to.interleave > 1 ? "Interleaved1F1B" : "1F1B");
  made.text += fmt::format("\n[activation_checkpoint]\nmode = \"{}\"\n",
                           to.recompute == RecomputePolicy::None   ? "none"
                           : to.recompute == RecomputePolicy::Full ? "full"
                                                                   : "selective");
  made.text += fmt::format("\n[optimizer]\nname = \"{}\"\n",
                           to.optimizer == OptimizerKind::AdamW ? "AdamW" : "Adam");
  if (to.optimizer != OptimizerKind::Adam && to.optimizer != OptimizerKind::AdamW)
    made.notes.push_back("torchtitan has Adam and AdamW only: the plan's optimizer is another");
  if (to.pp > 1) {
    std::string stages;
    for (int64_t layers : to.stage_layers)
      stages += (stages.empty() ? "" : ", ") + std::to_string(layers);
    made.notes.push_back(fmt::format(
        "pipeline: micro-batches of {}; stages of {} layers as module_fqns_per_model_part",
        to.micro, stages));
  }
  return made;
}

ExportedText accelerate_settings(const TargetSettings& to) {
  ExportedText made;
  const int64_t processes = to.devices();
  const bool sharded = to.zero > 0 && processes > 1;
  std::string& text = made.text;
  text = fmt::format("compute_environment: LOCAL_MACHINE\ndistributed_type: {}\n", sharded ? "FSDP"
                                                                                   : processes > 1
                                                                                       ? "MULTI_GPU"
                                                                                       : "'NO'");
  text += fmt::format("mixed_precision: '{}'\nnum_machines: 1\nnum_processes: {}\n",
                      to.dtype == DType::BF16  ? "bf16"
                      : to.dtype == DType::F16 ? "fp16"
                                               : "no",
                      processes);
  if (sharded)
    text += fmt::format(
        "fsdp_config:\n  fsdp_version: 2\n  fsdp_reshard_after_forward: {}\n"
        "  fsdp_offload_params: {}\n  fsdp_activation_checkpointing: {}\n"
        "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n",
        to.zero == 3, to.host_weights, to.recompute != RecomputePolicy::None);
  if (to.tp * to.cp > 1)
    text += fmt::format(
        "parallelism_config:\n  parallelism_config_dp_replicate_size: {}\n"
        "  parallelism_config_dp_shard_size: {}\n  parallelism_config_tp_size: {}\n",
        sharded ? 1 : to.dp, sharded ? to.dp : 1, to.tp);
  if (to.cp > 1) text += fmt::format("  parallelism_config_cp_size: {}\n", to.cp);
  made.notes.push_back(
      fmt::format("in code: Accelerator(gradient_accumulation_steps={}), a loader "
                  "with batches of {} samples",
                  to.accumulation, to.micro));
  if (to.clip_norm > 0)
    made.notes.push_back(
        fmt::format("in code: accelerator.clip_grad_norm_(..., {})", to.clip_norm));
  if (to.recompute != RecomputePolicy::None && !sharded)
    made.notes.push_back("in code: model.gradient_checkpointing_enable()");
  return made;
}

ExportedText trainer_settings(const TargetSettings& to) {
  ExportedText made;
  ordered_json json = {{"per_device_train_batch_size", to.micro},
                       {"gradient_accumulation_steps", to.accumulation},
                       {"max_grad_norm", to.clip_norm}};
  if (to.dtype == DType::BF16) json["bf16"] = true;
  if (to.dtype == DType::F16) json["fp16"] = true;
  const bool adam = to.optimizer == OptimizerKind::Adam || to.optimizer == OptimizerKind::AdamW;
  json["optim"] = adam ? "adamw_torch" : "sgd";
  if (to.optimizer == OptimizerKind::Adam) json["weight_decay"] = 0.0;
  if (to.zero > 0) {
    json["fsdp"] = true;
    auto& fsdp = json["fsdp_config"] = {{"version", 2}, {"reshard_after_forward", to.zero == 3}};
    if (to.host_weights) fsdp["cpu_offload"] = true;
    if (to.recompute != RecomputePolicy::None) fsdp["activation_checkpointing"] = true;
  } else if (to.recompute != RecomputePolicy::None) {
    json["gradient_checkpointing"] = true;
    json["gradient_checkpointing_kwargs"] = {{"use_reentrant", false}};
  }
  if (to.tp * to.cp > 1)
    json["parallelism_config"] = {{"tp_size", to.tp},
                                  {"dp_replicate_size", to.zero > 0 ? 1 : to.dp},
                                  {"dp_shard_size", to.zero > 0 ? to.dp : 1}};
  if (to.cp > 1) json["parallelism_config"]["cp_size"] = to.cp;
  made.notes.push_back(
      fmt::format("TrainingArguments(**json.load(...)) on {} processes: micro-batch {} x "
                  "accumulation {} x {} replicas = {} samples a step",
                  to.devices(), to.micro, to.accumulation, to.dp, to.batch));
  made.text = json.dump(2) + "\n";
  return made;
}

const std::vector<SettingsExporter>& settings_exporters() {
  static const std::vector<SettingsExporter> kExporters = {
      {"deepspeed",
       "DeepSpeed's JSON",
       {.name = "DeepSpeed",
        .target = "deepspeed",
        .interleave = false,
        .zero_with_pipeline = 1,
        .part_of_states = false,
        .host_alone = true},
       deepspeed_settings},
      {"megatron",
       "arguments of Megatron-LM",
       {.name = "Megatron-LM",
        .target = "megatron",
        .zero_with_pipeline = 3,
        .selective = true,
        .sequence = true,
        .host_weights = false,
        .host_alone = true,
        .context = 0,
        .experts = 0},
       megatron_settings},
      {"torchtitan",
       "TOML of torchtitan",
       {.name = "torchtitan",
        .target = "torchtitan",
        .zero = {0, 2, 3},
        .always_sequence = true,
        .part_of_states = false,
        .host_states_from = 2,
        .host_weights_from = 2,
        .host_together = true,
        .context = 2,
        .experts = 2},
       torchtitan_settings},
      {"accelerate",
       "YAML of Hugging Face accelerate",
       {.name = "accelerate",
        .target = "accelerate",
        .pipeline = false,
        .interleave = false,
        .zero = {0, 2, 3},
        .part_of_states = false,
        .host_states_from = 2,
        .host_weights_from = 2,
        .host_together = true,
        .context = 2},
       accelerate_settings},
      {"trainer",
       "TrainingArguments of Hugging Face transformers, as JSON",
       {.name = "Trainer",
        .target = "trainer",
        .pipeline = false,
        .interleave = false,
        .zero = {0, 2, 3},
        .part_of_states = false,
        .host_states_from = 2,
        .host_weights_from = 2,
        .host_together = true,
        .context = 2},
       trainer_settings},
  };
  return kExporters;
}

}  // namespace windlass
