// Reports for programs. Keys are stable, units are in the keys, numbers in base units.
#pragma once

#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/report/simulation.h"

namespace windlass {

nlohmann::ordered_json degrees_json(const Degrees& degrees);

// One entry of `devices` for each device of the machine, those without work included. If the step
// did not fit, memories are those of the step without limits: what it would take.
nlohmann::ordered_json simulation_json(const SimulationReport& report, const Machine& machine);

// As a file or a terminal gets it: indented, with a line end, whatever bytes names have.
std::string json_text(const nlohmann::ordered_json& json);

}  // namespace windlass
