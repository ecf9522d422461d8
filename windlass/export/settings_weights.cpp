#include <algorithm>

#include <fmt/format.h>

#include "windlass/export/settings_chooser.h"

namespace windlass {

void SettingsChooser::take_weights() {
  TargetSettings& to = choice_.settings;
  const bool replicas = to.dp * to.cp > 1;
  const int wanted = degrees_.packs ? 3 : replicas ? lean_.zero : 0;
  const int planned = degrees_.packs ? 3 : replicas ? degrees_.zero : 0;
  const int needed =
      std::max({wanted, to.cp > 1 ? *rules_.context : 0, to.ep > 1 ? *rules_.experts : 0});
  const int most = to.pp > 1 ? rules_.zero_with_pipeline : 3;
  to.zero = 0;
  // The least stage that shares as much out; else the highest there is.
  for (int stage : rules_.zero)
    if (stage <= most && (to.zero < needed || stage <= wanted)) to.zero = std::max(to.zero, stage);
  const auto all_zero = [stage = to.zero](Strategy& strategy) {
    for (Residency& home : strategy.weights) home.zero = static_cast<uint8_t>(stage);
  };
  if (!degrees_.packs && replicas && degrees_.zero != degrees_.zero_least)
    lose(fmt::format("ZeRO stage {} to {}, weight by weight", degrees_.zero_least, degrees_.zero),
         fmt::format("stage {} for all", to.zero), all_zero);
  else if (to.zero != planned)
    lose(fmt::format("ZeRO stage {}", planned), fmt::format("stage {}", to.zero), all_zero);
  const double states = degrees_.packs         ? 1
                        : degrees_.weights > 0 ? static_cast<double>(degrees_.host_updates) /
                                                     static_cast<double>(degrees_.weights)
                                               : 0;
  take_host(states);
}

void SettingsChooser::take_host(double states) {
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
                       share_words(degrees_.host_weights, degrees_.weights)),
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
    lose(degrees_.host_weights > 0
             ? fmt::format("{} of the weights on the host",
                           share_words(degrees_.host_weights, degrees_.weights))
             : "weights on the devices",
         "all of them on the host", set(&Residency::host, true));
}

}  // namespace windlass
