// Random chains of layers and strategies for packs of them, for tests: small, uneven, and of every
// kind.
#pragma once

#include <cstdint>
#include <tuple>
#include <utility>
#include <vector>

#include "windlass/base/rng.h"
#include "windlass/cost/layer_profile.h"
#include "windlass/strategy/packs.h"

namespace windlass {

// Layers of about a tenth of a second and a hundred megabytes; the loss is small. Passes are
// measured at sizes 1, 2, 4 and 8.
inline LayerProfile synthetic_profile(Rng& rng, int64_t layers) {
  LayerProfile profile;
  for (int64_t l = 0; l < layers; ++l) {
    const bool loss = l + 1 == layers;
    profile.weights.push_back(loss ? 0 : rng.integer(20, 200) * 1'000'000);
    profile.buffers.push_back(rng.integer(0, 2) * 100'000);
    profile.optimizer.push_back(2 * profile.weights.back());
    profile.input.push_back(rng.integer(1, 30) * 1'000'000);
    profile.host_update.push_back(rng.uniform(0, 0.05));
  }
  for (int64_t size : {1, 2, 4, 8}) {
    profile.forward.sizes.push_back(size);
    profile.backward.sizes.push_back(size);
    PassCosts forward, backward;
    for (int64_t l = 0; l < layers; ++l) {
      const auto at = static_cast<size_t>(l);
      const double seconds =
          (0.2 + static_cast<double>(size)) * (0.01 + 0.001 * static_cast<double>(at * 7 % 5));
      forward.seconds.push_back(seconds);
      backward.seconds.push_back(3 * seconds);
      const int64_t input = profile.input_bytes(at, size);
      forward.peak.push_back(profile.weights[at] + 3 * input);
      backward.peak.push_back(2 * profile.weights[at] + 6 * input);
    }
    profile.forward.at_size.push_back(forward);
    profile.backward.at_size.push_back(backward);
  }
  return profile;
}

inline std::vector<Pack> random_packs(Rng& rng, int32_t layers, double density) {
  std::vector<Pack> packs;
  for (int32_t l = 0; l < layers; ++l) {
    if (packs.empty() || rng.chance(density)) packs.push_back({l, l});
    packs.back().last = l;
  }
  return packs;
}

// These packs, the plainest way: whole packs in turn, everything recomputed and updated on the
// host.
inline PackStrategy plain_packs(std::vector<Pack> forward, std::vector<Pack> backward) {
  PackStrategy strategy;
  strategy.forward_packs = std::move(forward);
  strategy.actions.assign(backward.size(), PackAction::Recompute);
  strategy.stash_on_host.assign(backward.size(), 1);
  strategy.device_update.assign(backward.size(), 0);
  strategy.keep_shares.assign(backward.size(), 0);
  strategy.backward_packs = std::move(backward);
  strategy.piece_bytes = strategy.state_bytes = INT64_MAX;
  strategy.streams = false;
  return strategy;
}

// A strategy of any kind, for its share of a machine of four devices.
inline PackStrategy random_pack_strategy(Rng& rng, const LayerProfile& profile) {
  const std::vector<Pack> backward =
      random_packs(rng, static_cast<int32_t>(profile.layers()), rng.uniform(0, 0.8));
  PackStrategy strategy =
      plain_packs(random_packs(rng, backward.back().first, rng.uniform(0, 0.8)), backward);
  strategy.forward_microbatch = rng.integer(1, 8);
  strategy.backward_microbatch = rng.chance(0.4) ? strategy.forward_microbatch : rng.integer(1, 8);
  const std::vector<std::pair<int32_t, int32_t>> shapes = {{1, 1}, {2, 1}, {4, 1}, {1, 2},
                                                           {1, 3}, {1, 4}, {2, 2}};
  std::tie(strategy.replicas, strategy.depth) =
      shapes[static_cast<size_t>(rng.integer(0, static_cast<int64_t>(shapes.size()) - 1))];
  strategy.streams = rng.chance(0.8);
  if (!strategy.streams) return strategy;
  strategy.piece_bytes =
      rng.chance(0.3) ? rng.integer(1, 20'000'000) : rng.integer(20'000'000, 400'000'000);
  strategy.state_bytes = rng.integer(1, 8) * 1'000'000'000;
  for (size_t p = 0; p < strategy.backward_packs.size(); ++p) {
    strategy.stash_on_host[p] = rng.chance(0.5);
    strategy.device_update[p] = rng.chance(0.3);
    strategy.keep_shares[p] = rng.chance(0.5);
    if (p + 1 < strategy.backward_packs.size() && strategy.depth == 1 &&
        strategy.forward_microbatch == strategy.backward_microbatch)
      strategy.actions[p] = static_cast<PackAction>(rng.integer(0, 2));
  }
  return strategy;
}

}  // namespace windlass
