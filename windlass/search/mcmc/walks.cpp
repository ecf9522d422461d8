#include "windlass/search/mcmc/walks.h"

#include <algorithm>
#include <memory>

#include "windlass/base/parallel.h"

namespace windlass {
namespace {

// A chain with everything that it does not share.
struct Walker {
  std::unique_ptr<Moves> moves;
  std::unique_ptr<Judge> judge;
  std::unique_ptr<MarkovChain> chain;
};

}  // namespace

WalkResult walk(const TrainingGraph& training, const Machine& machine,
                const std::vector<Strategy>& starts, const MakeJudge& make_judge,
                const WalkOptions& options) {
  const auto count = static_cast<size_t>(std::max(1, options.chains));
  const auto threads = static_cast<size_t>(std::max(0, options.threads));
  std::vector<Walker> walkers(count);
  in_parallel(count, threads, [&](size_t c) {
    Walker& walker = walkers[c];
    walker.moves = std::make_unique<Moves>(training, machine, options.mix);
    walker.judge = make_judge();
    // All starts are adopted by all, in the same order: their shardings have the same numbers.
    std::vector<Strategy> adopted = starts;
    for (Strategy& start : adopted) walker.moves->adopt(start);
    Strategy& start = adopted[c % adopted.size()];
    walker.moves->refresh(start);
    walker.chain = std::make_unique<MarkovChain>(
        *walker.moves, *walker.judge, std::move(start), Rng(options.seed, static_cast<uint64_t>(c)),
        options.temperatures[c % options.temperatures.size()]);
  });
  WalkResult result;
  const auto best_of_all = [&] {
    const auto best = std::ranges::min_element(
        walkers, {}, [](const Walker& walker) { return walker.chain->best_energy(); });
    return static_cast<size_t>(best - walkers.begin());
  };
  const int rounds = std::max(1, options.rounds);
  for (int round = 0; round < rounds; ++round) {
    if (options.stop && options.stop()) {
      result.stopped = true;
      break;
    }
    in_parallel(count, threads, [&](size_t c) {
      walkers[c].chain->run(options.proposals / rounds, options.simulations / rounds, options.stop);
    });
    result.stopped |=
        std::ranges::any_of(walkers, [](const Walker& walker) { return walker.chain->stopped(); });
    const size_t best = best_of_all();
    // Copies: the one that leads goes on too.
    const Strategy leader = walkers[best].chain->best();
    const double energy = walkers[best].chain->best_energy();
    for (size_t c = 0; c < count; ++c) {
      // In the first half all stay with what they began with; later some still do, so that not all
      // look in the same place.
      const bool follows =
          c != best && 2 * (round + 1) >= rounds && (c % 2 == 1 || !walkers[c].chain->valid());
      if (follows) walkers[c].chain->restart(leader, energy);
      walkers[c].chain->back_to_best();
    }
    result.proposals = result.accepted = result.simulated = 0;
    for (const Walker& walker : walkers) {
      result.proposals += walker.chain->proposals();
      result.accepted += walker.chain->accepted();
      result.simulated += walker.judge->simulated();
    }
    if (options.progress) options.progress(result.proposals, result.simulated, energy);
  }
  const size_t best = best_of_all();
  result.best = walkers[best].chain->best();
  result.energy = walkers[best].chain->best_energy();
  result.valid = walkers[best].chain->valid();
  return result;
}

}  // namespace windlass
