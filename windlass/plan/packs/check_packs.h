// The independent checker for packs of layers: do tasks carry out a strategy, on the layers of a
// profile, over the links of a machine? Shares nothing with the lowering but the labels that say
// what a task or a buffer is meant to be; whether it is that is found here. Trusted are the
// profile's own interpolation and the routes of cost/traffic.h.
//
// The tasks are walked once in the order of their ids. Checked are
//  - coverage: in each step every layer runs forward once and backward once on every sample,
//    recomputing at most once, on the device that the strategy names;
//  - dataflow: inputs, gradients and saved activations of the right layer and samples lie in the
//    right memory, written before they are read; what waits on the host is what was sent there;
//  - weights: whole and in the version of this step wherever a layer runs, from before its first
//    micro-batch to after its last;
//  - gradients: every sample of every layer added once, then summed over the replicas once where
//    there are several, then moved or applied once; every layer updated once in a step;
//  - sizes, durations, workspace, and the bytes on every link;
//  - order: of two tasks that use a buffer, or the host's copy of a layer, and one of which writes
//    it, one happens before the other through predecessors and lanes alone.
// Limits and peaks are for check_run() of plan/check.h, on a timeline. Time: O(tasks x lanes +
// uses + layers x micro-batches).
#pragma once

#include <string>
#include <vector>

#include "windlass/task/packs/pack_tasks.h"

namespace windlass {

// What is wrong, one line each, the first ones only if there are many; empty if nothing is.
std::vector<std::string> check_pack_tasks(const LayerProfile& profile, const Machine& machine,
                                          const PackStrategy& strategy, int64_t minibatch,
                                          const PackSteps& steps);

}  // namespace windlass
