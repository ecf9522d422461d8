// `plan --for TARGET`: the fastest settings that fit among those that another system has.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "windlass/search/search.h"

namespace windlass {

// Names of systems, as `export --to` has them.
std::vector<std::string> search_targets();

// A search that stays with what the target can be told: products of replicas, tensor parts and
// stages over all devices, micro-batches of equal size, ZeRO stages, recompute policies, what goes
// to the host. Each structure is simulated plainly first; from the fastest on remedies against full
// memory are added until it fits, and structures that are slower without any than the best with all
// it needs are left out. Never Optimal. Throws Error{Input} for names that are not known.
const SearchMethod& target_search(std::string_view target);

}  // namespace windlass
