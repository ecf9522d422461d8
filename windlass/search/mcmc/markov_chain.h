// A Markov chain over strategies.
#pragma once

#include <cstdint>
#include <functional>

#include "windlass/search/mcmc/judge.h"
#include "windlass/search/mcmc/moves.h"

namespace windlass {

// Temperatures are relative: a strategy that is worse by the share x is accepted with the
// probability exp(-x / temperature).
struct ChainOptions {
  double hot = 5e-4, cold = 2e-5;  // first and last temperature of a round
  double absolute = 0;             // if not 0: a temperature in units of energy, all the time
};

class MarkovChain {
 public:
  // `start` has been adopted by the moves. All must outlive the chain.
  MarkovChain(Moves& moves, Judge& judge, Strategy start, Rng rng, const ChainOptions& options);

  // So many proposals or simulations (0: any number), from hot to cold; `stop` is asked now and
  // then.
  void run(int64_t proposals, int64_t simulations, const std::function<bool()>& stop);
  // Goes on from another strategy, if it is better than the present best.
  void restart(const Strategy& from, double energy);
  // From the best so far.
  void back_to_best();

  bool valid() const { return judge_.valid(best_energy_); }
  double best_energy() const { return best_energy_; }
  const Strategy& best() const { return best_; }
  int64_t proposals() const { return proposals_; }
  int64_t accepted() const { return accepted_; }
  bool stopped() const { return stopped_; }  // before the end of a run

 private:
  Moves& moves_;
  Judge& judge_;
  Rng rng_;
  ChainOptions options_;
  Strategy now_, best_;
  double energy_ = 0, best_energy_ = 0;
  uint64_t key_ = 0;
  Proposal proposal_;
  int64_t proposals_ = 0, accepted_ = 0;
  bool stopped_ = false;
};

}  // namespace windlass
