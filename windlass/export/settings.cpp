#include "windlass/export/settings.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/export/settings_chooser.h"

namespace windlass {
namespace {

// Whether one choice is better than another: it fits and is faster, or comes nearer to fitting.
bool is_better(const TargetChoice& a, const TargetChoice& b) {
  if (!a.step_time || !b.step_time) return a.step_time.has_value() && !b.step_time;
  if (a.fits != b.fits) return a.fits;
  return a.fits ? *a.step_time < *b.step_time : *a.peak < *b.peak;
}

}  // namespace

SettingsOutcome outcome_of(const SimulatedStep& step) {
  SettingsOutcome outcome{step.step_time(), {}, step.result.status == SimStatus::Done};
  for (size_t m = 0; m < step.tasks.memories.size(); ++m)
    if (step.tasks.memories[m].team.valid())
      outcome.peak = std::max(outcome.peak, Bytes(step.whole().peaks[m].bytes));
  return outcome;
}

std::string share_words(int64_t part, int64_t whole) {
  const double percent =
      100.0 * static_cast<double>(part) / static_cast<double>(std::max<int64_t>(1, whole));
  return percent < 1 ? "<1 %" : fmt::format("{:.0f} %", percent);
}

SettingsChooser::SettingsChooser(const ExportSubject& subject, const TargetRules& rules)
    : subject_(subject),
      rules_(rules),
      degrees_(degrees_of(subject.training, find_batch(subject.network), subject.strategy,
                          subject.plan.samples)),
      lean_{degrees_.zero, true} {}

TargetChoice SettingsChooser::run() {
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
    SettingsChooser trial(*this);
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

std::vector<SettingsChooser::Lean> SettingsChooser::leans() const {
  const auto some = [&](int64_t bytes) { return bytes > 0 && bytes < degrees_.weights; };
  const bool host = !degrees_.packs && (some(degrees_.host_updates) || some(degrees_.host_weights));
  std::vector<Lean> list;
  for (int stage = degrees_.zero; stage >= degrees_.zero_least; --stage) {
    list.push_back({stage, true});
    if (host) list.push_back({stage, false});
  }
  // What the host does may want a higher stage than the plan's, if replicas are there to share.
  const TargetSettings& to = choice_.settings;
  const int most = to.pp > 1 ? rules_.zero_with_pipeline : 3;
  const auto add_stage = [&](bool allowed, int64_t bytes, int stage) {
    const bool known =
        std::ranges::any_of(list, [&](const Lean& lean) { return lean.zero >= stage; });
    if (!allowed || bytes == 0 || stage > most || known) return;
    list.push_back({stage, true});
    if (host) list.push_back({stage, false});
  };
  if (!degrees_.packs && to.dp * to.cp > 1) {
    add_stage(rules_.host_states, degrees_.host_updates, rules_.host_states_from);
    add_stage(rules_.host_weights, degrees_.host_weights, rules_.host_weights_from);
  }
  return list;
}

void SettingsChooser::finish() {
  take_weights();
  take_stages();
  take_activations();
}

BaselineSpec spec_of_settings(const TargetSettings& to, const TargetRules& rules) {
  BaselineSpec spec;
  spec.name = std::string(rules.name);
  spec.dp = to.dp;
  spec.tp = to.tp;
  spec.pp = to.pp;
  spec.cp = to.cp;
  spec.ep = to.ep;
  spec.interleave = to.interleave;
  spec.whole_layers = to.layers >= to.pp * to.interleave;
  spec.sequence_parallel = to.sequence;
  spec.micro = to.micro;
  spec.zero = to.dp * to.cp > 1 ? to.zero : 0;
  spec.recompute = to.recompute;
  spec.host_weights = to.host_weights;
  spec.host_update = to.host_states >= 1;
  return spec;
}

TargetChoice choose_settings(const ExportSubject& subject, const TargetRules& rules) {
  return SettingsChooser(subject, rules).run();
}

}  // namespace windlass
