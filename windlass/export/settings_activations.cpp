#include <algorithm>
#include <numeric>

#include <fmt/format.h>

#include "windlass/export/settings_chooser.h"

namespace windlass {
namespace {

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

// The host updates weights in their order, as many as come to that share of the bytes of all.
void update_on_host(PreparedStep& step, double share) {
  const Graph& graph = step.training.graph;
  const size_t first = step.training.forward_ops + step.training.backward_ops;
  std::vector<int64_t> bytes;
  for (size_t u = 0; u < step.strategy.weights.size(); ++u)
    bytes.push_back(byte_size(graph[graph.ops[first + u].inputs[0]].type).value);
  const auto all = static_cast<double>(std::accumulate(bytes.begin(), bytes.end(), int64_t{0}));
  int64_t taken = 0;
  for (size_t u = 0; u < bytes.size(); ++u) {
    if (static_cast<double>(taken + bytes[u]) > share * all * (1 + 1e-9)) continue;
    taken += bytes[u];
    step.strategy.weights[u].host_update = true;
  }
}

}  // namespace

void SettingsChooser::take_activations() {
  if (rules_.by_block) return take_blocks();
  std::vector<RecomputePolicy> policies = {RecomputePolicy::None, RecomputePolicy::Full};
  if (rules_.selective) policies.insert(policies.begin() + 1, RecomputePolicy::Selective);
  take_policies(policies);
}

void SettingsChooser::take_blocks() {
  const TargetSettings& to = choice_.settings;
  if (degrees_.packs || more_replicas_ || to.accumulation != degrees_.micro_batches ||
      subject_.without_slots != nullptr)
    return take_policies({RecomputePolicy::None, RecomputePolicy::Full});
  const Strategy strategy = blocks_alike(subject_, to);
  try {
    const SettingsOutcome outcome =
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

void SettingsChooser::take_policies(const std::vector<RecomputePolicy>& policies) {
  const Graph& network = subject_.without_slots && choice_.settings.ep == 1
                             ? *subject_.without_slots
                             : subject_.network;
  std::optional<SettingsOutcome> best;
  std::vector<MemoryAction> saved;
  TargetSettings tried = choice_.settings;
  for (RecomputePolicy policy : policies) {
    try {
      tried.recompute = policy;
      PreparedStep step = prepare_step(network, spec_of_settings(tried, rules_), subject_.machine,
                                       subject_.plan.model.training);
      if (tried.host_states > 0 && tried.host_states < 1) update_on_host(step, tried.host_states);
      const SettingsOutcome outcome =
          outcome_of(simulate_step(step.training, step.strategy, subject_.machine, subject_.cost));
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

void SettingsChooser::lose_actions(const std::vector<MemoryAction>& saved) {
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
                       share_words(bytes, degrees_.saved), what),
           instead + " (alone: kept)", keep(action));
  };
  lose_share(degrees_.offloaded, "moved to the host", MemoryAction::Offload);
  lose_share(degrees_.recomputed, "computed again", MemoryAction::Recompute);
  if (degrees_.compressed > 0)
    lose(fmt::format("{} of what the backward pass reads is stored in fewer bits",
                     share_words(degrees_.compressed, degrees_.saved)),
         instead);
}

}  // namespace windlass
