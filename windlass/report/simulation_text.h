// Reports for people: aligned tables, human units.
#pragma once

#include <cstddef>
#include <string>

#include "windlass/report/simulation.h"

namespace windlass {

// The whole report of a step that fits, or why it does not and what it would take. `top`: how many
// teams, memories, links to list; what is left out is said.
std::string simulation_text(const SimulationReport& report, size_t top = 8);

}  // namespace windlass
