// How many devices of which memory it takes, as a table.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/frontier_cell.h"
#include "windlass/report/simulation.h"

namespace windlass {

// Cells by devices and then by limit, the same limits for each number of devices.
std::string device_frontier_text(const std::vector<FrontierCell>& cells, const Machine& machine,
                                 const StepFacts& facts);
nlohmann::ordered_json device_frontier_json(const std::vector<FrontierCell>& cells,
                                            int64_t samples);

}  // namespace windlass
