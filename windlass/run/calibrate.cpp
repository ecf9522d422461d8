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

#include "windlass/base/error.h"
#include "windlass/cost/calibrated.h"
#include "windlass/graph/builder.h"
#include "windlass/graph/op_info.h"
#include "windlass/run/kernel_run.h"
#include "windlass/strategy/strategy.h"

namespace windlass {
namespace {

using CalibrationClock = std::chrono::steady_clock;

constexpr double kTogether = 4;  // kernels whose analytic times are within this factor
constexpr std::array<int64_t, 6> kCopySizes = {1 << 12, 1 << 15, 1 << 18,
                                               1 << 21, 1 << 24, 1 << 26};
constexpr int kCopiesARound = 5, kTinyOps = 3;
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
  std::function<KernelPrice()> run;
  std::function<Nanoseconds(int devices)> crowded;  // empty: by size alone
  KernelTiming timing;
  double operands = 0;  // bytes of its largest kernel; 0: its workspace is not looked at
};

// One op that has next to nothing to do.
Graph tiny_network() {
  GraphBuilder builder("tiny");
  const TensorId a = builder.input("a", {DType::F32, {1}}),
                 b = builder.input("b", {DType::F32, {1}});
  builder.set_output(builder.op(OpKind::Binary, BinaryAttrs{BinaryFn::Add}, {a, b}, "sum"));
  return builder.finish();
}

class Calibrating {
 public:
  Calibrating(Runtime& runtime, const CalibrationRequest& request)
      : runtime_(runtime),
        request_(request),
        cost_(analytic_cost_model(options())),
        device_(request.device),
        tiny_(tiny_network()) {}

  CalibrationResult run() {
    const auto begin = CalibrationClock::now();
    const auto seconds = [&] {
      return std::chrono::duration<double>(CalibrationClock::now() - begin).count();
    };
    CalibrationResult result;
    std::map<std::string, double> workspace;
    std::array<std::vector<double>, kCopySizes.size()> copies;
    result.op_time = tiny_op();
    device_.launch_overhead = result.op_time / 2;
    add_kernels();
    add_tensors();
    for (int round = 0; round < request_.repeats; ++round) {
      if (round > 0 && (stopped() || seconds() > request_.most_seconds)) break;
      for (size_t i = 0; i < timed_.size(); ++i) {
        if (request_.progress)
          request_.progress((round + static_cast<double>(i) / static_cast<double>(timed_.size())) /
                            (request_.repeats + 0.5));
        if (round > 0 && stopped()) break;
        Timed& timed = timed_[i];
        const KernelPrice price = timed.run();
        timed.timing.measured.push_back(Seconds(static_cast<double>(price.time) * 1e-9));
        if (timed.operands > 0) {
          double& most = workspace[timed.timing.family];
          most = std::max(most, static_cast<double>(price.workspace) / timed.operands);
        }
      }
      if (request_.copy)
        for (size_t i = 0; i < kCopySizes.size(); ++i)
          for (int again = 0; again < kCopiesARound; ++again)
            copies[i].push_back(request_.copy(Bytes(kCopySizes[i])).value);
      ++result.rounds;
    }
    for (const Timed& timed : timed_) result.kernels.push_back(timed.timing);
    result.calibration = summarise(result.kernels);
    result.calibration.workspace = std::move(workspace);
    for (size_t i = 0; request_.copy && i < kCopySizes.size(); ++i)
      result.calibration.copies.push_back({Bytes(kCopySizes[i]), Seconds(at_share(copies[i], 0.5)),
                                           Seconds(at_share(copies[i], 0.1)),
                                           Seconds(at_share(copies[i], 0.9))});
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
          return runtime_.measure_op(whole_run(graph, op, 0), request_.threads, devices);
        };
        add(
            work, [this, measure] { return measure(request_.devices); },
            [measure](int devices) { return measure(devices).time; });
        timed_.back().operands = static_cast<double>(largest_operands(work).value);
      }
    }
  }

  void add_tensors() {
    for (int64_t elements : kTensorSizes) {
      add(update_work(OptimizerKind::Adam, static_cast<double>(elements), DType::F32, DType::F32,
                      false),
          [this, elements] {
            return KernelPrice{
                runtime_.measure_update({}, elements, request_.threads, request_.devices)};
          });
      const Bytes plain(4 * elements);
      for (int bits : {8, 4, 2}) {
        const Bytes packed(compressed_bytes(elements, bits));
        for (bool back : {false, true})
          add(back ? decompression_work(elements, packed, plain)
                   : compression_work(elements, plain, packed),
              [this, elements, bits, back] {
                return KernelPrice{runtime_.measure_compression(
                    {DType::F32, bits, back}, elements, request_.threads, request_.devices)};
              });
      }
    }
  }

  Seconds tiny_op() {
    Nanoseconds least = INT64_MAX;
    for (int again = 0; again < kTinyOps; ++again)
      least = std::min(least, runtime_
                                  .measure_op(whole_run(tiny_, tiny_.ops.front(), 0),
                                              request_.threads, request_.devices)
                                  .time);
    return Seconds(static_cast<double>(std::max<Nanoseconds>(1, least)) * 1e-9);
  }

  void add(const Work& work, std::function<KernelPrice()> run,
           std::function<Nanoseconds(int)> crowded = {}) {
    timed_.push_back({std::move(run),
                      std::move(crowded),
                      {calibrated_family(work), cost_->price(work, device_).time, {}}});
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
      const auto alone = static_cast<double>(timed->run().time);
      devices.push_back(static_cast<double>(timed->crowded(request_.devices + 1)) / alone);
      {
        std::vector<char> from(kBesideBytes, 1), to(kBesideBytes);
        const Beside copying([from, to]() mutable {
          std::memcpy(to.data(), from.data(), from.size());
          std::swap(from[0], to[0]);
        });
        copies.push_back(static_cast<double>(timed->run().time) / alone);
      }
      {
        std::vector<float> weight(kBesideBytes / 4, 1), gradient = weight, state = weight;
        const Beside updating([weight, gradient, state]() mutable {
          for (size_t i = 0; i < weight.size(); ++i) {
            state[i] = 0.9f * state[i] + 0.1f * gradient[i];
            weight[i] -= 1e-6f * state[i];
          }
        });
        updates.push_back(static_cast<double>(timed->run().time) / alone);
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
  DeviceType device_;  // with the overhead of ops as it is here
  const Graph tiny_;
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

DeviceType calibrated_type(DeviceType device, const CalibrationResult& result) {
  device.launch_overhead = result.op_time / 2;
  device.calibration = result.calibration;
  return device;
}

CopyTimer::CopyTimer() : from_(size_t{64} << 20, 1), to_(from_.size(), 2) {}

Seconds CopyTimer::time(Bytes bytes) {
  const auto size = std::min(static_cast<size_t>(bytes.value), from_.size());
  if (at_ + size > from_.size()) at_ = 0;
  const auto begin = CalibrationClock::now();
  std::memcpy(to_.data() + at_, from_.data() + at_, size);
  const Seconds time(std::chrono::duration<double>(CalibrationClock::now() - begin).count());
  from_[at_] = to_[at_];
  // The next one begins where nothing was touched for long.
  at_ += std::max<size_t>(size, size_t{1} << 20);
  if (at_ >= from_.size()) at_ = 0;
  return std::max(time, Seconds(1e-9));
}

CopyLine line_of(const std::vector<CopyTime>& copies) {
  ensure(!copies.empty(), "a line goes through something");
  // Least squares of (latency + bytes x slope) / time - 1.
  double ll = 0, lb = 0, bb = 0, l = 0, b = 0;
  for (const CopyTime& copy : copies) {
    const double one = 1 / copy.time.value;
    const double size = static_cast<double>(copy.bytes.value) / copy.time.value;
    ll += one * one, lb += one * size, bb += size * size, l += one, b += size;
  }
  const double determinant = ll * bb - lb * lb;
  double latency = determinant > 1e-12 * ll * bb ? (l * bb - b * lb) / determinant : 0;
  if (!(latency > 0)) latency = 0;
  // With the latency as it is.
  const double slope = std::max(1e-15, (b - latency * lb) / bb);
  return {Seconds(latency), BytesPerSecond(1 / slope)};
}

CalibrationResult calibrate(Runtime& runtime, const CalibrationRequest& request) {
  return Calibrating(runtime, request).run();
}

}  // namespace windlass
