// Micro-batch sizes are divisors of the samples. For each backward size, packers cut all layers;
// for each forward size that is not smaller, packers cut the layers before the loss pack, or the
// backward packs are used again. Every packer returns its first success, which is what makes the
// procedure fast and short-sighted.
#include "windlass/search/peers/harmony/packers.h"

#include <algorithm>
#include <cmath>
#include <functional>

namespace windlass {
namespace {

// Layers [0, layers) to be cut: time of each, memory of each inside of a pack, and whether a pack
// fits.
struct PackCutting {
  int32_t layers = 0;
  std::vector<double> seconds = {}, memory = {};
  std::function<bool(Pack)> fits = {};
  double total_memory = 0;
  double cap = 0;
};

std::vector<Pack> greedy(const PackCutting& cutting) {
  std::vector<Pack> packs;
  for (int32_t l = 0; l < cutting.layers; ++l) {
    if (!packs.empty() && cutting.fits({packs.back().first, l}))
      packs.back().last = l;
    else
      packs.push_back({l, l});
    if (!cutting.fits(packs.back())) return {};
  }
  return packs;
}

std::vector<Pack> greedy_reverse(const PackCutting& cutting) {
  std::vector<Pack> packs;
  for (int32_t l = cutting.layers - 1; l >= 0; --l) {
    if (!packs.empty() && cutting.fits({l, packs.back().last}))
      packs.back().first = l;
    else
      packs.push_back({l, l});
    if (!cutting.fits(packs.back())) return {};
  }
  std::ranges::reverse(packs);
  return packs;
}

// More and more packs until all fit.
std::vector<Pack> balanced(const PackCutting& cutting, const std::vector<double>& weights,
                           bool whole) {
  const auto least = static_cast<int32_t>(
      std::clamp(std::ceil(cutting.total_memory / cutting.cap), 1.0, double(cutting.layers)));
  for (int32_t count = least; count <= cutting.layers; ++count) {
    std::vector<Pack> packs = balanced_packs(weights, count, whole);
    if (!packs.empty() && std::ranges::all_of(packs, cutting.fits)) return packs;
  }
  return {};
}

std::vector<std::vector<Pack>> pack(const PackCutting& cutting) {
  std::vector<std::vector<Pack>> result;
  if (cutting.layers == 0) return result;
  for (std::vector<Pack> packs :
       {balanced(cutting, cutting.seconds, false), balanced(cutting, cutting.memory, true),
        greedy(cutting), greedy_reverse(cutting)})
    if (!packs.empty() && std::ranges::find(result, packs) == result.end())
      result.push_back(std::move(packs));
  return result;
}

PackCutting cutting_of(const ChainTables& chain, const PassTable& table, int64_t size,
                       int32_t layers, int64_t cap, std::function<bool(Pack)> fits) {
  PackCutting cutting = {
      .layers = layers, .fits = std::move(fits), .cap = static_cast<double>(cap)};
  for (int32_t l = 0; l < layers; ++l) {
    const auto at = static_cast<size_t>(l);
    cutting.seconds.push_back(ChainTables::seconds(table, {l, l}));
    cutting.memory.push_back(static_cast<double>(table.memory[at + 1] - table.memory[at]));
  }
  if (layers > 0)
    cutting.total_memory = static_cast<double>(chain.memory(table, {0, layers - 1}, size));
  return cutting;
}

// Inputs of backward packs, the loss's excepted, summed over the layers before each.
std::vector<int64_t> stash_sums(const ChainTables& chain, const std::vector<Pack>& backward) {
  std::vector<int64_t> sums(static_cast<size_t>(backward.back().first) + 1, 0);
  for (size_t p = 0; p + 1 < backward.size(); ++p)
    sums[static_cast<size_t>(backward[p].first) + 1] = chain.input(backward[p].first, 1);
  for (size_t l = 1; l < sums.size(); ++l) sums[l] += sums[l - 1];
  return sums;
}

}  // namespace

std::vector<Pack> balanced_packs(const std::vector<double>& weights, int32_t count, bool whole) {
  std::vector<double> sums;
  double total = 0;
  for (const double weight : weights) sums.push_back(total += weight);
  const double step = whole ? std::floor(total / count) : total / count;
  std::vector<Pack> packs;
  int32_t first = 0;
  for (int32_t p = 1; p <= count; ++p) {
    const auto end = p < count ? std::ranges::lower_bound(sums, step * p) - sums.begin()
                               : static_cast<std::ptrdiff_t>(sums.size());
    if (end <= first) return {};
    packs.push_back({first, static_cast<int32_t>(end) - 1});
    first = static_cast<int32_t>(end);
  }
  return packs;
}

std::optional<HarmonyBaseline> harmony_own_search(ChainTables& chain, HarmonyMode mode,
                                                  int32_t devices, int64_t minibatch, int64_t cap,
                                                  bool prefetch) {
  HarmonyEstimator estimator(chain);
  const LayerProfile& profile = chain.profile();
  const int64_t samples = samples_of_device(mode, minibatch, devices);
  std::optional<HarmonyBaseline> best;
  int64_t tried = 0;
  const auto consider = [&](const HarmonyPlan& plan) {
    if (harmony_peak_bytes(chain, plan) > cap) return;
    ++tried;
    const double seconds = estimator.seconds(plan, minibatch, prefetch);
    if (!best || seconds < best->seconds) best = {plan, seconds, 0};
  };
  for (int64_t ub = 1; ub <= samples; ++ub) {
    if (samples % ub != 0 || !profile.backward.covers(ub) || !profile.forward.covers(ub)) continue;
    const PassTable& backward = chain.backward(ub);
    for (bool strict : {false, true}) {
      const auto fits = [&](Pack p) {
        return (strict ? chain.backward_task_bytes(backward, p, ub)
                       : chain.memory(backward, p, ub)) <= cap;
      };
      for (const std::vector<Pack>& packs :
           pack(cutting_of(chain, backward, ub, chain.layers(), cap, fits))) {
        HarmonyPlan plan{mode, devices, ub, ub, {}, packs};
        if (packs.size() == 1) consider(plan);
        const std::vector<int64_t> stashed = stash_sums(chain, packs);
        for (int64_t uf = ub; uf <= samples && packs.size() > 1; ++uf) {
          if (samples % uf != 0 || !profile.forward.covers(uf)) continue;
          plan.forward_microbatch = uf;
          const PassTable& forward = chain.forward(uf);
          const auto forward_fits = [&](Pack p) {
            if (!strict) return chain.memory(forward, p, uf) <= cap;
            const int64_t stash =
                stashed[static_cast<size_t>(p.last) + 1] - stashed[static_cast<size_t>(p.first)];
            return chain.forward_task_bytes(forward, p, uf, stash * uf) <= cap;
          };
          auto choices =
              pack(cutting_of(chain, forward, uf, packs.back().first, cap, forward_fits));
          choices.emplace_back(packs.begin(), packs.end() - 1);
          for (std::vector<Pack>& choice : choices) {
            plan.forward_packs = std::move(choice);
            consider(plan);
          }
        }
      }
    }
  }
  if (best) best->tried = tried;
  return best;
}

}  // namespace windlass
