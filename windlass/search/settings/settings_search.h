// The fastest settings that fit among those that another system has; and what the usual strategies
// come to if somebody takes the trouble to tune them.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "windlass/search/search.h"
#include "windlass/strategy/target_rules.h"

namespace windlass {

// A search that stays with what the system can be told: products of replicas, tensor parts and
// stages over all devices, micro-batches of equal size, ZeRO stages, recompute policies, what goes
// to the host. Each structure is simulated plainly first; from the fastest on remedies against full
// memory are added until it fits, and structures that are slower without any than the best with all
// it needs are left out. Never Optimal.
SearchResult search_settings(const Problem& problem, const SearchOptions& options,
                             const TargetRules& rules);

// The best settings of each usual strategy, found in the same way, as parse_baseline() takes them:
// data parallelism, ZeRO on the devices and with the host, Megatron's tensor parts and stages,
// GPipe, 1F1B; of one device what is kept, computed again, and on the host. With micro-batches,
// recompute policies and stages of ZeRO. Of a strategy that does not fit with any settings the one
// that needs least; those that are not possible here are left out. `progress` hears what is tuned.
std::vector<std::string> tuned_strategies(
    const Problem& problem, const SearchOptions& options,
    const std::function<void(const std::string&)>& progress = {});

}  // namespace windlass
