#include "windlass/search/grid/balance.h"

#include <algorithm>
#include <map>

#include "windlass/base/error.h"
#include "windlass/strategy/replicas.h"

namespace windlass {
namespace {

using Samples = std::vector<int32_t>;

class Balancing {
 public:
  Balancing(const Problem& problem, Cut& cut, const Strategy& strategy, int64_t replicas)
      : machine_(problem.machine), cut_(cut), plain_(strategy), replicas_(replicas) {
    const std::vector<DeviceId>& group = plain_.groups[0];
    members_ = group.size() / static_cast<size_t>(replicas);
    for (size_t r = 0; r < static_cast<size_t>(replicas); ++r) {
      std::vector<size_t> types;
      for (size_t m = r * members_; m < (r + 1) * members_; ++m)
        types.push_back(machine_[group[m]].type);
      kinds_[types].push_back(r);
    }
  }

  std::vector<Samples> run() {
    if (kinds_.size() < 2 || cut_.batch.samples < replicas_) return {};
    best_ = samples_by_speed(cut_.batch.samples,
                             replica_speeds(cut_.training, machine_, plain_.groups[0], replicas_));
    best_time_ = time_of(best_);
    follow_times();
    shift_samples();
    if (best_time_ == kNever || reduced_sizes(best_).empty()) return {};
    std::vector<Samples> result = {best_};
    if (!cut_.evaluator->evaluate(sized(best_)).fits) add_fitting(result);
    return result;
  }

 private:
  Strategy sized(const Samples& samples) const {
    Strategy strategy = plain_;
    size_replicas(cut_.training, cut_.batch, {samples}, strategy);
    return strategy;
  }
  // Whether every op can be cut so.
  bool legal(const Strategy& strategy) const {
    try {
      check_strategy(cut_.training, machine_, strategy);
      return true;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      return false;
    }
  }
  static constexpr Nanoseconds kNever = INT64_MAX;
  Nanoseconds time_of(const Samples& samples) {
    const Strategy strategy = sized(samples);
    return legal(strategy) ? cut_.evaluator->evaluate_unlimited(strategy).time : kNever;
  }
  bool improve(const Samples& samples) {
    const Nanoseconds time = time_of(samples);
    if (time >= best_time_) return false;
    best_ = samples;
    best_time_ = time;
    return true;
  }

  // What the busiest device of each replica computes for a sample is how slow the replica is.
  void follow_times() {
    constexpr int kRounds = 4;
    for (int round = 0; round < kRounds && best_time_ != kNever; ++round) {
      const Evaluator::Run run = cut_.evaluator->run_unlimited(sized(best_));
      std::map<DeviceId, Nanoseconds> busy;
      for (size_t t = 0; t < run.tasks.size(); ++t) {
        const Lane& lane = run.tasks[run.tasks.lanes_of(TaskId(t)).front()];
        if (lane.kind != LaneKind::Compute || moves(run.tasks.tasks[t].kind)) continue;
        for (DeviceId device : run.tasks[lane.team].devices)
          busy[device] += run.result.end[t] - run.result.start[t];
      }
      std::vector<double> speeds;
      for (size_t r = 0; r < static_cast<size_t>(replicas_); ++r) {
        Nanoseconds most = 1;
        for (size_t m = r * members_; m < (r + 1) * members_; ++m)
          most = std::max(most, busy[plain_.groups[0][m]]);
        speeds.push_back(static_cast<double>(best_[r]) / static_cast<double>(most));
      }
      if (!improve(samples_by_speed(cut_.batch.samples, speeds))) return;
    }
  }

  // So many samples from the replicas of one kind to those of another.
  void shift_samples() {
    constexpr int kTries = 12;
    int tries = 0;
    for (bool better = true; better && tries < kTries;) {
      better = false;
      for (const auto& [from, givers] : kinds_)
        for (const auto& [to, takers] : kinds_) {
          if (from == to || tries++ >= kTries) continue;
          Samples samples = best_;
          const auto count = static_cast<int64_t>(givers.size());
          if (shift(givers, -count, samples) && shift(takers, count, samples))
            better = improve(samples) || better;
        }
    }
  }
  // Shares out anew what replicas have together and `more`.
  static bool shift(const std::vector<size_t>& replicas, int64_t more, Samples& samples) {
    for (size_t r : replicas) more += samples[r];
    const auto count = static_cast<int64_t>(replicas.size());
    if (more < count) return false;
    for (int64_t i = 0; i < count; ++i)
      samples[replicas[static_cast<size_t>(i)]] =
          static_cast<int32_t>(part_of(more, count, i).size());
    return true;
  }

  // Step by step from the fastest to as many samples as memory.
  void add_fitting(std::vector<Samples>& result) {
    std::vector<double> memory;
    for (size_t r = 0; r < static_cast<size_t>(replicas_); ++r) {
      double least = 1e30;
      for (size_t m = r * members_; m < (r + 1) * members_; ++m)
        least = std::min(least, static_cast<double>(machine_[plain_.groups[0][m]].limit.value));
      memory.push_back(std::max(1.0, least));
    }
    const Samples last = samples_by_speed(cut_.batch.samples, memory);
    constexpr int kSteps = 4;
    for (int step = 1; step <= kSteps; ++step) {
      std::vector<double> between;
      for (size_t r = 0; r < last.size(); ++r)
        between.push_back((kSteps - step) * best_[r] + step * last[r]);
      const Samples samples = samples_by_speed(cut_.batch.samples, between);
      const Strategy strategy = sized(samples);
      if (samples == result.back() || !legal(strategy)) continue;
      if (!cut_.evaluator->evaluate(strategy).fits) continue;
      result.push_back(samples);
      return;
    }
  }

  const Machine& machine_;
  Cut& cut_;
  const Strategy& plain_;
  int64_t replicas_;
  size_t members_ = 1;                                        // of a replica
  std::map<std::vector<size_t>, std::vector<size_t>> kinds_;  // replicas by types of devices
  Samples best_;
  Nanoseconds best_time_ = kNever;
};

}  // namespace

bool mixed(const Machine& machine, const std::vector<DeviceId>& group) {
  return std::ranges::any_of(
      group, [&](DeviceId device) { return machine[device].type != machine[group.front()].type; });
}

std::vector<std::vector<int32_t>> balanced_samples(const Problem& problem, Cut& cut,
                                                   const Strategy& strategy, int64_t replicas) {
  return Balancing(problem, cut, strategy, replicas).run();
}

}  // namespace windlass
