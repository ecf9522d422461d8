#include "windlass/run/calibrate.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <set>
#include <thread>

#include "windlass/cost/calibrated.h"
#include "windlass/graph/op_info.h"
#include "windlass/run/kernel_run.h"
#include "windlass/strategy/strategy.h"

namespace windlass {
namespace {

using CalibrationClock = std::chrono::steady_clock;

constexpr double kTogether = 4;  // kernels whose analytic times are within this factor
constexpr std::array<int64_t, 4> kTensorSizes = {1 << 12, 1 << 15, 1 << 18, 1 << 21};

double at_share(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double place = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  return values[below] + (place - std::floor(place)) * (values[above] - values[below]);
}

// Something else that uses the host's memory while a kernel is measured, on a thread of its own.
class Beside {
 public:
  template <class Work>
  explicit Beside(Work work)
      : thread_([this, work]() mutable {
          while (!ends_) work();
        }) {}
  ~Beside() {
    ends_ = true;
    thread_.join();
  }
  Beside(const Beside&) = delete;
  Beside& operator=(const Beside&) = delete;

 private:
  std::atomic<bool> ends_ = false;
  std::thread thread_;
};

// One thing to be timed.
struct Timed {
  std::function<Nanoseconds()> run;
  std::function<Nanoseconds(int devices)> crowded;  // empty: by size alone
  KernelTiming timing;
};

class Calibrating {
 public:
  Calibrating(Runtime& runtime, const CalibrationRequest& request)
      : runtime_(runtime), request_(request), cost_(analytic_cost_model(options())) {}

  CalibrationResult run() {
    const auto begin = CalibrationClock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(CalibrationClock::now() - begin).count();
    };
    add_kernels();
    add_tensors();
    CalibrationResult result;
    for (int round = 0; round < request_.repeats; ++round) {
      if (round > 0 && (stopped() || seconds() > request_.most_seconds)) break;
      for (size_t i = 0; i < timed_.size(); ++i) {
        if (request_.progress)
          request_.progress((round + static_cast<double>(i) / static_cast<double>(timed_.size())) /
                            (request_.repeats + 0.5));
        if (round > 0 && stopped()) break;
        timed_[i].timing.measured.push_back(Seconds(static_cast<double>(timed_[i].run()) * 1e-9));
      }
      ++result.rounds;
    }
    for (const Timed& timed : timed_) result.kernels.push_back(timed.timing);
    result.calibration = summarise(result.kernels);
    if (!stopped()) measure_crowds(result.calibration);
    result.spent = Seconds(seconds());
    return result;
  }

 private:
  // No driver and no framework: as measured steps are predicted.
  static AnalyticOptions options() {
    AnalyticOptions options;
    options.step_issue = 0;
    return options;
  }
  bool stopped() const { return request_.stop && request_.stop(); }

  void add_kernels() {
    std::set<std::string> known;
    for (const TrainingGraph* network : request_.networks) {
      const Graph& graph = network->graph;
      for (const Op& op : graph.ops) {
        if (op.kind == OpKind::Update || op.kind == OpKind::Accumulate) continue;
        const LoopNest nest = loops_of(graph, op);
        LocalSizes sizes;
        for (const LoopDim& loop : nest.loops) sizes.push_back(loop.size);
        const Work work = work_of(graph, op, nest, sizes);
        if (work.kernels.empty() || !known.insert(key_of(graph, op, 0)).second) continue;
        const auto measure = [this, &graph, &op](int devices) {
          return runtime_.measure_op(whole_run(graph, op, 0), request_.threads, devices).time;
        };
        add(
            work, [this, measure] { return measure(request_.devices); }, measure);
      }
    }
  }

  void add_tensors() {
    for (int64_t elements : kTensorSizes) {
      add(update_work(OptimizerKind::Adam, static_cast<double>(elements), DType::F32, DType::F32,
                      false),
          [this, elements] {
            return runtime_.measure_update({}, elements, request_.threads, request_.devices);
          });
      const Bytes plain(4 * elements);
      for (int bits : {8, 4, 2}) {
        const Bytes packed(compressed_bytes(elements, bits));
        for (bool back : {false, true})
          add(back ? decompression_work(elements, packed, plain)
                   : compression_work(elements, plain, packed),
              [this, elements, bits, back] {
                return runtime_.measure_compression({DType::F32, bits, back}, elements,
                                                    request_.threads, request_.devices);
              });
      }
    }
  }

  void add(const Work& work, std::function<Nanoseconds()> run,
           std::function<Nanoseconds(int)> crowded = {}) {
    timed_.push_back({std::move(run),
                      std::move(crowded),
                      {calibrated_family(work), cost_->price(work, request_.device).time, {}}});
  }

  // The largest kernels of each family, alone and beside something else in turn.
  void measure_crowds(Calibration& calibration) {
    std::map<std::string, Timed*> largest;
    for (Timed& timed : timed_) {
      if (!timed.crowded) continue;
      Timed*& most = largest[timed.timing.family];
      if (most == nullptr || timed.timing.analytic > most->timing.analytic) most = &timed;
    }
    std::vector<double> devices, copies, updates;
    for (const auto& [family, timed] : largest) {
      const auto alone = static_cast<double>(timed->run());
      devices.push_back(static_cast<double>(timed->crowded(request_.devices + 1)) / alone);
      {
        std::vector<char> from(kBesideBytes, 1), to(kBesideBytes);
        const Beside copying([from, to]() mutable {
          std::memcpy(to.data(), from.data(), from.size());
          std::swap(from[0], to[0]);
        });
        copies.push_back(static_cast<double>(timed->run()) / alone);
      }
      {
        std::vector<float> weight(kBesideBytes / 4, 1), gradient = weight, state = weight;
        const Beside updating([weight, gradient, state]() mutable {
          for (size_t i = 0; i < weight.size(); ++i) {
            state[i] = 0.9f * state[i] + 0.1f * gradient[i];
            weight[i] -= 1e-6f * state[i];
          }
        });
        updates.push_back(static_cast<double>(timed->run()) / alone);
      }
    }
    if (largest.empty()) return;
    calibration.beside_devices = std::max(1.0, at_share(devices, 0.5));
    calibration.beside_copies = std::max(1.0, at_share(copies, 0.5));
    calibration.beside_updates = std::max(1.0, at_share(updates, 0.5));
  }

  static constexpr size_t kBesideBytes = size_t{32} << 20;

  Runtime& runtime_;
  const CalibrationRequest& request_;
  const std::unique_ptr<CostModel> cost_;
  std::vector<Timed> timed_;
};

// Kernels of about one size.
struct SizeGroup {
  std::vector<double> logs;    // of analytic times
  std::vector<double> ratios;  // of all rounds

  KernelRatio ratio() const {
    // What a machine file takes.
    const auto within = [](double value) { return std::clamp(value, 1e-4, 1e4); };
    const double usual = within(at_share(ratios, 0.5));
    return {Seconds(std::exp(at_share(logs, 0.5))), usual,
            std::min(usual, within(at_share(ratios, 0.1))),
            std::max(usual, within(at_share(ratios, 0.9)))};
  }
};

}  // namespace

Calibration summarise(const std::vector<KernelTiming>& kernels) {
  std::map<std::string, std::vector<const KernelTiming*>> families;
  for (const KernelTiming& kernel : kernels)
    if (kernel.analytic.value > 0 && !kernel.measured.empty() && !kernel.family.empty())
      families[kernel.family].push_back(&kernel);
  Calibration calibration;
  for (auto& [name, list] : families) {
    std::ranges::stable_sort(list, {}, [](const KernelTiming* k) { return k->analytic; });
    std::vector<SizeGroup> groups;
    double first = 0;
    for (const KernelTiming* kernel : list) {
      if (groups.empty() || kernel->analytic.value > kTogether * first) {
        groups.emplace_back();
        first = kernel->analytic.value;
      }
      groups.back().logs.push_back(std::log(kernel->analytic.value));
      for (Seconds time : kernel->measured)
        groups.back().ratios.push_back(time.value / kernel->analytic.value);
    }
    for (size_t i = 1; i < groups.size();) {
      const KernelRatio small = groups[i - 1].ratio(), large = groups[i].ratio();
      if (small.analytic < large.analytic &&
          small.analytic * small.ratio <= large.analytic * large.ratio) {
        ++i;
        continue;
      }
      SizeGroup& into = groups[i - 1];
      into.logs.insert(into.logs.end(), groups[i].logs.begin(), groups[i].logs.end());
      into.ratios.insert(into.ratios.end(), groups[i].ratios.begin(), groups[i].ratios.end());
      groups.erase(groups.begin() + static_cast<std::ptrdiff_t>(i));
      i = std::max<size_t>(1, i - 1);
    }
    for (const SizeGroup& group : groups) calibration.families[name].push_back(group.ratio());
  }
  return calibration;
}

CalibrationResult calibrate(Runtime& runtime, const CalibrationRequest& request) {
  return Calibrating(runtime, request).run();
}

}  // namespace windlass
