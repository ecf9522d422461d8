#include "windlass/search/packs/stream_fill.h"

#include <algorithm>

#include "windlass/search/packs/partition.h"

namespace windlass {

int64_t StreamFill::room_ahead() const {
  int64_t bytes = 4 * PackStrategy().piece_bytes;
  for (int32_t l = 0; l < chain_.layers(); ++l)
    bytes = std::max(bytes, chain_.state_bytes({l, l}) + chain_.weight_bytes({l, l}));
  return bytes;
}

int64_t StreamFill::pack_state(const PackStrategy& strategy) const {
  int64_t most = 0;
  for (Pack pack : strategy.forward_packs) most = std::max(most, chain_.state_bytes(pack));
  for (Pack pack : strategy.backward_packs)
    most = std::max(most, chain_.state_bytes(pack) + chain_.weight_bytes(pack));
  return most;
}

// The largest number of packs, counted from the loss, for which `set` makes a strategy that fits;
// within a sixteenth of all.
template <typename Set>
size_t StreamFill::most_packs(PackStrategy& strategy, StreamCost& cost, Set set) {
  const size_t count = strategy.backward_packs.size();
  const auto attempt = [&](size_t packs) {
    PackStrategy tried = strategy;
    for (size_t p = count - packs; p < count; ++p) set(tried, p);
    const StreamCost result = pricer_.price(tried);
    if (!result.fits) return false;
    strategy = std::move(tried);
    cost = result;
    return true;
  };
  if (attempt(count)) return count;
  size_t low = 0, high = count;
  while (high - low > std::max<size_t>(1, count / 16)) {
    const size_t middle = (low + high) / 2;
    (attempt(middle) ? low : high) = middle;
  }
  return low;
}

// As many as there is memory for: all shares are there at the end of the forward pass.
void StreamFill::keep_shares(PackStrategy& strategy, StreamCost& cost) {
  if (strategy.replicas == 1 || strategy.backward_packs.size() < 2) return;
  int64_t room = limit_ - cost.peak_bytes;
  PackStrategy tried = strategy;
  bool some = false;
  for (size_t p = strategy.backward_packs.size() - 1; p-- > 0;) {
    room -= chain_.state_bytes(strategy.backward_packs[p]) / strategy.replicas;
    if (room < 0) break;
    tried.keep_shares[p] = 1;
    some = true;
  }
  if (!some) return;
  const StreamCost result = pricer_.price(tried);
  if (!result.fits || result.volume.swapped() >= cost.volume.swapped()) return;
  strategy = std::move(tried);
  cost = result;
}

double StreamFill::fill(PipelineShape shape, const HarmonyPlan& packs, const NoteStrategy& note,
                        const std::function<double()>& enough,
                        const std::vector<uint8_t>& on_host) {
  PackStrategy strategy;
  strategy.replicas = shape.replicas;
  strategy.depth = shape.depth;
  strategy.forward_microbatch = packs.forward_microbatch;
  strategy.backward_microbatch = packs.backward_microbatch;
  strategy.forward_packs = packs.forward_packs;
  strategy.backward_packs = packs.backward_packs;
  const size_t count = packs.backward_packs.size();
  strategy.actions.assign(count, PackAction::Recompute);
  strategy.stash_on_host.assign(count, 1);
  strategy.device_update.assign(count, 0);
  strategy.keep_shares.assign(count, 0);
  const int64_t ahead = room_ahead();
  strategy.state_bytes = pack_state(strategy) + ahead;
  PackStrategy placed = strategy;
  StreamCost cost;
  if (!on_host.empty()) {
    placed.stash_on_host = on_host;
    cost = price(placed);
  }
  const bool is_placed = cost.fits;
  const StreamCost placed_cost = cost;
  if (!is_placed) {
    cost = pricer_.price(strategy);
    if (!cost.fits) {
      strategy.state_bytes -= ahead;
      cost = pricer_.price(strategy);
    }
    least_limit_ = std::min(least_limit_, cost.peak_bytes);
    if (!cost.fits) return kDoesNotFit;
  }

  const auto on_device = [](PackStrategy& s, size_t p) { s.stash_on_host[p] = 0; };
  const auto kept = [&](PackStrategy& s, size_t p) {
    if (p + 1 < count) s.actions[p] = PackAction::Keep;
  };
  double result = kDoesNotFit;
  for (bool keep : {false, true}) {
    if (keep && (shape.depth > 1 || packs.forward_microbatch != packs.backward_microbatch ||
                 count < 2 || result > 1.04 * enough()))
      continue;
    PackStrategy filled = is_placed ? placed : strategy;
    StreamCost filled_cost = is_placed ? placed_cost : cost;
    if (keep && most_packs(filled, filled_cost, kept) < 2) continue;
    if (!is_placed) most_packs(filled, filled_cost, on_device);
    keep_shares(filled, filled_cost);
    const double counts = note(filled, filled_cost);
    result = std::min(result, counts);
    // What is left goes to weights.
    if (counts > enough() * 1.02) continue;
    filled.state_bytes += limit_ - filled_cost.peak_bytes;
    const StreamCost with_weights = pricer_.price(filled);
    if (with_weights.fits) result = std::min(result, note(filled, with_weights));
  }
  return result;
}

StreamCost StreamFill::price(PackStrategy& strategy) {
  StreamCost cost = pricer_.price(strategy);
  if (cost.fits || cost.peak_bytes == 0) return cost;
  const int64_t smaller = strategy.state_bytes - (cost.peak_bytes - limit_);
  if (smaller < pack_state(strategy)) return cost;
  strategy.state_bytes = smaller;
  return pricer_.price(strategy);
}

PackStrategy StreamFill::refine(PackStrategy strategy, double counts, const NoteStrategy& note,
                                const std::function<bool()>& spent) {
  if (!strategy.streams) return strategy;
  const size_t count = strategy.backward_packs.size();
  const bool may_keep =
      strategy.depth == 1 && strategy.forward_microbatch == strategy.backward_microbatch;
  const auto attempt = [&](const std::function<void(PackStrategy&)>& change) {
    PackStrategy tried = strategy;
    change(tried);
    if (tried == strategy) return;
    const StreamCost cost = price(tried);
    if (!cost.fits) return;
    const double now = note(tried, cost);
    if (now >= counts) return;
    counts = now;
    strategy = std::move(tried);
  };
  for (double before = kDoesNotFit; counts < before * (1 - 1e-4) && !spent();) {
    before = counts;
    for (bool device : {true, false})
      attempt([&](PackStrategy& s) { s.device_update.assign(count, device); });
    for (size_t p = 0; p < count && !spent(); ++p) {
      attempt([&](PackStrategy& s) { s.stash_on_host[p] ^= 1; });
      if (strategy.replicas > 1) attempt([&](PackStrategy& s) { s.keep_shares[p] ^= 1; });
      attempt([&](PackStrategy& s) { s.device_update[p] ^= 1; });
      if (!may_keep || p + 1 == count) continue;
      for (PackAction action : {PackAction::Recompute, PackAction::Keep, PackAction::Offload})
        attempt([&](PackStrategy& s) { s.actions[p] = action; });
    }
    attempt([&](PackStrategy& s) { s.state_bytes += limit_ / 32; });
    attempt([&](PackStrategy& s) {
      s.state_bytes = std::max(pack_state(s), s.state_bytes - limit_ / 32);
    });
  }
  return strategy;
}

}  // namespace windlass
