// A step as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>

#include "windlass/plan/step.h"
#include "windlass/sim/step_record.h"

namespace windlass {

struct TraceOptions {
  size_t max_events = 1'000'000;  // more are cut off at the end of the step
};

struct TraceSummary {
  size_t events = 0;  // written
  // The step up to here was written, in seconds. Less than the step if it was cut.
  Seconds until;
  bool cut = false;
};

// A simulated step. One process for each team, with a track for each of its lanes and a counter of
// its live bytes; one for each host memory; one for the links, a track each. On a track, events do
// not overlap. On the track of a link an event is a period with the same transfers under way.
// Hands the JSON piece by piece to `write`. `training` gives tasks their names; may be null.
TraceSummary write_trace(const SimulatedStep& step, const Graph* training, const Machine& machine,
                         const std::function<void(std::string_view)>& write,
                         const TraceOptions& options = {});

// A step as it was predicted and as it was measured. For each device two processes, one below the
// other, "cpu0: predicted" and "cpu0: measured", with a track for each lane that the device has a
// part in, and on it every part of every task that is the device's; a task that several devices do
// together is on the tracks of all of them. Likewise for each host, with what is updated there, and
// for the links. Live bytes of what was measured follow from when tasks ran. Both begin at 0. What
// was measured on several hosts has `otherData.clock_error_s`: what their clocks may be apart.
TraceSummary write_run_trace(const SimulatedStep& predicted, const StepRecord& measured,
                             const Graph* training, const Machine& machine,
                             const std::function<void(std::string_view)>& write,
                             const TraceOptions& options = {});

}  // namespace windlass
