// A simulated step as lines of letters.
#pragma once

#include <vector>

#include "windlass/search/packs/search_layers.h"
#include "windlass/task/packs/pack_tasks.h"

namespace windlass {

// One entry for each team, of the second of `steps`, or the only one: from the end of the step
// before to its own end.
std::vector<LayerTimeline> draw_timeline(const PackSteps& steps, const SimResult& simulation,
                                         size_t width = 96);

}  // namespace windlass
