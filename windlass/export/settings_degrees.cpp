#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "windlass/export/settings_chooser.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {

void SettingsChooser::to_replicas(int64_t& degree, std::string_view what) {
  if (degree <= 1) return;
  lose(fmt::format("{} {}", what, degree), "as many replicas more");
  choice_.settings.dp *= degree;
  degree = 1;
  more_replicas_ = true;
}

void SettingsChooser::take_degrees() {
  TargetSettings& to = choice_.settings;
  to.dp = degrees_.dp;
  to.tp = degrees_.tp;
  to.pp = degrees_.pp;
  to.cp = degrees_.cp;
  to.ep = degrees_.ep;
  to.interleave = degrees_.interleave;
  int64_t copies = degrees_.copies;
  if (degrees_.packs) {
    lose("packs of layers that pass through the devices",
         "ZeRO stage 3 with weights and optimizer state on the host, layer by layer");
    to.dp *= to.pp;
    to.pp = 1;
    more_replicas_ = true;
  }
  if (!rules_.context) to_replicas(to.cp, "positions of samples split, cp");
  if (!shares_positions(subject_.network, to.cp))
    to_replicas(to.cp, "positions that are not a multiple of 2 x cp, cp");
  to_replicas(copies, "devices that do the same,");
  if (!rules_.tensor) to_replicas(to.tp, "tensor parallel, tp");
  if (!shares_heads(subject_.network, to.tp))
    to_replicas(to.tp, "heads of attention that are not shared out equally, tp");
  if (!rules_.pipeline) to_replicas(to.pp, "pipeline parallel, pp");
  if (to.pp == 1) to.interleave = 1;
  if (to.interleave > 1 && !rules_.interleave) {
    lose(fmt::format("{} stages on each group of the pipeline", to.interleave), "one each");
    to.interleave = 1;
  }
  take_experts();
  take_sequence();
  if (degrees_.share < 0.995)
    lose(fmt::format("{} % of the arithmetic is split in other ways, op by op",
                     std::max(1.0, std::round(100 * (1 - degrees_.share)))),
         "split like the rest");
  const auto used = static_cast<int64_t>(used_devices(subject_.strategy).size());
  if (to.devices() != used && !degrees_.packs)
    fail_unsupported(
        "the plan's splits do not multiply to its {} devices (dp {}, tp {}, pp {}, cp {}); what "
        "{} can do is planned with --for {}",
        used, to.dp, to.tp, to.pp, to.cp, rules_.name, rules_.target);
}

void SettingsChooser::take_experts() {
  TargetSettings& to = choice_.settings;
  if (to.ep > 1 && !rules_.experts) {
    lose(fmt::format("experts shared out over replicas, ep {}", to.ep),
         "all experts in every replica");
    to.ep = 1;
  }
  if (subject_.without_slots != nullptr)
    lose(fmt::format("slots for the rows of experts, {} times an even share",
                     subject_.plan.model.expert_capacity),
         "as many rows as are chosen, however uneven that is");
}

void SettingsChooser::take_sequence() {
  TargetSettings& to = choice_.settings;
  const bool wanted = degrees_.tp > 1 && !degrees_.packs && splits_norms(subject_, degrees_.cp);
  // Beside tensor parts, experts want it.
  to.sequence = to.tp > 1 && (rules_.always_sequence || (rules_.sequence && (wanted || to.ep > 1)));
  if (to.tp > 1 && wanted != to.sequence && has_norms(subject_))
    lose(wanted ? "norms split along positions over the tensor parts"
                : "norms in full on every tensor part",
         wanted ? "in full on every part" : "split along positions");
}

void SettingsChooser::take_batch() {
  TargetSettings& to = choice_.settings;
  const int64_t fewer = to.batch / to.dp * to.dp;
  const std::string others =
      fewer > 0 ? fmt::format("{} or {}", fewer, fewer + to.dp) : fmt::format("{}", to.dp);
  if (to.batch % to.dp != 0 && more_replicas_) {
    const int64_t wanted = to.dp;
    do {
      --to.dp;
    } while (to.batch % to.dp != 0 || (to.dp % to.ep != 0 && to.dp > 1));
    to.ep = std::min(to.ep, to.dp);
    lose(fmt::format("all {} devices: {} samples cannot be shared out equally over {} replicas",
                     wanted * to.devices() / to.dp, to.batch, wanted),
         fmt::format("{} of them, the others are idle (--batch {} would use all)", to.devices(),
                     others));
  }
  if (to.batch % to.dp != 0)
    fail_unsupported(
        "{} samples cannot be shared out equally over {} replicas, as {} needs; plan with "
        "--batch {}",
        to.batch, to.dp, rules_.name, others);
  if (!degrees_.even)
    lose("replicas have samples in proportion to how fast they are", "as many each");
  const int64_t each = to.batch / to.dp;
  const int64_t wanted =
      std::max<int64_t>(1, to.batch / std::max<int64_t>(1, degrees_.micro_batches * to.dp));
  to.micro = std::min(wanted, each);
  while (each % to.micro != 0) --to.micro;
  to.accumulation = each / to.micro;
  if (to.accumulation != degrees_.micro_batches)
    lose(fmt::format("{} micro-batches", degrees_.micro_batches),
         fmt::format("{} of {} samples a replica", to.accumulation, to.micro));
  if (to.interleave > 1 && to.accumulation % to.pp != 0) {
    lose(fmt::format("{} stages on each group with {} micro-batches", to.interleave,
                     to.accumulation),
         "one stage each: interleaving wants a multiple of the stages");
    to.interleave = 1;
  }
}

void SettingsChooser::take_stages() {
  TargetSettings& to = choice_.settings;
  LayerStages stages = layers_of_stages(subject_, to.pp, to.interleave);
  to.layers = stages.layers;
  to.stage_layers = std::move(stages.of_stage);
  if (to.pp * to.interleave > 1 && stages.layers < to.pp * to.interleave)
    lose(fmt::format("{} stages of a network of {} repeated layer{}", to.pp * to.interleave,
                     stages.layers, stages.layers == 1 ? "" : "s"),
         "cut by hand");
  else if (stages.within)
    lose("stages that end within a layer, or have none", "stages of whole layers");
}

}  // namespace windlass
