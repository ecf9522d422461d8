// Step times of packed plans are maxima over many paths, so that most single moves change nothing
// and some gains need several borders to move together: hence runs of borders and both passes at
// once in the neighbourhood (O(packs^2) plans), and annealing to cross plateaus. No guarantee.
#include "windlass/search/packs/local_search.h"

#include <algorithm>
#include <cmath>

namespace windlass {
namespace {

// Moves the border before pack `index` by `by` layers, whatever that does to the packs.
void move_border(std::vector<Pack>& packs, size_t index, int32_t by) {
  packs[index - 1].last += by;
  packs[index].first += by;
}

bool all_filled(const std::vector<Pack>& packs) {
  return std::ranges::all_of(packs, [](Pack p) { return p.first <= p.last; });
}

size_t border_at(const std::vector<Pack>& packs, int32_t layer) {
  for (size_t i = 1; i < packs.size(); ++i)
    if (packs[i].first == layer) return i;
  return 0;
}

void split_at(std::vector<Pack>& packs, size_t index, int32_t layer) {
  const Pack pack = packs[index];
  packs[index].last = layer - 1;
  packs.insert(packs.begin() + static_cast<std::ptrdiff_t>(index) + 1, Pack{layer, pack.last});
}

void merge_at(std::vector<Pack>& packs, size_t border) {
  packs[border - 1].last = packs[border].last;
  packs.erase(packs.begin() + static_cast<std::ptrdiff_t>(border));
}

}  // namespace

bool LocalSearch::fit_forward() {
  std::vector<Pack>& packs = scratch_.forward_packs;
  const int32_t end = scratch_.backward_packs.back().first;
  while (!packs.empty() && packs.back().first >= end) packs.pop_back();
  if (end > 0 && packs.empty()) packs.push_back({0, end - 1});
  if (!packs.empty()) packs.back().last = end - 1;
  return true;
}

bool LocalSearch::shift_backward(size_t from, size_t to, int32_t by, bool both) {
  std::vector<Pack>& backward = scratch_.backward_packs;
  std::vector<Pack>& forward = scratch_.forward_packs;
  if (both)
    for (size_t i = from; i <= to; ++i)
      if (const size_t border = border_at(forward, backward[by > 0 ? to + from - i : i].first))
        move_border(forward, border, by);
  for (size_t i = from; i <= to; ++i) move_border(backward, i, by);
  return all_filled(backward) && fit_forward() && all_filled(forward);
}

bool LocalSearch::shift_forward(size_t from, size_t to, int32_t by) {
  for (size_t i = from; i <= to; ++i) move_border(scratch_.forward_packs, i, by);
  return all_filled(scratch_.forward_packs);
}

bool LocalSearch::merge(bool backward, size_t border, bool both) {
  std::vector<Pack>& packs = backward ? scratch_.backward_packs : scratch_.forward_packs;
  if (both)
    if (const size_t other = border_at(scratch_.forward_packs, packs[border].first))
      merge_at(scratch_.forward_packs, other);
  merge_at(packs, border);
  return fit_forward();
}

bool LocalSearch::split(bool backward, size_t pack, int32_t at, bool both) {
  std::vector<Pack>& packs = backward ? scratch_.backward_packs : scratch_.forward_packs;
  if (at <= packs[pack].first || at > packs[pack].last) return false;
  const bool loss = backward && pack + 1 == packs.size();
  split_at(packs, pack, at);
  std::vector<Pack>& forward = scratch_.forward_packs;
  if (loss) {  // what the loss pack gives up needs a forward task
    const int32_t begin = forward.empty() ? 0 : forward.back().last + 1;
    if (both || forward.empty())
      forward.push_back({begin, at - 1});
    else
      forward.back().last = at - 1;
  } else if (both && backward) {
    for (size_t f = 0; f < forward.size(); ++f)
      if (forward[f].first < at && at <= forward[f].last) {
        split_at(forward, f, at);
        break;
      }
  }
  return true;
}

int32_t LocalSearch::middle(Pack pack, bool backward) {
  const PassTable& table = backward ? chain_.backward(scratch_.backward_microbatch)
                                    : chain_.forward(scratch_.forward_microbatch);
  const double half = (table.seconds[static_cast<size_t>(pack.first)] +
                       table.seconds[static_cast<size_t>(pack.last) + 1]) /
                      2;
  int32_t at = pack.first + 1;
  while (at < pack.last && table.seconds[static_cast<size_t>(at)] < half) ++at;
  return at;
}

bool LocalSearch::for_each_neighbour(const HarmonyPlan& plan,
                                     const std::function<bool(const HarmonyPlan&)>& visit) {
  const auto attempt = [&](auto&& change) {
    scratch_ = plan;
    return change() && visit(scratch_);
  };
  const size_t backward = plan.backward_packs.size(), forward = plan.forward_packs.size();
  const auto next_size = [&](const std::vector<int64_t>& sizes, int64_t& size, int step) {
    const auto found = std::ranges::find(sizes, size);
    const auto at = (found - sizes.begin()) + step;
    if (found == sizes.end() || at < 0 || at >= std::ssize(sizes)) return false;
    size = sizes[static_cast<size_t>(at)];
    return true;
  };
  for (int step : {-1, 1}) {
    if (attempt([&] { return next_size(sizes_.backward, scratch_.backward_microbatch, step); }) ||
        attempt([&] { return next_size(sizes_.forward, scratch_.forward_microbatch, step); }) ||
        attempt([&] {
          return next_size(sizes_.backward, scratch_.backward_microbatch, step) &&
                 next_size(sizes_.forward, scratch_.forward_microbatch, step);
        }))
      return true;
  }
  for (size_t i = 0; i < backward; ++i)
    for (bool both : {true, false}) {
      if (i > 0 && attempt([&] { return merge(true, i, both); })) return true;
      if (attempt([&] { return split(true, i, middle(plan.backward_packs[i], true), both); }))
        return true;
    }
  for (size_t i = 0; i < forward; ++i) {
    if (i > 0 && attempt([&] { return merge(false, i, false); })) return true;
    if (attempt([&] { return split(false, i, middle(plan.forward_packs[i], false), false); }))
      return true;
  }
  const int32_t large = std::max(2, chain_.layers() / 40);
  for (int32_t step : {1, large})
    for (int32_t by : {step, -step})
      for (size_t from = 1; from < std::max(backward, forward); ++from)
        for (size_t to = from; to < std::max(backward, forward); ++to) {
          if (to < backward) {
            if (attempt([&] { return shift_backward(from, to, by, true); })) return true;
            if (attempt([&] { return shift_backward(from, to, by, false); })) return true;
          }
          if (to < forward && attempt([&] { return shift_forward(from, to, by); })) return true;
        }
  return false;
}

bool LocalSearch::random_neighbour(const HarmonyPlan& plan, Rng& rng) {
  scratch_ = plan;
  std::vector<Pack>&backward = scratch_.backward_packs, &forward = scratch_.forward_packs;
  const bool both = rng.chance(0.5);
  const bool on_backward = both || forward.size() < 2 || rng.chance(0.5);
  const std::vector<Pack>& packs = on_backward ? backward : forward;
  const double draw = rng.uniform();
  const auto any = [&](size_t first, size_t count) {
    return static_cast<size_t>(
        rng.integer(static_cast<int64_t>(first), static_cast<int64_t>(count) - 1));
  };
  if (draw < 0.05) {
    for (auto [sizes, size] : {std::pair(&sizes_.backward, &scratch_.backward_microbatch),
                               std::pair(&sizes_.forward, &scratch_.forward_microbatch)})
      if (both || rng.chance(0.5)) *size = (*sizes)[any(0, sizes->size())];
    return true;
  }
  if (draw < 0.12) {
    const size_t pack = any(0, packs.size());
    const Pack range = packs[pack];
    if (range.first == range.last) return false;
    return split(on_backward, pack, static_cast<int32_t>(rng.integer(range.first + 1, range.last)),
                 both);
  }
  if (packs.size() < 2) return false;
  if (draw < 0.19) return merge(on_backward, any(1, packs.size()), both);
  const size_t from = any(1, packs.size());
  const size_t to = rng.chance(0.6) ? from : any(from, packs.size());
  const int32_t reach = std::max(1, chain_.layers() / 50);
  const auto by = static_cast<int32_t>(rng.integer(1, reach)) * (rng.chance(0.5) ? 1 : -1);
  return on_backward ? shift_backward(from, to, by, both) : shift_forward(from, to, by);
}

void LocalSearch::descend(CostedPlan& best, int64_t limit) {
  bool better = true;
  while (better && spent_() < limit)
    better = for_each_neighbour(best.plan, [&](const HarmonyPlan& plan) {
      const double cost = cost_(plan);
      if (cost >= best.cost * (1 - 1e-9)) return spent_() >= limit;
      best = {plan, cost};
      return true;
    });
}

void LocalSearch::anneal(CostedPlan& best, int64_t limit, double hot, double cold, uint64_t seed) {
  Rng rng(seed);
  CostedPlan now = best;
  const int64_t begin = spent_();
  for (int64_t tries = 0; spent_() < limit && tries < limit - begin; ++tries) {
    if (!random_neighbour(now.plan, rng)) continue;
    const double cost = cost_(scratch_);
    const double done = static_cast<double>(spent_() - begin) /
                        static_cast<double>(std::max<int64_t>(1, limit - begin));
    const double temperature = best.cost * hot * std::pow(cold / hot, done);
    if (cost > now.cost && !(rng.uniform() < std::exp((now.cost - cost) / temperature))) continue;
    now = {scratch_, cost};
    if (now.cost < best.cost) best = now;
  }
}

}  // namespace windlass
