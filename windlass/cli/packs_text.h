// Plans of packs of layers, for people and for programs.
#pragma once

#include <cstdint>
#include <string>

#include <nlohmann/json_fwd.hpp>

#include "windlass/search/packs/search_layers.h"

namespace windlass {

// What a report says beside the result.
struct PacksFacts {
  std::string model;
  int64_t samples = 0;
  std::string cost = "windlass";
  bool searched = true;  // false: a plan that was there
  std::string written;   // file that the plan was written to, if any
};

// Prints what was found, or why nothing fits.
void report_packs(const PacksFacts& facts, const LayerSearchResult& result, size_t layers,
                  bool json);

}  // namespace windlass
