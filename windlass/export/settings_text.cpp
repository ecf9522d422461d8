#include <fmt/format.h>

#include "windlass/export/settings.h"

namespace windlass {

std::string choice_text(const ExportSubject& subject, const TargetRules& rules,
                        const TargetChoice& choice) {
  std::string text = fmt::format("the plan takes {} a step",
                                 format_seconds(subject.measured_step.value_or(subject.step_time)));
  if (subject.measured_step)
    text += fmt::format(" by its measured kernels, {} by kernels like them",
                        format_seconds(subject.step_time));
  if (choice.step_time)
    text += fmt::format("; with these settings for {} {} are predicted, peak {}, {}", rules.name,
                        format_seconds(*choice.step_time), format_bytes(*choice.peak),
                        choice.fits ? "which fits" : "which does NOT fit");
  else
    text += fmt::format("; these settings for {} cannot be simulated: {}", rules.name,
                        choice.unsimulated);
  text += "\n";
  for (const LostDecision& lost : choice.lost) {
    text += fmt::format("not said: {}; instead: {}", lost.what, lost.instead);
    if (lost.step_time)
      text +=
          fmt::format(" (the plan with that alone: {}, peak {}{})", format_seconds(*lost.step_time),
                      format_bytes(*lost.peak), lost.fits ? "" : ", does not fit");
    text += "\n";
  }
  if (choice.step_time && !choice.fits)
    text += fmt::format("settings that fit, if there are any: windlass plan ... --for {}\n",
                        rules.target);
  return text;
}

}  // namespace windlass
