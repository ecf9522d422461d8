// Replicas on unlike devices: how many samples each gets.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/book/ledger.h"

namespace windlass {

// Whether a group has devices of different types.
bool mixed(const Machine& machine, const std::vector<DeviceId>& group);

// Samples of the replicas that promise the fastest step, for a strategy of one group that splits
// the batch into so many replicas, outermost. The first list is the fastest as if memory were no
// matter; if that does not fit with everything kept, a second one may follow that does, whose
// samples are more in proportion to the memory of the devices. None if replicas are equally fast.
//
// Begins with what replica_speeds() says, then follows the simulated times of the replicas while
// that helps, then moves single samples from one type of device to another. Some twenty
// simulations; not exact.
std::vector<std::vector<int32_t>> balanced_samples(const Problem& problem, Cut& cut,
                                                   const Strategy& strategy, int64_t replicas);

}  // namespace windlass
