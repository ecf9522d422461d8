#include "windlass/search/bounds/split_bound.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "windlass/graph/blocks.h"

namespace windlass {
namespace {

// Cuts of more devices are too many to look at.
constexpr size_t kMostDevices = 16;
// The largest value of a concave function of [0, 1), nearly.
template <class Function>
double highest(Function&& value) {
  double best = value(0), at = 0, step = 0.3;
  for (const double x : {0.3, 0.6, 0.9})
    if (const double found = value(x); found > best) best = found, at = x;
  if (at == 0) return best;
  for (int round = 0; round < 2; ++round) {
    step /= 2;
    for (const double x : {at - step, at + step})
      if (x < 1) best = std::max(best, value(x));
  }
  return best;
}

}  // namespace

SplitBound::SplitBound(const Problem& problem, const TrainingGraph& training, double device_updates,
                       double host_updates, int64_t micro_batches)
    : costs_(problem, training),
      training_(training),
      devices_(static_cast<double>(problem.machine.devices.size())),
      device_updates_(device_updates),
      host_updates_(host_updates) {
  find_blocks_in_order();
  if (micro_batches > 0) {
    micro_batches_ = {micro_batches};
    return;
  }
  micro_batches_ = {1};
  if (!costs_.can_cut_batch()) return;
  for (int64_t m = 2; m <= costs_.samples(); ++m)
    if (costs_.samples() % m == 0) micro_batches_.push_back(m);
}

bool SplitBound::suits(const Problem& problem) {
  const std::vector<Device>& devices = problem.machine.devices;
  return !problem.reprice && devices.size() <= kMostDevices &&
         std::ranges::all_of(devices, [&](const Device& d) { return d.type == devices[0].type; });
}

bool SplitBound::covers(const Strategy& strategy) const {
  if (strategy.packs) return true;
  if (std::ranges::find(micro_batches_, strategy.micro_batches) == micro_batches_.end())
    return false;
  if (strategy.virtual_memory || strategy.stages.size() != strategy.groups.size()) return false;
  std::set<DeviceId> seen;
  for (const auto& group : strategy.groups)
    for (DeviceId device : group)
      if (!seen.insert(device).second) return false;
  return std::ranges::none_of(strategy.ops, [&](int32_t sharding) {
    return unequal(strategy.shardings[static_cast<size_t>(sharding)]);
  });
}

double SplitBound::operator()() {
  double least = one_group();
  if (devices_ > 1) least = std::min(least, several_groups());
  if (costs_.can_cut_batch()) least = std::min(least, packs());
  return least;
}

double SplitBound::rough_group(int64_t devices, int64_t micro_batches) const {
  const auto m = static_cast<double>(micro_batches);
  double sum = 0;
  for (const SplitCosts::PassPair& op : costs_.rough())
    sum += m * op.of(1 / (m * static_cast<double>(devices)));
  return sum;
}

// Means of three bounds: `reduces` of the one with all reductions of gradients, `hosts` of the one
// with all updates on hosts, the rest of that of the compute lanes. Updates are where they cost
// least: as much in either place.
double SplitBound::group_of(int64_t devices, int64_t micro_batches) {
  const auto m = static_cast<double>(micro_batches), g = static_cast<double>(devices);
  const auto mean = [&](double reduces, bool updates) {
    const bool counts = updates && device_updates_ > 0 && host_updates_ > 0;
    const double hosts =
        counts ? (1 - reduces) * device_updates_ / (device_updates_ + host_updates_) : 0;
    const double lanes = 1 - reduces - hosts;
    return costs_.least(
               devices, micro_batches,
               {.forward = lanes * m + reduces + hosts, .backward = lanes * m, .reduce = reduces}) +
           (counts ? lanes * device_updates_ / g : 0);
  };
  if (devices == 1) return std::max(mean(0, false), mean(0, true));
  return highest(
      [&](double reduces) { return std::max(mean(reduces, false), mean(reduces, true)); });
}

double SplitBound::one_group() {
  double least = INFINITY;
  for (const int64_t m : micro_batches_)
    for (auto g = static_cast<int64_t>(devices_); g >= 1; --g)
      if (rough_group(g, m) < least) least = std::min(least, group_of(g, m));
  return least;
}

// Blocks between tensors that all that comes later in the chain depends on: ops that follow from
// the tensor at their begin, and that the tensor at their end follows from.
void SplitBound::find_blocks_in_order() {
  const Graph& graph = training_.graph;
  Graph forward = graph;
  forward.ops.resize(training_.forward_ops);
  block_of_.assign(training_.forward_ops, -1);
  // Ends of blocks, the last first.
  std::vector<bool> needed(graph.tensors.size(), false);
  std::vector<size_t> cuts = cut_points(forward);
  size_t last = training_.forward_ops;
  for (size_t c = cuts.size(); c-- > 0;) {
    // From the output of the op at `cuts[c]` on.
    const size_t first = c == 0 ? 0 : cuts[c - 1] + 1;
    std::vector<bool> follows(graph.tensors.size(), c == 0);
    if (c > 0)
      for (TensorId id : graph.ops[cuts[c - 1]].outputs) follows[id.index()] = true;
    std::vector<bool> wanted(graph.tensors.size(), false);
    for (TensorId id : graph.ops[last - 1].outputs) wanted[id.index()] = true;
    std::vector<bool> after(last - first, false), before(last - first, false);
    for (size_t i = first; i < last; ++i) {
      const Op& op = graph.ops[i];
      after[i - first] = std::ranges::any_of(
          op.inputs, [&](TensorId id) { return id.valid() && follows[id.index()]; });
      if (c == 0) after[i - first] = true;
      if (after[i - first])
        for (TensorId id : op.outputs) follows[id.index()] = true;
    }
    // The end does not follow from here: a longer block.
    if (!after[last - 1 - first]) continue;
    for (size_t i = last; i-- > first;) {
      const Op& op = graph.ops[i];
      before[i - first] = std::ranges::any_of(
          op.outputs, [&](TensorId id) { return id.valid() && wanted[id.index()]; });
      if (before[i - first])
        for (TensorId id : op.inputs)
          if (id.valid()) wanted[id.index()] = true;
    }
    for (size_t i = first; i < last; ++i)
      if (after[i - first] && before[i - first]) block_of_[i] = static_cast<int32_t>(blocks_);
    ++blocks_;
    last = first;
    if (last == 0) break;
  }
}

// What devices and hosts take for updates beside, all of it shared out evenly.
double SplitBound::with_updates(double all) const {
  if (host_updates_ <= 0) return all;
  return std::max(all, (all + device_updates_ / devices_) / (1 + device_updates_ / host_updates_));
}

double SplitBound::pipelines(int64_t micro_batches) {
  const auto n = static_cast<int64_t>(devices_);
  const auto m = static_cast<double>(micro_batches);
  const double q = 1 - 1 / m, c = 1 / (1 - std::pow(q, devices_));
  // By op, for groups of up to g devices: between two cuts, else, and on average.
  const size_t ops = training_.forward_ops;
  std::vector<double> tight(ops, INFINITY), loose(ops, INFINITY), average(ops, INFINITY);
  double least = INFINITY;
  for (int64_t g = 1; g < n; ++g) {
    const auto size = static_cast<double>(g);
    const double later = std::pow(q, devices_ - size);
    const double own = c * m * later * (1 - std::pow(q, size));
    const std::vector<double> times = costs_.each(g, micro_batches);
    double in_order = 0, on_average = 0;
    std::vector<double> lost(blocks_, 0);
    for (size_t i = 0; i < ops; ++i) {
      tight[i] = std::min(tight[i], (c * (1 - later) + own) * times[i]);
      loose[i] = std::min(loose[i], own * times[i]);
      average[i] = std::min(average[i], m * size / devices_ * times[i]);
      on_average += average[i];
      in_order += block_of_[i] >= 0 ? tight[i] : loose[i];
      if (block_of_[i] >= 0) lost[static_cast<size_t>(block_of_[i])] += tight[i] - loose[i];
    }
    // The other devices make up at most n - g groups. Borders of stages lie in as many blocks.
    std::ranges::sort(lost, std::greater<>());
    for (size_t b = 0; b < std::min(lost.size(), static_cast<size_t>(n - g)); ++b)
      in_order -= lost[b];
    least = std::min(least, std::max(in_order, with_updates(on_average)));
  }
  return least;
}

double SplitBound::several_groups() {
  double least = INFINITY;
  for (const int64_t m : micro_batches_)
    if (rough_group(static_cast<int64_t>(devices_), m) < least)
      least = std::min(least, pipelines(m));
  return least;
}

double SplitBound::packs() {
  double least = INFINITY;
  const int64_t samples = costs_.samples();
  const auto both = [&](const auto& of_part, const auto& of_rest, int64_t size) {
    double all = INFINITY, through = 0, part = 0;
    for (size_t i = 0; i < training_.forward_ops; ++i) {
      part += of_part(i);
      if (block_of_[i] >= 0) through += of_part(i);
    }
    // Shares of replicas differ by one sample at most; what is left over of one is a smaller part.
    const auto of_share = [&](int64_t share) {
      return static_cast<double>(share / size) * part +
             (share % size > 0 ? of_rest(share % size) : 0);
    };
    for (int64_t replicas = 1; replicas <= static_cast<int64_t>(devices_); ++replicas) {
      const int64_t share = samples / replicas, larger = samples % replicas;
      if (size > share) break;
      all = std::min(all, static_cast<double>(replicas - larger) * of_share(share) +
                              static_cast<double>(larger) * of_share(share + 1));
    }
    return std::max(with_updates(all / devices_), through);
  };
  const auto rough_rest = [&](int64_t rest) {
    double sum = 0;
    for (const SplitCosts::PassPair& op : costs_.rough())
      sum += op.of(static_cast<double>(rest) / static_cast<double>(samples));
    return sum;
  };
  for (int64_t size = samples; size >= 1; --size) {
    const double share = static_cast<double>(size) / static_cast<double>(samples);
    const double rough =
        both([&](size_t i) { return costs_.rough()[i].of(share); }, rough_rest, size);
    if (rough >= least) continue;
    const std::vector<double> times = costs_.of_samples(size);
    least = std::min(least, both([&](size_t i) { return times[i]; }, rough_rest, size));
  }
  return least;
}

}  // namespace windlass
