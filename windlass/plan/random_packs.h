// Random networks in random packs of layers, small enough to be carried out slowly. For tests.
#pragma once

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/cost/model_chain.h"
#include "windlass/graph/network_layers.h"
#include "windlass/plan/random_step.h"
#include "windlass/strategy/packs.h"

namespace windlass::cases {

// [0, end) in packs; none if end is 0.
inline std::vector<Pack> random_cuts(int32_t end, Rng& rng) {
  std::vector<Pack> packs;
  const double often = rng.uniform(0.1, 0.9);
  for (int32_t l = 0; l < end; ++l) {
    if (packs.empty() || rng.chance(often)) packs.push_back({l, l});
    packs.back().last = l;
  }
  return packs;
}

// The least window for weights and gradients that holds each of the packs.
inline int64_t least_window(const LayerProfile& chain, const PackStrategy& strategy) {
  int64_t least = 1;
  for (const auto* packs : {&strategy.forward_packs, &strategy.backward_packs})
    for (const Pack& pack : *packs) {
      int64_t bytes = 0;
      for (auto l = static_cast<size_t>(pack.first); l <= static_cast<size_t>(pack.last); ++l)
        bytes += chain.weights[l] * (packs == &strategy.backward_packs ? 2 : 1) + chain.buffers[l];
      least = std::max(least, bytes);
    }
  return least;
}

inline PackStrategy random_packs(const LayerProfile& chain, int64_t samples, int64_t devices,
                                 Rng& rng) {
  const auto layers = static_cast<int32_t>(chain.layers());
  PackStrategy strategy;
  do {
    strategy.replicas = static_cast<int32_t>(rng.integer(1, devices));
  } while (samples % strategy.replicas != 0);
  strategy.depth = static_cast<int32_t>(rng.integer(1, devices / strategy.replicas));
  const int64_t share = samples / strategy.replicas;
  strategy.forward_microbatch = rng.integer(1, share);
  strategy.backward_microbatch =
      rng.chance(0.5) ? strategy.forward_microbatch : rng.integer(1, share);
  strategy.backward_packs = random_cuts(layers, rng);
  strategy.forward_packs = random_cuts(strategy.backward_packs.back().first, rng);
  const size_t packs = strategy.backward_packs.size();
  strategy.streams = rng.chance(0.8);
  strategy.actions.assign(packs, PackAction::Recompute);
  strategy.stash_on_host.assign(packs, 1);
  strategy.device_update.assign(packs, 0);
  strategy.keep_shares.assign(packs, 0);
  for (size_t p = 0; strategy.streams && p < packs; ++p) {
    strategy.stash_on_host[p] = rng.chance(0.5) ? 1 : 0;
    strategy.device_update[p] = rng.chance(0.3) ? 1 : 0;
    strategy.keep_shares[p] = rng.chance(0.3) ? 1 : 0;
    if (p + 1 == packs) continue;
    strategy.actions[p] = static_cast<PackAction>(rng.integer(0, 2));
    try {
      check_packs(strategy, layers, samples, devices);
    } catch (const Error&) {
      strategy.actions[p] = PackAction::Recompute;
    }
  }
  const int64_t window = least_window(chain, strategy);
  strategy.piece_bytes = rng.chance(0.5) ? rng.integer(1, window) : 48 << 20;
  strategy.state_bytes = rng.chance(0.5) ? window : rng.integer(window, 8 * window);
  return strategy;
}

struct RandomPacks {
  std::string name;
  Machine machine;
  Graph network;  // of the whole batch, as is
  TrainingGraph training;
  PackStrategy strategy;
};

// Weights that layers read through views: one of them in two layers, as different matrices.
inline Graph viewed_weights(int64_t batch) {
  Net net("viewed weights");
  const TensorId x = net.b.input("x", f32({batch, 4, 8}));
  const TensorId flat = net.b.weight("flat", f32({16 * 32}));
  TensorId y = net.reshape(x, {batch, 32}, "rows");
  y = net.b.op(OpKind::Linear, LinearAttrs{}, {y, net.reshape(flat, {16, 32}, "matrix")}, "first");
  const TensorId slopes = net.reshape(net.b.weight("slopes", f32({16})), {1, 16}, "row");
  y = net.relu(net.b.op(OpKind::Binary, BinaryAttrs{.fn = BinaryFn::Mul}, {y, slopes}, "scaled"),
               "relu");
  y = net.reshape(y, {batch, 16, 1}, "column");
  y = net.reshape(net.relu(y, "relu2"), {batch, 16}, "back");
  return net.finish(net.b.op(OpKind::Linear, LinearAttrs{},
                             {y, net.reshape(flat, {32, 16}, "turned")}, "second"));
}

inline Graph random_network(Rng& rng, int64_t samples) {
  switch (rng.integer(0, 5)) {
    case 0: return mlp(samples, rng.integer(1, 4), 10);
    case 1: return cnn(samples);
    case 2: return transformer(samples, 1, true);
    case 3: return transformer(samples, rng.integer(1, 2), false);
    case 4: return dropout(samples);
    default: return viewed_weights(samples);
  }
}

inline RandomPacks random_packs_of(const Graph& network, uint64_t seed, int64_t samples, Rng& rng) {
  RandomPacks step{{}, machine(static_cast<int>(rng.integer(1, 4))), network, {}, {}};
  TrainingOptions options;
  options.optimizer = static_cast<OptimizerKind>(rng.integer(0, 3));
  step.training = differentiate(network, options);
  const auto devices = static_cast<int64_t>(step.machine.devices.size());
  step.strategy = random_packs(bytes_of_layers(step.training, find_layers(network), samples),
                               samples, devices, rng);
  step.name = fmt::format("seed {}: {} of {} samples, {} x {} devices, micro-batches {} and {}",
                          seed, network.name, samples, step.strategy.replicas, step.strategy.depth,
                          step.strategy.forward_microbatch, step.strategy.backward_microbatch);
  return step;
}

// Small enough to be carried out slowly.
inline RandomPacks random_pack_step(uint64_t seed) {
  Rng rng(seed);
  const int64_t samples = rng.integer(2, 6);
  const Graph network = random_network(rng, samples);
  return random_packs_of(rng.chance(0.2) ? with_dtype(network, DType::BF16) : network, seed,
                         samples, rng);
}

// Large enough that what allocators round does not matter.
inline RandomPacks large_pack_step(uint64_t seed) {
  Rng rng(seed);
  constexpr int64_t kSamples = 24;
  switch (rng.integer(0, 2)) {
    case 0: return random_packs_of(mlp(kSamples, rng.integer(2, 8), 256), seed, kSamples, rng);
    case 1: return random_packs_of(cnn(kSamples), seed, kSamples, rng);
    default:
      return random_packs_of(transformer(kSamples, rng.integer(1, 4), rng.chance(0.5)), seed,
                             kSamples, rng);
  }
}

}  // namespace windlass::cases
