// What needs least memory on one device.
//
// Copies that take turns with kernels (Strategy::in_turn) make the peak of a step a matter of its
// order alone. So the least limit does not hang on how fast anything is, nor on how fast it was
// when it was measured. From the strategies given, those with the least peak are taken down: of
// what is alive at the highest moment, each saved tensor is kept, recomputed or moved and each
// weight held here or there instead, as long as the peak falls. Not proven least: a descent stops
// where no single change helps. Complexity: some hundred simulations.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "windlass/search/book/ledger.h"

namespace windlass {

struct LeastMemory {
  Strategy strategy;
  int64_t limit = 0;  // of the device, at which it runs
};

// None if nothing runs, because the host is too small. Decisions that the user has fixed stay.
std::optional<LeastMemory> find_least_memory(Ledger& ledger, std::vector<Strategy> starts);

}  // namespace windlass
