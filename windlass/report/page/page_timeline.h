// The timeline of a step, compact enough to be carried in a page.
#pragma once

#include <cstddef>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/step.h"

namespace windlass {

struct PageTimelineOptions {
  // Slices of all tracks together. Where there are more, neighbours of one kind on a track become
  // one, those with the shortest gaps between them first.
  size_t most_slices = 110'000;
};

// {quantum_ns, end, kinds, labels, tracks, tasks, slices}. Times are whole numbers of the quantum,
// which is one nanosecond for steps of up to 16 ms and such that a step has 2^24 of them for longer
// ones. `labels` are [kind, name]. A track is a lane of a team; its `data` is base64 of LEB128
// numbers, slice by slice: gap since the end of the slice before, duration, label + 1,
// micro-batch + 1; of neighbours that became one: gap, duration, 0, kind, how many they were.
nlohmann::ordered_json page_timeline_json(const SimulatedStep& step, const Graph* training,
                                          const PageTimelineOptions& options = {});

}  // namespace windlass
