// The choice of settings for a plan, in the order in which one thing depends on another: degrees of
// parallelism, the batch, weights, stages, what the backward pass reads.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/export/settings.h"

namespace windlass {

// What the simulator says of a step.
struct SettingsOutcome {
  Seconds step_time;
  Bytes peak;
  bool fits = false;
};
SettingsOutcome outcome_of(const SimulatedStep& step);

// "42 %" of the whole.
std::string share_words(int64_t part, int64_t whole);

class SettingsChooser {
 public:
  SettingsChooser(const ExportSubject& subject, const TargetRules& rules);

  // Throws Error{Unsupported} as choose_settings() does.
  TargetChoice run();

 private:
  // A stage of ZeRO for all weights, and whether what the host does for some it does for all.
  struct Lean {
    int zero = 0;
    bool host = true;
  };
  // What could be done for all weights, of what the plan does for some of them.
  std::vector<Lean> leans() const;

  // Each takes what the target can say of the plan, and lists what it cannot.
  void take_degrees();
  void take_experts();
  void take_sequence();
  void take_batch();
  void finish();  // what follows from a lean: the three below
  void take_weights();
  void take_stages();
  void take_activations();

  // What the host holds: `states` is the share of the weights that it updates.
  void take_host(double states);
  // Devices that the target has no other use for: more replicas.
  void to_replicas(int64_t& degree, std::string_view what);
  // Of targets that treat what each block saves by itself.
  void take_blocks();
  // Of the others: the plan's own policy if it is among these, else the fastest that fits.
  void take_policies(const std::vector<RecomputePolicy>& policies);
  void lose_actions(const std::vector<MemoryAction>& saved);

  void lose(std::string what, std::string instead) {
    choice_.lost.push_back({std::move(what), std::move(instead)});
  }
  // The same, priced: the plan with one thing changed.
  template <typename Change>
  void lose(std::string what, std::string instead, Change change) {
    lose(std::move(what), std::move(instead));
    if (subject_.strategy.packs || !prices_losses_) return;
    Strategy changed = subject_.strategy;
    change(changed);
    try {
      const SettingsOutcome outcome =
          outcome_of(simulate_step(subject_.training, changed, subject_.machine, subject_.cost));
      choice_.lost.back().step_time = outcome.step_time;
      choice_.lost.back().peak = outcome.peak;
      choice_.lost.back().fits = outcome.fits;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
    }
  }

  const ExportSubject& subject_;
  const TargetRules& rules_;
  const Degrees degrees_;
  Lean lean_;
  bool prices_losses_ = true;
  bool more_replicas_ = false;  // than the plan has
  TargetChoice choice_;
};

}  // namespace windlass
