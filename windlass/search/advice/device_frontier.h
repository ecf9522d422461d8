// How many devices of which memory it takes: the best plan for each number of devices and each
// limit.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

#include "windlass/plan/frontier_cell.h"
#include "windlass/search/search.h"

namespace windlass {

struct DeviceFrontierOptions {
  std::vector<size_t> devices;  // ascending, each at most what the machine has
  std::vector<Bytes> limits;    // ascending
  SearchOptions search = {};
  std::function<void(size_t done, size_t all)> progress = {};
};

// All cells, by devices and then by limit. Monotone: no cell is slower than one with fewer devices
// or less memory. A plan that needs less than a smaller limit is not searched again for it.
std::vector<FrontierCell> device_frontier(const Problem& problem, const SearchMethod* method,
                                          const DeviceFrontierOptions& options);

// 1, 2, 4, ... and all of them.
std::vector<size_t> usual_device_counts(size_t devices);

}  // namespace windlass
