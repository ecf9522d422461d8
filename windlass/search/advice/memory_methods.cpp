#include "windlass/search/advice/memory_methods.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/sim/phase_peaks.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

struct MethodKind {
  const char* name;
  const char* parameters;  // of the named strategy
  bool lossy = false;
  bool mixture = false;
};

const std::vector<MethodKind>& method_kinds() {
  static const std::vector<MethodKind> kKinds = {{"plain", ""},
                                                 {"recompute", "recompute=full"},
                                                 {"offload", "offload=on"},
                                                 {"compress-8", "compress=8", true},
                                                 {"compress-4", "compress=4", true},
                                                 {"compress-2", "compress=2", true},
                                                 {"mixture", "", false, true}};
  return kKinds;
}

// "recompute 61 %, offload 12 % of saved bytes, updates on the host".
std::string mixture_text(const TrainingGraph& training, const Strategy& strategy) {
  if (strategy.packs) return "packs of layers";
  std::map<MemoryAction, double> bytes;
  double all = 0;
  for (size_t s = 0; s < training.saved.size(); ++s) {
    const auto size = static_cast<double>(training.saved[s].bytes.value);
    bytes[strategy.saved[s]] += size;
    all += size;
  }
  std::string text;
  for (const auto& [action, size] : bytes)
    text += fmt::format("{}{} {:.0f} %", text.empty() ? "" : ", ", action_name(action),
                        100 * size / std::max(1.0, all));
  const auto any = [&](auto has) { return std::ranges::any_of(strategy.weights, has); };
  if (any([](const Residency& w) { return w.host; })) text += ", weights on the host";
  if (any([](const Residency& w) { return w.host_update; })) text += ", updates on the host";
  if (strategy.groups[0].size() > 1 && any([](const Residency& w) { return w.zero > 0; }))
    text += ", state shared out";
  return text;
}

// Prices without what the host takes, or of what the host takes alone.
class PartOfCost : public CostModel {
 public:
  PartOfCost(const CostModel& cost, bool host) : cost_(cost), host_(host) {
    if (const RunnerCosts* costs = cost.runner_costs()) runner_ = *costs;
    if (!host) runner_.host = {};
  }
  Price price(const Work& work, const DeviceType& device) const override {
    return host_ ? Price{} : cost_.price(work, device);
  }
  Price price_on_host(const Work& work, const Node& node) const override {
    return cost_.price_on_host(work, node);
  }
  Seconds step_overhead(const DeviceType& device) const override {
    return host_ ? cost_.step_overhead(device) : Seconds();
  }
  const RunnerCosts* runner_costs() const override { return &runner_; }
  std::string provenance() const override { return cost_.provenance(); }

 private:
  const CostModel& cost_;
  bool host_;
  RunnerCosts runner_;
};

// The p of time = (a^p + b^p)^(1/p), by halving; many where the longer one is all of it.
double sharpness_of(double time, double a, double b) {
  constexpr double kMost = 64;
  const double longer = std::max(a, b), rest = std::min(a, b) / longer;
  double low = 1, high = kMost;
  const auto at = [&](double p) { return longer * std::pow(1 + std::pow(rest, p), 1 / p); };
  if (at(low) <= time) return low;
  for (int i = 0; i < 50; ++i) {
    const double middle = (low + high) / 2;
    (at(middle) > time ? low : high) = middle;
  }
  return high;
}

class MethodSimulator {
 public:
  explicit MethodSimulator(const MethodsProblem& problem)
      : problem_(problem),
        devices_(static_cast<int64_t>(problem.batch.machine.devices.size())),
        limit_(problem.batch.machine.devices[0].limit) {
    for (const Device& device : problem.batch.machine.devices)
      limit_ = std::min(limit_, device.limit);
  }

  std::vector<MethodCurve> run() {
    std::vector<const MethodKind*> kinds;
    for (const MethodKind& kind : method_kinds())
      if (problem_.methods.empty() || kind.name == std::string_view("plain") ||
          std::ranges::find(problem_.methods, kind.name) != problem_.methods.end())
        kinds.push_back(&kind);
    fit_corrections();
    std::vector<MethodCurve> curves;
    for (const MethodKind* kind : kinds) {
      curves.push_back(begin(*kind));
      curves.back().correction = correction_of(kind->name);
    }
    // Each exact method is a mixture too.
    for (size_t i = 0; i < kinds.size(); ++i)
      for (const MethodCurve& other : curves)
        if (kinds[i]->mixture && !other.lossy && other.largest)
          curves[i].largest = std::max(curves[i].largest.value_or(0), *other.largest);
    const std::vector<int64_t> batches = ladder(curves);
    for (size_t i = 0; i < kinds.size(); ++i)
      if (!kinds[i]->mixture) fill(*kinds[i], batches, curves[i]);
    for (size_t i = 0; i < kinds.size(); ++i)
      if (kinds[i]->mixture) mix(batches, curves, curves[i]);
    return curves;
  }

 private:
  void say(const std::string& text) const {
    if (problem_.progress) problem_.progress(text);
  }
  bool stopped() const { return problem_.search.stop && problem_.search.stop(); }

  PreparedStep prepare(const MethodKind& kind, int64_t batch) const {
    PreparedStep step = prepare_method(kind.name, problem_.batch, batch, problem_.base);
    if (problem_.copies_in_turn) step.strategy.in_turn = true;
    return step;
  }

  BatchPoint simulate_point(const TrainingGraph& training, const Strategy& strategy,
                            int64_t batch) const {
    const BatchProblem& given = problem_.batch;
    const TaskGraph tasks = lower(training, strategy, given.machine);
    TaskTimes times = price_tasks(tasks, given.machine, given.cost);
    if (given.reprice) given.reprice(training, tasks, times);
    Simulator simulator;
    SimResult result = simulator.run(tasks, times);
    ensure(result.status != SimStatus::Deadlock, "tasks of the step wait for each other");
    BatchPoint point;
    point.batch = batch;
    point.fits = result.status == SimStatus::Done;
    if (!point.fits) result = simulator.run(tasks, times, {.enforce_limits = false});
    Seconds overhead;
    for (const Team& team : tasks.teams)
      overhead =
          std::max(overhead, given.cost.step_overhead(given.machine.device_types[team.type]));
    point.time = Seconds(static_cast<double>(result.makespan) * 1e-9) + overhead;
    if (given.cost.runner_costs() != nullptr && !problem_.measured.empty())
      find_parts(tasks, overhead, point);
    for (size_t m = 0; m < tasks.memories.size(); ++m) {
      if (!tasks.memories[m].team.valid()) continue;
      point.peak = std::max(point.peak, Bytes(result.peaks[m].bytes));
      const PhaseBytes phases = phase_peaks(tasks, times, result, MemoryId(m));
      const std::array<int64_t, kStepPhases> bytes = {phases.forward, phases.backward,
                                                      phases.optimizer};
      for (size_t p = 0; p < kStepPhases; ++p)
        point.phases[p] = std::max(point.phases[p], Bytes(bytes[p]));
    }
    return point;
  }

  void find_parts(const TaskGraph& tasks, Seconds overhead, BatchPoint& point) const {
    const BatchProblem& given = problem_.batch;
    Simulator simulator;
    const TaskTimes device =
        price_tasks(tasks, given.machine, PartOfCost(given.cost, /*host=*/false));
    // What fits in the order of these times may not in that of others.
    SimResult result = simulator.run(tasks, device, {.enforce_limits = point.fits});
    if (result.status != SimStatus::Done)
      result = simulator.run(tasks, device, {.enforce_limits = false});
    const TaskTimes host = price_tasks(tasks, given.machine, PartOfCost(given.cost, true));
    std::vector<Nanoseconds> issued(tasks.teams.size());
    for (size_t i = 0; i < tasks.size(); ++i) {
      const Lane& lane = tasks[tasks.lanes_of(TaskId(i)).front()];
      if (lane.kind == LaneKind::Compute) issued[lane.team.index()] += host.duration[i];
    }
    point.device = Seconds(static_cast<double>(result.makespan) * 1e-9);
    point.host = Seconds(static_cast<double>(std::ranges::max(issued)) * 1e-9) + overhead;
    point.sharpness = sharpness_of(point.time.value, point.host.value, point.device.value);
  }

  // As it is predicted, without what was measured.
  const BatchPoint& predicted(const MethodKind& kind, int64_t batch) {
    auto& known = points_[kind.name];
    if (const auto found = known.find(batch); found != known.end()) return found->second;
    say(fmt::format("{}: {} samples", kind.name, batch));
    const PreparedStep step = prepare(kind, batch);
    return known[batch] = simulate_point(step.training, step.strategy, batch);
  }

  BatchPoint point_of(const MethodKind& kind, int64_t batch) {
    return correction_of(kind.name).applied(predicted(kind, batch), limit_);
  }

  void fit_corrections() {
    for (const MeasuredPoint& point : problem_.measured)
      if (std::ranges::none_of(method_kinds(), [&](const MethodKind& kind) {
            return !kind.mixture && kind.name == point.method;
          }))
        fail_input("measured steps: method \"{}\" is not one of {}", point.method,
                   join(memory_methods(), ", "));
    for (const MethodKind& kind : method_kinds()) {
      std::vector<MeasuredPoint> measured;
      std::vector<BatchPoint> own;
      for (const MeasuredPoint& point : problem_.measured) {
        if (point.method != kind.name) continue;
        measured.push_back(point);
        own.push_back(predicted(kind, point.batch));
      }
      if (!measured.empty()) corrections_[kind.name] = fit_correction(measured, own);
    }
  }

  Correction correction_of(const std::string& method) const {
    if (const auto own = corrections_.find(method); own != corrections_.end()) return own->second;
    const auto plain = corrections_.find("plain");
    return plain != corrections_.end() ? plain->second : Correction{};
  }

  SearchOptions mixture_options() const {
    SearchOptions options = problem_.search;
    options.micro_batches = 1;
    options.progress = {};
    // Copies that nothing runs beside are worth it only where nothing else fits: offload is there.
    if (problem_.copies_in_turn)
      options.fixed.offload = options.fixed.host_weights = options.fixed.host_update = false;
    if (devices_ > 1) options.fixed.dp = devices_, options.fixed.tp = options.fixed.pp = 1;
    return options;
  }

  // The largest batch of a method, in whole samples a device.
  MethodCurve begin(const MethodKind& kind) {
    MethodCurve curve;
    curve.name = kind.name;
    curve.lossy = kind.lossy;
    if (kind.mixture) {
      say("mixture: largest batch");
      const SearchOptions options = mixture_options();
      curve.largest = largest_batch(problem_.batch, options);
      if (curve.largest) curve.largest = std::min(*curve.largest, problem_.most);
      return curve;
    }
    const auto fits = [&](int64_t each) { return point_of(kind, each * devices_).fits; };
    try {
      if (!fits(1)) return curve;
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal || kind.name == std::string_view("plain")) throw;
      curve.impossible = error.message();
      return curve;
    }
    const int64_t most = std::max<int64_t>(1, problem_.most / devices_);
    int64_t good = 1, bad = 0;
    while (bad == 0 && good < most && !stopped()) {
      const int64_t next = std::min(2 * good, most);
      (fits(next) ? good : bad) = next;
    }
    while (bad > good + 1 && !stopped()) {
      const int64_t middle = good + (bad - good) / 2;
      (fits(middle) ? good : bad) = middle;
    }
    curve.largest = good * devices_;
    curve.capped = good == most;
    return curve;
  }

  // Batches that all methods are simulated at: three at least, so that lines can be drawn.
  std::vector<int64_t> ladder(const std::vector<MethodCurve>& curves) const {
    if (!problem_.batches.empty()) {
      std::set<int64_t> given(problem_.batches.begin(), problem_.batches.end());
      return {given.begin(), given.end()};
    }
    std::set<int64_t> batches;
    int64_t most = 4 * devices_;
    for (const MethodCurve& curve : curves) {
      if (!curve.largest) continue;
      batches.insert(*curve.largest);
      most = std::max(most, *curve.largest);
    }
    for (int64_t batch = devices_; batch <= most; batch *= 2) batches.insert(batch);
    return {batches.begin(), batches.end()};
  }

  void fill(const MethodKind& kind, const std::vector<int64_t>& batches, MethodCurve& curve) {
    if (!curve.impossible.empty()) return;
    for (int64_t batch : batches)
      if (!stopped()) curve.points.push_back(point_of(kind, batch));
  }

  // Plain training where it fits, else what search finds, or the best single exact method.
  void mix(const std::vector<int64_t>& batches, const std::vector<MethodCurve>& curves,
           MethodCurve& curve) {
    for (int64_t batch : batches) {
      if (!curve.largest || batch > *curve.largest || stopped()) break;
      const BatchPoint* plain = curves.front().at(batch);
      if (plain != nullptr && plain->fits) {
        curve.points.push_back(*plain);
        curve.made_of.emplace_back("plain");
        continue;
      }
      say(fmt::format("mixture: {} samples", batch));
      BatchPoint best;
      std::string what;
      const Graph network = problem_.batch.network(batch);
      const SearchOptions options = mixture_options();
      SearchResult found = search_all({.network = network,
                                       .machine = problem_.batch.machine,
                                       .training = problem_.batch.training,
                                       .cost = problem_.batch.cost,
                                       .reprice = problem_.batch.reprice},
                                      options);
      if (found.termination != Termination::Infeasible) {
        if (problem_.copies_in_turn) found.strategy.in_turn = true;
        best =
            curve.correction.applied(simulate_point(found.training, found.strategy, batch), limit_);
        what = mixture_text(found.training, found.strategy);
      }
      for (const MethodCurve& other : curves) {
        const BatchPoint* point = other.at(batch);
        if (point == nullptr || !point->fits || other.lossy) continue;
        if (best.fits && best.time <= point->time) continue;
        best = *point;
        what = other.name;
      }
      if (!best.fits) {
        // Measured peaks are above those that the largest batch was found by.
        if (curve.correction.peak.points > 0) break;
        continue;
      }
      curve.points.push_back(best);
      curve.made_of.push_back(what);
    }
    if (curve.correction.peak.points > 0)
      curve.largest =
          curve.points.empty() ? std::nullopt : std::optional(curve.points.back().batch);
  }

  const MethodsProblem& problem_;
  int64_t devices_;
  Bytes limit_;  // of the least device
  std::map<std::string, Correction> corrections_;
  std::map<std::string, std::map<int64_t, BatchPoint>> points_;
};

}  // namespace

std::vector<std::string> memory_methods() {
  std::vector<std::string> names;
  for (const MethodKind& kind : method_kinds()) names.emplace_back(kind.name);
  return names;
}

std::string methods_base(const Machine& machine) {
  return machine.devices.size() == 1 ? "single" : "data-parallel";
}

PreparedStep prepare_method(const std::string& method, const BatchProblem& problem, int64_t batch,
                            const std::string& base) {
  const auto kind = std::ranges::find(method_kinds(), method, &MethodKind::name);
  ensure(kind != method_kinds().end() && !kind->mixture, "no method of one strategy");
  std::string spec = base.empty() ? methods_base(problem.machine) : base;
  spec += spec.find(':') == std::string::npos ? ":micro-batches=1" : ",micro-batches=1";
  if (*kind->parameters != '\0') spec += std::string(",") + kind->parameters;
  return prepare_step(problem.network(batch), parse_baseline(spec), problem.machine,
                      problem.training);
}

std::vector<MethodCurve> simulate_methods(const MethodsProblem& problem) {
  return MethodSimulator(problem).run();
}

}  // namespace windlass
