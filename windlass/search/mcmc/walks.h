// Several Markov chains at a time, which tell each other of what they find.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "windlass/search/mcmc/markov_chain.h"

namespace windlass {

struct WalkOptions {
  MoveMix mix = {};
  // Of the chains in turn: cold ones look near, hot ones far.
  std::vector<ChainOptions> temperatures = {{.hot = 5e-4, .cold = 2e-5},
                                            {.hot = 2e-3, .cold = 1e-5},
                                            {.hot = 1e-4, .cold = 1e-5},
                                            {.hot = 2e-2, .cold = 1e-4}};
  int chains = 4;
  int rounds = 4;           // after each of which chains that lag behind go on from the best
  int64_t proposals = 0;    // of each chain, in all rounds
  int64_t simulations = 0;  // of each chain: no more than this
  int threads = 0;          // 0: all cores. The result does not depend on it
  uint64_t seed = 0;
  std::function<bool()> stop = {};
  // After each round: proposals and simulations so far, the best energy.
  std::function<void(int64_t proposals, int64_t simulated, double best)> progress = {};
};

struct WalkResult {
  Strategy best;
  double energy = 0;
  bool valid = false;
  int64_t proposals = 0, accepted = 0, simulated = 0;
  int64_t units = 0;     // tasks of all simulations
  bool stopped = false;  // before the end
};

using MakeJudge = std::function<std::unique_ptr<Judge>()>;

// Chain c starts from starts[c mod their number]. A judge is made for each chain.
WalkResult walk(const TrainingGraph& training, const Machine& machine,
                const std::vector<Strategy>& starts, const MakeJudge& make_judge,
                const WalkOptions& options);

}  // namespace windlass
