// Strategies side by side: time, memory, valid or not.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/termination.h"
#include "windlass/report/simulation.h"

namespace windlass {

// One strategy: its step without limits, and whether it fits.
struct StrategyRow {
  std::string name = {};
  std::string why = {};  // it is not possible; empty if it is
  bool tuned = false;    // its settings are the best that were found for it
  bool fits = false;
  Seconds step_time = {};
  int64_t peak = 0;       // bytes of the fullest device
  int64_t host_peak = 0;  // of the fullest host

  void fill(const SimulatedStep& step);
};

// `found`: what windlass has found, for the step that `facts` are about.
std::string strategy_table_text(const std::vector<StrategyRow>& rows, const StrategyRow& found,
                                const Machine& machine, const StepFacts& facts);
nlohmann::ordered_json strategy_table_json(const std::vector<StrategyRow>& rows,
                                           const StrategyRow& found, int64_t samples,
                                           Termination termination);

}  // namespace windlass
