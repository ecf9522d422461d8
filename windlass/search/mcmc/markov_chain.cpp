#include "windlass/search/mcmc/markov_chain.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace windlass {

MarkovChain::MarkovChain(Moves& moves, Judge& judge, Strategy start, Rng rng,
                         const ChainOptions& options)
    : moves_(moves), judge_(judge), rng_(rng), options_(options), now_(std::move(start)) {
  key_ = strategy_key(now_);
  constexpr double kAnything = std::numeric_limits<double>::max();
  energy_ = judge_.energy(now_, key_, kAnything).value_or(kAnything);
  best_ = now_;
  best_energy_ = energy_;
}

void MarkovChain::restart(const Strategy& from, double energy) {
  if (energy >= best_energy_) return;
  best_ = from;
  moves_.refresh(best_);
  best_energy_ = energy;
  back_to_best();
}

void MarkovChain::back_to_best() {
  now_ = best_;
  energy_ = best_energy_;
  key_ = strategy_key(now_);
}

void MarkovChain::run(int64_t proposals, int64_t simulations, const std::function<bool()>& stop) {
  constexpr int64_t kAskEvery = 64;
  const int64_t before = judge_.simulated();
  const auto share = [](int64_t done, int64_t of) {
    return of > 0 ? static_cast<double>(done) / static_cast<double>(of) : 0;
  };
  for (int64_t i = 0; i < proposals; ++i) {
    if (i % kAskEvery == 0 && stop && stop()) {
      stopped_ = true;
      return;
    }
    const double progress =
        std::max(share(i, proposals), share(judge_.simulated() - before, simulations));
    if (progress >= 1) return;
    const double temperature =
        options_.hot > 0 ? options_.hot * std::pow(options_.cold / options_.hot, progress) : 0;
    if (!moves_.propose(now_, rng_, proposal_)) {
      take_back(now_, proposal_);
      continue;
    }
    ++proposals_;
    // The draw that decides comes first: it says up to which energy the proposal is accepted, so
    // that most need no simulation.
    const double scale =
        options_.absolute > 0 ? options_.absolute : judge_.scale(energy_) * temperature;
    const double most = energy_ - scale * std::log(1 - rng_.uniform());
    const uint64_t key = strategy_key_after(key_, now_, proposal_);
    const std::optional<double> energy = judge_.energy(now_, key, most);
    if (!energy) {
      take_back(now_, proposal_);
      continue;
    }
    ++accepted_;
    energy_ = *energy;
    key_ = key;
    if (energy_ < best_energy_) {
      best_energy_ = energy_;
      best_ = now_;
    }
  }
}

}  // namespace windlass
