// A simulated step as a Chrome trace, which ui.perfetto.dev and chrome://tracing open.
//
// One process for each team, with a track for each of its lanes and a counter of its live bytes;
// one for each host memory; one for the links, a track each. On a track, events do not overlap. On
// the track of a link an event is a period with the same transfers under way.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <string>
#include <string_view>

#include "windlass/plan/step.h"

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

// Hands the JSON piece by piece to `write`. Times are in microseconds, as the format asks, with
// nanoseconds after the point. `training` gives tasks their names; may be null.
TraceSummary write_trace(const SimulatedStep& step, const Graph* training, const Machine& machine,
                         const std::function<void(std::string_view)>& write,
                         const TraceOptions& options = {});

// Several steps in one trace, laid over each other, the processes of each under its title: what was
// predicted and what was measured.
struct TracedStep {
  const SimulatedStep* step = nullptr;
  std::string title;
};
TraceSummary write_traces(std::span<const TracedStep> steps, const Graph* training,
                          const Machine& machine,
                          const std::function<void(std::string_view)>& write,
                          const TraceOptions& options = {});

}  // namespace windlass
