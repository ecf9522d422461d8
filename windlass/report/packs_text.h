// Plans of packs of layers, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include "windlass/plan/packs/pack_results.h"

namespace windlass {

// What a report says beside the result.
struct PacksFacts {
  std::string model;
  int64_t samples = 0;
  std::string cost = "windlass";
  bool searched = true;  // false: a plan that was there
  std::string written;   // file that the plan was written to, if any
};

// What was found, or why nothing fits.
std::string packs_report(const PacksFacts& facts, const LayerSearchResult& result, size_t layers,
                         bool json);

}  // namespace windlass
