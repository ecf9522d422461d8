#include "windlass/search/peers/harmony/volume.h"

#include <algorithm>
#include <numeric>

namespace windlass {
namespace {

Pack whole(const ChainTables& chain) { return {0, chain.layers() - 1}; }

int64_t sum_of(const std::vector<int64_t>& values) {
  return std::accumulate(values.begin(), values.end(), int64_t{0});
}

// Weights and buffers of layers that a device of the pipeline runs in its last forward and its
// first backward task.
int64_t pinned_bytes(const ChainTables& chain, const HarmonyPlan& plan, int32_t devices) {
  int64_t bytes = 0;
  const auto forwards = static_cast<int32_t>(plan.forward_packs.size());
  const auto backwards = static_cast<int32_t>(plan.backward_packs.size());
  for (int32_t device = 0; device < devices; ++device) {
    int32_t last = -1, first = -1;
    for (int32_t t = device; t < forwards + backwards; t += devices) {
      if (t < forwards) last = t;
      if (t >= forwards && first < 0) first = t - forwards;
    }
    if (last < 0 || first < 0) continue;
    const Pack a = plan.forward_packs[static_cast<size_t>(last)];
    const Pack b = plan.backward_packs[static_cast<size_t>(backwards - 1 - first)];
    const Pack common{std::max(a.first, b.first), std::min(a.last, b.last)};
    if (common.first <= common.last) bytes += chain.state_bytes(common);
  }
  return bytes;
}

}  // namespace

SwapVolume harmony_volume(const ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch) {
  SwapVolume volume;
  const bool pipeline = plan.mode == HarmonyMode::Pipeline;
  const size_t tasks = plan.forward_packs.size() + plan.backward_packs.size();
  const auto devices =
      pipeline ? static_cast<int32_t>(std::min(tasks, static_cast<size_t>(plan.devices)))
               : plan.devices;
  const auto input = [&](int32_t layer) { return chain.input(layer, minibatch); };
  int64_t borders = 0;  // outputs and gradients that go from one pack to the next
  for (const Pack& pack : plan.forward_packs) {
    volume.weights += chain.state_bytes(pack);
    borders += input(pack.last + 1);
  }
  for (const Pack& pack : plan.backward_packs) {
    volume.weights += chain.state_bytes(pack);
    volume.gradients += chain.state_bytes(pack);
    if (pack.first > 0) borders += input(pack.first);
  }
  volume.activations = input(0) + 2 * harmony_stash_bytes(chain, plan, minibatch);
  if (!pipeline) {
    volume.weights *= devices;
    volume.activations += 2 * borders;
    volume.peers = 2 * (devices - 1) * chain.state_bytes(whole(chain));
    return volume;
  }
  volume.weights -= pinned_bytes(chain, plan, devices);
  if (devices == 1) {
    volume.activations += 2 * borders;
    return volume;
  }
  if (plan.forward_microbatch != plan.backward_microbatch && !plan.forward_packs.empty()) {
    const int64_t converted = input(plan.forward_packs.back().last + 1);
    borders -= converted;
    volume.activations += 2 * converted;
    volume.messages += converted;
  }
  volume.peers = borders;
  const auto forwards = plan.forward_packs.size(), backwards = plan.backward_packs.size();
  size_t writer = 0;
  for (size_t p = 0; p + 1 < backwards; ++p) {
    while (plan.forward_packs[writer].last < plan.backward_packs[p].first) ++writer;
    const size_t reader = forwards + backwards - 1 - p;
    if (writer % static_cast<size_t>(devices) != reader % static_cast<size_t>(devices))
      volume.messages += input(plan.backward_packs[p].first);
  }
  return volume;
}

SwapVolume paging_volume(const ChainTables& chain, HarmonyMode mode, int32_t devices,
                         int64_t minibatch, int64_t micro_batches) {
  const LayerProfile& profile = chain.profile();
  const int64_t copies = mode == HarmonyMode::Data ? devices : 1;
  const int64_t weights = chain.weight_bytes(whole(chain));
  SwapVolume volume;
  volume.weights = (4 * micro_batches + 2) * copies * weights;
  volume.gradients = (2 * micro_batches + 1) * copies * weights;
  volume.optimizer = 2 * copies * sum_of(profile.optimizer);
  volume.activations = 2 * minibatch * sum_of(profile.input);
  volume.peers = mode == HarmonyMode::Data ? 2 * (devices - 1) * weights : 0;
  return volume;
}

SwapVolume least_volume(const ChainTables& chain, int64_t minibatch) {
  return {.weights = chain.state_bytes(whole(chain)),
          .gradients = chain.weight_bytes(whole(chain)),
          .optimizer = 0,
          .activations = chain.input(0, minibatch),
          .peers = 0,
          .messages = 0};
}

int64_t host_bytes(const ChainTables& chain, int64_t stash) {
  const LayerProfile& profile = chain.profile();
  return chain.state_bytes(whole(chain)) + chain.weight_bytes(whole(chain)) - 2 * profile.tied +
         sum_of(profile.optimizer) + stash;
}

int64_t harmony_stash_bytes(const ChainTables& chain, const HarmonyPlan& plan, int64_t minibatch) {
  int64_t bytes = 0;
  for (size_t p = 0; p + 1 < plan.backward_packs.size(); ++p)
    bytes += chain.input(plan.backward_packs[p].first, minibatch);
  return bytes;
}

}  // namespace windlass
