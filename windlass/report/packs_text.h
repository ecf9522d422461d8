// Packs of layers, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/packs/pack_results.h"

namespace windlass {

// What is decided.
std::string packs_text(const PackStrategy& packs);
nlohmann::ordered_json packs_json(const PackStrategy& packs);
// The same in Harmony's terms.
nlohmann::ordered_json harmony_json(const HarmonyPlan& plan);

// What steps in a row take, by layers: time, traffic between host and devices beside that of other
// ways to run the step, a timeline.
std::string long_run_text(const LayerSearchResult& result);
nlohmann::ordered_json long_run_json(const LayerSearchResult& result);

// What a report by layers says beside the result.
struct PacksFacts {
  std::string model;
  bool bare = true;  // a layer profile; or a network, by Harmony's estimate
  int64_t samples = 0;
  std::string cost = "windlass";
  bool searched = true;  // false: a plan that was there
  std::string written;   // file that the plan was written to, if any
};

// What was found by layers, or why nothing fits.
std::string packs_report(const PacksFacts& facts, const LayerSearchResult& result, bool json);

}  // namespace windlass
