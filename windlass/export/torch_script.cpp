#include "windlass/export/torch_script.h"

#include <algorithm>
#include <cctype>

#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/export/torch_modules.h"
#include "windlass/export/torch_names.h"

namespace windlass {

// What does not depend on the model: windlass/export/script_*.py, carried by cmake/Export.cmake.
std::string_view torch_script_frame();
std::string_view torch_script_replicas();  // all weights in each replica
std::string_view torch_script_shards();    // weights shared out

namespace {

// As a name of its own, not as a member of something.
bool mentions(std::string_view text, std::string_view name) {
  const auto of_a_name = [](char c) {
    return c == '_' || c == '.' || std::isalnum(static_cast<unsigned char>(c));
  };
  for (size_t at = text.find(name); at != std::string_view::npos; at = text.find(name, at + 1)) {
    const size_t end = at + name.size();
    if ((at == 0 || !of_a_name(text[at - 1])) && (end == text.size() || !of_a_name(text[end])))
      return true;
  }
  return false;
}

// The frame has helpers first, then what reads files, and the loop last; the modules stand between.
size_t loop_begin() { return torch_script_frame().find("\n\ndef main():"); }
std::string loop() { return std::string(torch_script_frame().substr(loop_begin())); }

// Of the helpers those that `code`, or a helper before, calls.
std::string helpers(const std::string& code) {
  const std::string_view all = torch_script_frame();
  const size_t readers = all.find("TYPES = ");
  std::string text;
  for (size_t begin = all.find("def "); begin < readers;) {
    const size_t end = std::min(readers, all.find("\n\n\ndef ", begin) + 3);
    const std::string_view helper = all.substr(begin, end - begin);
    const std::string_view name = helper.substr(4, helper.find('(') - 4);
    if (mentions(code, name) || mentions(text, name)) text += helper;
    begin = end;
  }
  return text + std::string(all.substr(readers, loop_begin() - readers));
}

std::string head(const std::string& source, const TargetSettings& to,
                 const std::vector<std::string>& data, const std::string& code) {
  std::string inputs;
  for (const std::string& name : data) inputs += (inputs.empty() ? "" : ", ") + python_text(name);
  const bool adam = to.optimizer == OptimizerKind::Adam;
  const bool adamw = to.optimizer == OptimizerKind::AdamW;
  const std::string name = adam ? "Adam" : adamw ? "AdamW" : "SGD";
  const std::string options = adamw  ? ", eps=1e-8, weight_decay=0"
                              : adam ? ", eps=1e-8"
                              : to.optimizer == OptimizerKind::Momentum ? ", momentum=0.9"
                                                                        : "";
  const bool states = to.zero == 1 && to.dp > 1;
  const std::string optimizer =
      states ? fmt::format("ZeroRedundancyOptimizer(parameters, torch.optim.{}, lr=lr{})", name,
                           options)
             : fmt::format("torch.optim.{}(parameters, lr=lr{})", name, options);
  std::string imports;
  if (mentions(code, "saved_tensors_hooks"))
    imports += "from torch.autograd.graph import saved_tensors_hooks\n";
  if (states) imports += "from torch.distributed.optim import ZeroRedundancyOptimizer\n";
  if (!to.shards_weights()) imports += "from torch.nn.parallel import DistributedDataParallel\n";
  std::string constants = fmt::format(
      "MODEL = {}\nBATCH = {}  # samples a step\nREPLICAS = {}\nMICRO_BATCH = {}\n"
      "ACCUMULATION = {}\nCLIP_NORM = {}  # 0: not clipped\nINPUTS = [{}]\n",
      python_text(source), to.batch, to.dp, to.micro, to.accumulation, to.clip_norm, inputs);
  if (to.shards_weights())
    constants +=
        fmt::format("ZERO = {}\nON_HOST = {}  # weights, gradients and the optimizer's state\n",
                    to.host_weights ? 3 : to.zero, to.host_weights ? "True" : "False");
  return fmt::format(
      "#!/usr/bin/env python3\n\"\"\"A training step as windlass planned it.\"\"\"\n\n"
      "import argparse\nimport contextlib\nimport json\nimport math\nimport os\nimport "
      "struct\nimport sys\n\n"
      "import torch\nimport torch.distributed.nn\nimport torch.nn.functional as F\nfrom torch "
      "import nn\n"
      "{}from torch.utils.checkpoint import checkpoint\n\n{}"
      "RANK = int(os.environ.get(\"RANK\", 0))\n"
      "DEVICE = torch.device(\"cuda\", int(os.environ.get(\"LOCAL_RANK\", 0))) if "
      "torch.cuda.is_available() else torch.device(\"cpu\")\n\n\n"
      "def make_optimizer(parameters, lr):\n    return {}\n\n\n",
      imports, constants, optimizer);
}

}  // namespace

TargetRules torch_script_rules() {
  return {.name = "PyTorch",
          .target = "pytorch",
          .tensor = false,
          .pipeline = false,
          .interleave = false,
          .part_of_states = false,
          .host_states_from = 2,
          .by_block = true,
          .host_weights_from = 2,
          .host_together = true,
          .host_alone = true};
}

ExportedText torch_script(const ExportSubject& subject, const TargetChoice& choice) {
  if (subject.without_slots != nullptr) {
    const PreparedStep step = prepare_step(*subject.without_slots,
                                           spec_of_settings(choice.settings, torch_script_rules()),
                                           subject.machine, subject.plan.model.training);
    return torch_script({.plan = subject.plan,
                         .network = *subject.without_slots,
                         .training = step.training,
                         .strategy = step.strategy,
                         .machine = subject.machine,
                         .cost = subject.cost,
                         .step_time = subject.step_time},
                        choice);
  }
  ExportedText made;
  const TargetSettings& to = choice.settings;
  const TorchModules modules = torch_modules(subject, to);
  std::string code =
      modules.code + "\n\n" +
      std::string(to.shards_weights() ? torch_script_shards() : torch_script_replicas());
  if (code.ends_with('\n')) code.pop_back();
  code = helpers(code) + code + "\n";
  made.text = head(subject.plan.model.source, to, modules.inputs, code) + code + loop();
  const int64_t replicas = choice.settings.dp;
  made.notes.push_back(replicas > 1 ? fmt::format("run: torchrun --nproc-per-node {} SCRIPT --data "
                                                  "FILE.safetensors",
                                                  replicas)
                                    : "run: python3 SCRIPT --data FILE.safetensors");
  const auto has = [&](OpKind kind) {
    return std::ranges::any_of(subject.network.ops, [&](const Op& op) { return op.kind == kind; });
  };
  if (to.shards_weights())
    made.notes.push_back(
        "weights shared out or on the host: fetching them and summing gradients do not overlap "
        "with computing, "
        "as "
        "they do in the simulator");
  const bool frozen = std::ranges::any_of(subject.network.tensors, [](const Tensor& tensor) {
    return tensor.role == TensorRole::Weight && !tensor.trainable;
  });
  if (to.shards_weights() && frozen)
    made.notes.push_back("weights that are not trained are held whole by every replica");
  if (has(OpKind::CrossEntropy) && replicas * choice.settings.accumulation > 1)
    made.notes.push_back(
        "labels that are left out (ignore_index): the script divides by those that count in each "
        "micro-batch, windlass by those of the whole batch");
  if (has(OpKind::BatchNorm) && made.text.find("\"recompute\")\n") != std::string::npos)
    made.notes.push_back(
        "batch norm: running statistics move twice a step in blocks that are computed again; "
        "losses "
        "do not depend on them");
  return made;
}

}  // namespace windlass
