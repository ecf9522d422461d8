// Random chains and plans for tests: small, uneven, and of every kind.
#pragma once

#include "windlass/base/rng.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

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

inline HarmonyPlan random_plan(Rng& rng, int32_t layers, int32_t devices) {
  HarmonyPlan plan;
  plan.mode = rng.chance(0.5) ? HarmonyMode::Data : HarmonyMode::Pipeline;
  plan.devices = devices;
  plan.forward_microbatch = rng.integer(1, 8);
  plan.backward_microbatch = rng.chance(0.4) ? plan.forward_microbatch : rng.integer(1, 8);
  plan.backward_packs = random_packs(rng, layers, rng.uniform(0, 0.8));
  plan.forward_packs = random_packs(rng, plan.backward_packs.back().first, rng.uniform(0, 0.8));
  return plan;
}

}  // namespace windlass
