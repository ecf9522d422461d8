#include "windlass/export/settings.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

struct Outcome {
  Seconds step_time;
  Bytes peak;
  bool fits = false;
};

Outcome outcome_of(const SimulatedStep& step) {
  Outcome outcome{step.step_time(), {}, step.result.status == SimStatus::Done};
  for (size_t m = 0; m < step.tasks.memories.size(); ++m)
    if (step.tasks.memories[m].team.valid())
      outcome.peak = std::max(outcome.peak, Bytes(step.whole().peaks[m].bytes));
  return outcome;
}

std::string share(int64_t part, int64_t whole) {
  const double percent =
      100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
  return percent < 1 ? "<1 %" : fmt::format("{:.0f} %", percent);
}

std::string_view policy_words(RecomputePolicy policy) {
  switch (policy) {
    case RecomputePolicy::None: return "nothing is computed again";
    case RecomputePolicy::Selective: return "attention is computed again";
    case RecomputePolicy::Full: return "each block is computed again from its input";
    case RecomputePolicy::Sqrt: return "runs of blocks are computed again";
  }
  return "";
}

// Whether the same is kept. Gathering again what parts hold goes with how ops are split.
bool keep_the_same(const std::vector<MemoryAction>& a, const std::vector<MemoryAction>& b) {
  const auto plain = [](MemoryAction action) {
    return action == MemoryAction::Regather ? MemoryAction::Keep : action;
  };
  return std::ranges::equal(a, b, {}, plain, plain);
}

class Chooser {
 public:
  Chooser(const ExportSubject& subject, const TargetRules& rules)
      : subject_(subject),
        rules_(rules),
        degrees_(degrees_of(subject.training, find_batch(subject.network), subject.strategy,
                            subject.plan.samples)),
        lean_{degrees_.zero, true} {}

  TargetChoice run() {
    TargetSettings& to = choice_.settings;
    to.batch = subject_.plan.samples;
    to.optimizer = subject_.plan.model.training.optimizer;
    to.clip_norm = subject_.plan.model.training.clip_norm;
    to.dtype = subject_.plan.model.dtype.value_or(DType::F32);
    if (const auto& inputs = subject_.network.inputs; !inputs.empty())
      if (const TensorType& type = subject_.network[inputs.front()].type;
          type.shape.size() == 2 && is_integer(type.dtype))
        to.tokens = type.shape[1];
    take_degrees();
    take_batch();
    // Of a plan that treats weights in several ways: the way that is fastest for all of them.
    const std::vector<Lean> all = leans();
    std::optional<TargetChoice> best;
    for (const Lean& lean : all) {
      if (all.size() == 1) break;
      Chooser trial(*this);
      trial.lean_ = lean;
      trial.prices_losses_ = false;
      trial.finish();
      if (best && !is_better(trial.choice_, *best)) continue;
      best = std::move(trial.choice_);
      lean_ = lean;
    }
    finish();
    return std::move(choice_);
  }

 private:
  // A stage of ZeRO for all weights, and whether what the host does for some it does for all.
  struct Lean {
    int zero = 0;
    bool host = true;
  };
  std::vector<Lean> leans() const {
    const auto some = [&](int64_t bytes) { return bytes > 0 && bytes < degrees_.weights; };
    const bool host =
        !degrees_.packs && (some(degrees_.host_updates) || some(degrees_.host_weights));
    std::vector<Lean> list;
    for (int stage = degrees_.zero; stage >= degrees_.zero_least; --stage) {
      list.push_back({stage, true});
      if (host) list.push_back({stage, false});
    }
    return list;
  }
  static bool is_better(const TargetChoice& a, const TargetChoice& b) {
    if (!a.step_time || !b.step_time) return a.step_time.has_value() && !b.step_time;
    if (a.fits != b.fits) return a.fits;
    return a.fits ? *a.step_time < *b.step_time : *a.peak < *b.peak;
  }

  void finish() {
    take_weights();
    take_stages();
    take_activations();
  }

  void lose(std::string what, std::string instead) {
    choice_.lost.push_back({std::move(what), std::move(instead)});
  }

  // The plan with one thing changed.
  template <typename Change>
  void lose(std::string what, std::string instead, Change change) {
    lose(std::move(what), std::move(instead));
    if (subject_.strategy.packs || !prices_losses_) return;
    Strategy changed = subject_.strategy;
    change(changed);
    try {
      const Outcome outcome =
          outcome_of(simulate_step(subject_.training, changed, subject_.machine, subject_.cost));
      choice_.lost.back().step_time = outcome.step_time;
      choice_.lost.back().peak = outcome.peak;
      choice_.lost.back().fits = outcome.fits;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
    }
  }

  // Devices that the target has no other use for: more replicas.
  void to_replicas(int64_t& degree, std::string_view what) {
    if (degree <= 1) return;
    lose(fmt::format("{} {}", what, degree), "as many replicas more");
    choice_.settings.dp *= degree;
    degree = 1;
    more_replicas_ = true;
  }

  void take_degrees() {
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

  void take_experts() {
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

  void take_sequence() {
    TargetSettings& to = choice_.settings;
    const bool wanted = degrees_.tp > 1 && !degrees_.packs && splits_norms(subject_, degrees_.cp);
    // Beside tensor parts, experts want it.
    to.sequence =
        to.tp > 1 && (rules_.always_sequence || (rules_.sequence && (wanted || to.ep > 1)));
    if (to.tp > 1 && wanted != to.sequence)
      lose(wanted ? "norms split along positions over the tensor parts"
                  : "norms in full on every tensor part",
           wanted ? "in full on every part" : "split along positions");
  }

  void take_batch() {
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

  void take_weights() {
    TargetSettings& to = choice_.settings;
    const bool replicas = to.dp * to.cp > 1;
    const int wanted = degrees_.packs ? 3 : replicas ? lean_.zero : 0;
    const int needed =
        std::max({wanted, to.cp > 1 ? *rules_.context : 0, to.ep > 1 ? *rules_.experts : 0});
    const int most = to.pp > 1 ? rules_.zero_with_pipeline : 3;
    to.zero = 0;
    // The least stage that shares as much out; else the highest there is.
    for (int stage : rules_.zero)
      if (stage <= most && (to.zero < needed || stage <= wanted))
        to.zero = std::max(to.zero, stage);
    const auto all_zero = [stage = to.zero](Strategy& strategy) {
      for (Residency& home : strategy.weights) home.zero = static_cast<uint8_t>(stage);
    };
    if (!degrees_.packs && replicas && degrees_.zero != degrees_.zero_least)
      lose(fmt::format("ZeRO stage {} to {}, weight by weight", degrees_.zero_least, degrees_.zero),
           fmt::format("stage {} for all", to.zero), all_zero);
    else if (to.zero != wanted)
      lose(fmt::format("ZeRO stage {}", wanted), fmt::format("stage {}", to.zero), all_zero);
    const double states = degrees_.packs         ? 1
                          : degrees_.weights > 0 ? static_cast<double>(degrees_.host_updates) /
                                                       static_cast<double>(degrees_.weights)
                                                 : 0;
    take_host(states);
  }

  // What the host holds: `states` is the share of the weights that it updates.
  void take_host(double states) {
    TargetSettings& to = choice_.settings;
    const bool weights = degrees_.packs || degrees_.host_weights > 0;
    const auto set = [](bool Residency::*what, bool value) {
      return [what, value](Strategy& strategy) {
        for (Residency& home : strategy.weights) home.*what = value;
      };
    };
    if (!lean_.host) {
      if (states > 0)
        lose(fmt::format("optimizer state of {:.0f} % of the weights on the host", 100 * states),
             "of none of them", set(&Residency::host_update, false));
      if (weights)
        lose(fmt::format("{} of the weights on the host",
                         share(degrees_.host_weights, degrees_.weights)),
             "none of them", set(&Residency::host, false));
      return;
    }
    // A replica alone shares nothing out, whatever the stage is called.
    if (to.dp * to.cp == 1 && rules_.host_alone) {
      const int most = to.pp > 1 ? rules_.zero_with_pipeline : 3;
      if (weights && rules_.host_weights && rules_.host_weights_from <= most)
        to.zero = rules_.host_weights_from;
      else if (states > 0 && rules_.host_states_from <= most)
        to.zero = rules_.host_states_from;
    }
    const bool can_update = rules_.host_states && to.zero >= rules_.host_states_from;
    const bool can_hold = rules_.host_weights && to.zero >= rules_.host_weights_from;
    const bool both = rules_.host_together && can_update && can_hold && (states > 0 || weights);
    to.host_states = can_update ? states : 0;
    if (states > 0 && !can_update) {
      lose("optimizer state on the host", "on the device", set(&Residency::host_update, false));
    } else if ((states > 0 && states < 1 && !rules_.part_of_states) || (both && states < 1)) {
      to.host_states = 1;
      lose(fmt::format("optimizer state of {:.0f} % of the weights on the host", 100 * states),
           "of all of them", set(&Residency::host_update, true));
    }
    to.host_weights = (weights && can_hold) || both;
    if (weights && !to.host_weights)
      lose("weights on the host", "on the device", set(&Residency::host, false));
    else if (to.host_weights && !degrees_.packs && degrees_.host_weights < degrees_.weights)
      lose(degrees_.host_weights > 0 ? fmt::format("{} of the weights on the host",
                                                   share(degrees_.host_weights, degrees_.weights))
                                     : "weights on the devices",
           "all of them on the host", set(&Residency::host, true));
  }

  void take_stages() {
    TargetSettings& to = choice_.settings;
    LayerStages stages = layers_of_stages(subject_, to.pp, to.interleave);
    to.layers = stages.layers;
    to.stage_layers = std::move(stages.of_stage);
    if (stages.within) lose("stages that end within a layer", "stages of whole layers");
  }

  void take_blocks() {
    const TargetSettings& to = choice_.settings;
    if (degrees_.packs || more_replicas_ || to.accumulation != degrees_.micro_batches ||
        subject_.without_slots != nullptr)
      return take_policies({RecomputePolicy::None, RecomputePolicy::Full});
    const Strategy strategy = blocks_alike(subject_, to);
    try {
      const Outcome outcome =
          outcome_of(simulate_step(subject_.training, strategy, subject_.machine, subject_.cost));
      choice_.step_time = outcome.step_time;
      choice_.peak = outcome.peak;
      choice_.fits = outcome.fits;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      choice_.unsimulated = error.message();
    }
    lose_actions(strategy.saved);
  }

  void take_activations() {
    if (rules_.by_block) return take_blocks();
    std::vector<RecomputePolicy> policies = {RecomputePolicy::None, RecomputePolicy::Full};
    if (rules_.selective) policies.insert(policies.begin() + 1, RecomputePolicy::Selective);
    take_policies(policies);
  }

  void take_policies(const std::vector<RecomputePolicy>& policies) {
    const Graph& network = subject_.without_slots && choice_.settings.ep == 1
                               ? *subject_.without_slots
                               : subject_.network;
    std::optional<Outcome> best;
    std::vector<MemoryAction> saved;
    TargetSettings tried = choice_.settings;
    for (RecomputePolicy policy : policies) {
      try {
        tried.recompute = policy;
        const PreparedStep step = prepare_step(network, spec_of_settings(tried, rules_),
                                               subject_.machine, subject_.plan.model.training);
        const Outcome outcome = outcome_of(
            simulate_step(step.training, step.strategy, subject_.machine, subject_.cost));
        // What the plan does, if the target can say it.
        const bool same = keep_the_same(step.strategy.saved, subject_.strategy.saved);
        const bool better =
            same || !best || (outcome.fits && !best->fits) ||
            (outcome.fits == best->fits &&
             (outcome.fits ? outcome.step_time < best->step_time : outcome.peak < best->peak));
        if (!better) continue;
        best = outcome;
        saved = step.strategy.saved;
        choice_.settings.recompute = policy;
        if (same) break;
      } catch (const Error& error) {
        if (error.kind() == ErrorKind::Internal) throw;
        choice_.unsimulated = error.message();
      }
    }
    if (best) {
      choice_.step_time = best->step_time;
      choice_.peak = best->peak;
      choice_.fits = best->fits;
      choice_.unsimulated.clear();
    }
    lose_actions(saved);
  }

  void lose_actions(const std::vector<MemoryAction>& saved) {
    if (subject_.strategy.packs || keep_the_same(saved, subject_.strategy.saved)) return;
    const std::string instead(rules_.by_block ? "what most bytes of its block do"
                                              : policy_words(choice_.settings.recompute));
    const auto keep = [](MemoryAction action) {
      return [action](Strategy& strategy) {
        for (MemoryAction& saved_action : strategy.saved)
          if (saved_action == action) saved_action = MemoryAction::Keep;
      };
    };
    const auto lose_share = [&](int64_t bytes, std::string_view what, MemoryAction action) {
      if (bytes > 0)
        lose(fmt::format("{} of what the backward pass reads is {}, tensor by tensor",
                         share(bytes, degrees_.saved), what),
             instead + " (alone: kept)", keep(action));
    };
    lose_share(degrees_.offloaded, "moved to the host", MemoryAction::Offload);
    lose_share(degrees_.recomputed, "computed again", MemoryAction::Recompute);
    if (degrees_.compressed > 0)
      lose(fmt::format("{} of what the backward pass reads is stored in fewer bits",
                       share(degrees_.compressed, degrees_.saved)),
           instead);
  }

  const ExportSubject& subject_;
  const TargetRules& rules_;
  const Degrees degrees_;
  Lean lean_;
  bool prices_losses_ = true;
  bool more_replicas_ = false;  // than the plan has
  TargetChoice choice_;
};

}  // namespace

BaselineSpec spec_of_settings(const TargetSettings& to, const TargetRules& rules) {
  BaselineSpec spec;
  spec.name = std::string(rules.name);
  spec.dp = to.dp;
  spec.tp = to.tp;
  spec.pp = to.pp;
  spec.cp = to.cp;
  spec.ep = to.ep;
  spec.interleave = to.interleave;
  spec.sequence_parallel = to.sequence;
  spec.micro = to.micro;
  spec.zero = to.dp * to.cp > 1 ? to.zero : 0;
  spec.recompute = to.recompute;
  spec.host_weights = to.host_weights;
  spec.host_update = to.host_states > 0.5;
  return spec;
}

TargetChoice choose_settings(const ExportSubject& subject, const TargetRules& rules) {
  return Chooser(subject, rules).run();
}

}  // namespace windlass
