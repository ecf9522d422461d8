// Harmony's own procedure gives a first plan. Then three rounds. First, for each backward
// micro-batch size, exact partitions for every number of packs, with the same packs forward.
// Second, around the best of those, exact forward partitions for every forward size and number of
// packs. Third, descent from the best few and annealing from the best. A pair of sizes is left out
// when its lower bound is not below the best plan so far. The partitions are exact for their proxy
// of the step time, the result as a whole is not.
#include "windlass/search/packs/pack_search.h"

#include <algorithm>
#include <cmath>

#include "windlass/search/packs/local_search.h"
#include "windlass/search/packs/partition.h"
#include "windlass/search/peers/harmony/packers.h"
#include "windlass/search/peers/harmony/volume.h"

namespace windlass {
namespace {

constexpr size_t kKept = 16;              // candidates that the second round starts from
constexpr size_t kPolished = 6;           // that descent starts from
constexpr std::ptrdiff_t kSameSizes = 3;  // candidates with the same micro-batch sizes

class Search {
 public:
  Search(ChainTables& chain, HarmonyMode mode, int32_t devices, int64_t minibatch, int64_t cap,
         bool prefetch, const PackSearchOptions& options)
      : chain_(chain),
        estimator_(chain, options.constants),
        mode_(mode),
        devices_(devices),
        minibatch_(minibatch),
        samples_(samples_of_device(mode, minibatch, devices)),
        cap_(cap),
        prefetch_(prefetch),
        options_(options),
        sizes_(micro_batch_sizes(chain.profile(), samples_)) {}

  PackSearchResult run();

 private:
  double cost(const HarmonyPlan& plan) {
    if (harmony_peak_bytes(chain_, plan) > cap_) return kDoesNotFit;
    ++tried_;
    const double seconds = estimator_.seconds(plan, minibatch_, prefetch_);
    if (options_.byte_seconds == 0 && most_swapped_ == INT64_MAX) return seconds;
    const int64_t swapped = harmony_volume(chain_, plan, minibatch_).swapped();
    if (most_swapped_ < INT64_MAX) {
      if (seconds < fastest_.cost) fastest_ = {plan, seconds};
      if (swapped <= most_swapped_ && seconds < frugal_.cost) frugal_ = {plan, seconds};
    }
    const int64_t excess = std::max<int64_t>(0, swapped - most_swapped_);
    return seconds + options_.byte_seconds * static_cast<double>(swapped) +
           excess_seconds() * static_cast<double>(excess);
  }
  // That a byte beyond what Harmony's plan moves counts, in pipelines: part of what it takes. Data
  // parallel, the estimate has transfers follow each other, so that they count enough.
  double excess_seconds() const {
    if (mode_ == HarmonyMode::Data) return 0;
    return 0.3 * devices_ / options_.constants.swap_bandwidth;
  }
  void keep(std::vector<CostedPlan>& list, size_t most, HarmonyPlan plan) {
    const double seconds = cost(plan);
    if (seconds == kDoesNotFit) return;
    const auto place = std::ranges::upper_bound(list, seconds, {}, &CostedPlan::cost);
    if (place == list.end() && list.size() >= most) return;
    if (std::ranges::any_of(list, [&](const CostedPlan& c) { return c.plan == plan; })) return;
    const auto same_sizes = [&](const CostedPlan& c) {
      return c.plan.forward_microbatch == plan.forward_microbatch &&
             c.plan.backward_microbatch == plan.backward_microbatch;
    };
    list.insert(place, {plan, seconds});
    if (std::ranges::count_if(list, same_sizes) > kSameSizes)
      list.erase(std::ranges::find_if(list.rbegin(), list.rend(), same_sizes).base() - 1);
    else if (list.size() > most)
      list.pop_back();
  }

  // Events, and the plans themselves.
  int64_t spent() const { return estimator_.events() + 150 * tried_; }

  enum class Pass : uint8_t { Forward, Backward };
  // Seconds of all micro-batches of a pass on one device, summed over the layers before each.
  const std::vector<double>& pass_sums(Pass pass, int64_t size);
  static double of(const std::vector<double>& sums, Pack pack) {
    return sums[static_cast<size_t>(pack.last) + 1] - sums[static_cast<size_t>(pack.first)];
  }
  double bound(int64_t uf, int64_t ub);
  HarmonyPlan plan_of(int64_t uf, int64_t ub) const { return {mode_, devices_, uf, ub, {}, {}}; }
  std::vector<std::vector<Pack>> backward_choices(int64_t ub);
  std::vector<std::vector<Pack>> forward_choices(const std::vector<Pack>& backward, int64_t uf);
  HarmonyPlan most_frugal(int64_t uf, int64_t ub);
  void first_round();
  void second_round();
  void polish();
  const CostedPlan& choose() const;

  ChainTables& chain_;
  HarmonyEstimator estimator_;
  HarmonyMode mode_;
  int32_t devices_;
  int64_t minibatch_, samples_, cap_;
  bool prefetch_;
  PackSearchOptions options_;
  MicroBatchSizes sizes_;
  std::map<std::pair<Pass, int64_t>, std::vector<double>> sums_;
  std::vector<CostedPlan> found_;  // best first
  int64_t tried_ = 0;
  // Of Harmony's own plan; the fastest of all, and of those that move no more than it.
  int64_t most_swapped_ = INT64_MAX;
  double own_seconds_ = kDoesNotFit;
  CostedPlan fastest_{{}, kDoesNotFit}, frugal_{{}, kDoesNotFit};
};

const std::vector<double>& Search::pass_sums(Pass pass, int64_t size) {
  std::vector<double>& sums = sums_[{pass, size}];
  if (!sums.empty()) return sums;
  const auto table = [&](int64_t u) -> const PassTable& {
    return pass == Pass::Forward ? chain_.forward(u) : chain_.backward(u);
  };
  const auto count = static_cast<double>(samples_ / size);
  for (double seconds : table(size).seconds) sums.push_back(count * seconds);
  if (samples_ % size != 0)
    for (size_t l = 0; l < sums.size(); ++l) sums[l] += table(samples_ % size).seconds[l];
  return sums;
}

// Computing alone, spread evenly over the devices of a pipeline: backward with recompute of every
// layer, forward of those that no loss pack inside the cap can hold, and what freeing takes.
double Search::bound(int64_t uf, int64_t ub) {
  const PassTable& table = chain_.backward(ub);
  const int32_t layers = chain_.layers();
  int32_t first = layers - 1;
  while (first > 0 && chain_.memory(table, {first - 1, layers - 1}, ub) <= cap_) --first;
  double sum = pass_sums(Pass::Backward, ub).back();
  double tasks = 1;
  if (first > 0) {
    sum += pass_sums(Pass::Forward, uf)[static_cast<size_t>(first)];
    tasks = 3;
  }
  sum += tasks * options_.constants.free_seconds;
  return mode_ == HarmonyMode::Pipeline ? sum / devices_ : sum;
}

std::vector<std::vector<Pack>> Search::backward_choices(int64_t ub) {
  const PassTable& table = chain_.backward(ub);
  const std::vector<double>&forward_sums = pass_sums(Pass::Forward, ub),
        &backward_sums = pass_sums(Pass::Backward, ub);
  const int32_t layers = chain_.layers();
  const double swap = devices_ / options_.constants.swap_bandwidth;
  const auto hopeless = [&](Pack pack) {
    const auto first = static_cast<size_t>(pack.first), end = static_cast<size_t>(pack.last) + 1;
    return table.memory[end] - table.memory[first] > cap_;
  };
  const auto fits = [&](Pack pack) { return chain_.backward_task_bytes(table, pack, ub) <= cap_; };
  if (mode_ == HarmonyMode::Data) {
    // A border costs a stash out and in, a gradient out and in, and a task; the loss pack saves
    // its forward pass and one swap-in.
    const double samples = static_cast<double>(samples_);
    const PackCosts costs(
        layers,
        [&](Pack pack) {
          if (!fits(pack)) return kDoesNotFit;
          double sum = options_.constants.free_seconds +
                       4 * swap * samples * static_cast<double>(chain_.input(pack.first, 1));
          if (pack.last + 1 == layers)
            sum -= of(forward_sums, pack) + swap * static_cast<double>(chain_.state_bytes(pack));
          return sum;
        },
        hopeless);
    std::vector<Pack> packs = min_sum_partition(costs);
    if (packs.empty()) return {};
    return {std::move(packs)};
  }
  std::vector<std::vector<Pack>> result;
  for (bool with_transfers : {false, true}) {
    const PackCosts costs(
        layers,
        [&](Pack pack) {
          if (!fits(pack)) return kDoesNotFit;
          double sum = of(backward_sums, pack);
          if (with_transfers)
            sum += 2 * swap * static_cast<double>(chain_.state_bytes(pack)) +
                   options_.constants.free_seconds;
          return sum;
        },
        hopeless);
    for (std::vector<Pack>& packs : min_max_partitions(costs, options_.most_packs, true))
      if (!packs.empty()) result.push_back(std::move(packs));
  }
  return result;
}

std::vector<std::vector<Pack>> Search::forward_choices(const std::vector<Pack>& backward,
                                                       int64_t uf) {
  const int32_t layers = backward.back().first;
  if (layers == 0) return {{}};
  const PassTable& table = chain_.forward(uf);
  const std::vector<double>& forward_sums = pass_sums(Pass::Forward, uf);
  std::vector<int64_t> stash(static_cast<size_t>(layers) + 1, 0);  // of layers before each
  for (size_t p = 0; p + 1 < backward.size(); ++p)
    stash[static_cast<size_t>(backward[p].first) + 1] = chain_.input(backward[p].first, uf);
  for (size_t l = 1; l < stash.size(); ++l) stash[l] += stash[l - 1];
  const double swap = devices_ / options_.constants.swap_bandwidth;
  const auto samples = static_cast<double>(samples_);
  const bool pipeline = mode_ == HarmonyMode::Pipeline;
  const auto fits = [&](Pack pack) {
    const int64_t stashed =
        stash[static_cast<size_t>(pack.last) + 1] - stash[static_cast<size_t>(pack.first)];
    return chain_.forward_task_bytes(table, pack, uf, stashed) <= cap_;
  };
  const auto hopeless = [&](Pack pack) {
    return table.memory[static_cast<size_t>(pack.last) + 1] -
               table.memory[static_cast<size_t>(pack.first)] >
           cap_;
  };
  std::vector<std::vector<Pack>> result;
  if (!pipeline) {
    // A border costs an output out and in, and a task.
    const PackCosts costs(
        layers,
        [&](Pack pack) {
          if (!fits(pack)) return kDoesNotFit;
          return options_.constants.free_seconds +
                 2 * swap * samples * static_cast<double>(chain_.input(pack.first, 1));
        },
        hopeless);
    if (std::vector<Pack> packs = min_sum_partition(costs); !packs.empty())
      result.push_back(std::move(packs));
  }
  const PackCosts times(
      layers, [&](Pack pack) { return fits(pack) ? of(forward_sums, pack) : kDoesNotFit; },
      hopeless);
  for (std::vector<Pack>& packs : min_max_partitions(times, pipeline ? 32 : 16, true))
    if (!packs.empty()) result.push_back(std::move(packs));
  result.emplace_back(backward.begin(), backward.end() - 1);
  return result;
}

// Least largest task at these sizes: first of the backward tasks, then of the forward ones.
HarmonyPlan Search::most_frugal(int64_t uf, int64_t ub) {
  HarmonyPlan plan = plan_of(uf, ub);
  const auto smallest = [&](int32_t layers, auto&& bytes) {
    const PackCosts costs(
        layers, [&](Pack pack) { return static_cast<double>(bytes(pack)); },
        [&](Pack pack) { return pack.last - pack.first >= 4; });
    std::vector<Pack> best;
    double least = kDoesNotFit;
    for (std::vector<Pack>& packs : min_max_partitions(costs, layers, false)) {
      double most = 0;
      for (Pack pack : packs) most = std::max(most, static_cast<double>(bytes(pack)));
      if (packs.empty() || most >= least) continue;
      least = most;
      best = std::move(packs);
    }
    return best;
  };
  const PassTable &backward = chain_.backward(ub), &forward = chain_.forward(uf);
  plan.backward_packs = smallest(
      chain_.layers(), [&](Pack pack) { return chain_.backward_task_bytes(backward, pack, ub); });
  plan.forward_packs = smallest(plan.backward_packs.back().first, [&](Pack pack) {
    int64_t stash = 0;
    for (Pack reader : plan.backward_packs)
      if (reader.first >= pack.first && reader.first <= pack.last)
        stash += chain_.input(reader.first, uf);
    return chain_.forward_task_bytes(forward, pack, uf, stash);
  });
  return plan;
}

void Search::first_round() {
  for (int64_t ub : sizes_.backward) {
    if (!found_.empty() && bound(ub, ub) >= found_.front().cost) continue;
    for (std::vector<Pack>& packs : backward_choices(ub)) {
      HarmonyPlan plan = plan_of(ub, ub);
      plan.forward_packs.assign(packs.begin(), packs.end() - 1);
      plan.backward_packs = std::move(packs);
      keep(found_, kKept, plan);
      if (mode_ == HarmonyMode::Data)
        for (std::vector<Pack>& forward : forward_choices(plan.backward_packs, ub)) {
          plan.forward_packs = std::move(forward);
          keep(found_, kKept, plan);
        }
    }
  }
}

void Search::second_round() {
  const std::vector<CostedPlan> starts = found_;
  for (const CostedPlan& start : starts) {
    if (spent() > options_.effort / 3) return;
    for (int64_t uf : sizes_.forward) {
      HarmonyPlan plan = start.plan;
      if (bound(uf, plan.backward_microbatch) >= found_.front().cost) continue;
      plan.forward_microbatch = uf;
      for (std::vector<Pack>& forward : forward_choices(plan.backward_packs, uf)) {
        plan.forward_packs = std::move(forward);
        keep(found_, kKept, plan);
      }
    }
  }
}

void Search::polish() {
  LocalSearch local(
      chain_, sizes_, [&](const HarmonyPlan& plan) { return cost(plan); }, [&] { return spent(); });
  std::vector<CostedPlan> starts = found_;
  if (starts.size() > kPolished) starts.resize(kPolished);
  const int64_t begin = spent();
  const int64_t left = std::max<int64_t>(0, options_.effort - begin);
  int64_t share = left / 2 / static_cast<int64_t>(starts.size());
  for (CostedPlan& start : starts) local.descend(start, spent() + share);
  std::ranges::stable_sort(starts, {}, &CostedPlan::cost);
  const size_t chains = std::min<size_t>(2, starts.size());
  const int64_t rest = std::max<int64_t>(0, options_.effort - spent());
  for (size_t i = 0; i < chains; ++i) {
    local.anneal(starts[i], spent() + rest * 2 / 5, 0.01, 0.0001, options_.seed + i);
    local.descend(starts[i], spent() + rest / 10);
  }
  for (CostedPlan& start : starts)
    if (start.cost < found_.front().cost) found_.front() = std::move(start);
}

// What moves no more than Harmony's own plan, if it is as good as the fastest, or close to it and
// faster than that plan.
const CostedPlan& Search::choose() const {
  constexpr double kEqual = 1.002, kClose = 1.01;
  if (most_swapped_ == INT64_MAX) return found_.front();
  const bool frugal =
      frugal_.cost <= kEqual * fastest_.cost ||
      (frugal_.cost <= kClose * fastest_.cost && frugal_.cost < own_seconds_ * (1 - 1e-9));
  return frugal ? frugal_ : fastest_;
}

PackSearchResult Search::run() {
  PackSearchResult result;
  if (sizes_.backward.empty() || sizes_.forward.empty()) return result;
  const HarmonyPlan frugal = most_frugal(sizes_.forward.front(), sizes_.backward.front());
  result.least_limit = harmony_peak_bytes(chain_, frugal);
  keep(found_, kKept, frugal);
  if (const auto own = harmony_own_search(chain_, mode_, devices_, minibatch_, cap_, prefetch_)) {
    if (options_.below_harmony) {
      own_seconds_ = own->seconds;
      most_swapped_ = harmony_volume(chain_, own->plan, minibatch_).swapped();
    }
    keep(found_, kKept, own->plan);
  }
  first_round();
  result.tried = tried_;
  if (found_.empty()) return result;
  second_round();
  polish();
  const CostedPlan& best = choose();
  result.plan = best.plan;
  result.seconds = best.cost;
  result.peak_bytes = harmony_peak_bytes(chain_, *result.plan);
  result.tried = tried_;
  result.lower_bound = kDoesNotFit;
  for (int64_t ub : sizes_.backward)
    for (int64_t uf : sizes_.forward)
      result.lower_bound = std::min(result.lower_bound, bound(uf, ub));
  return result;
}

}  // namespace

PackSearchResult search_packs(ChainTables& chain, HarmonyMode mode, int32_t devices,
                              int64_t minibatch, int64_t cap, bool prefetch,
                              const PackSearchOptions& options) {
  return Search(chain, mode, devices, minibatch, cap, prefetch, options).run();
}

}  // namespace windlass
