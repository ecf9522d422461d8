// Lowering and simulating whole steps, as a search does again and again: time per step after the
// first.
//
// Public figures beside: FlexFlow's simulators, time per proposal of their search, measured
// elsewhere and not like for like. Theirs has a task for each device (9 k to 45 k for the
// transformer on 64), ours one for each team of devices that do the same; their transformer has no
// attention.
//   Inception-v3, 8 devices      742 us (2018 simulator), 3487 us (last release)
//   12-layer transformer, 64     14-37 ms (last release)

#include <sys/resource.h>

#include <benchmark/benchmark.h>

#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/sim/simulate.h"
#include "windlass/strategy/baselines.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

struct Subject {
  const char* model;
  const char* machine;
  const char* strategy;
  int64_t batch;
  bool half;
  const char* others;  // public figures for the same
};

void lower_and_simulate(benchmark::State& state, const Subject& subject) {
  ModelOptions options;
  options.batch = subject.batch;
  if (subject.half) options.dtype = DType::F16;
  const Model model = load_model(subject.model, options);
  const Machine machine = load_machine(subject.machine);
  const PreparedStep step =
      prepare_step(model.graph, parse_baseline(subject.strategy), machine, TrainingOptions());
  const auto cost = analytic_cost_model();
  Lowering lowering(step.training, machine);
  TaskPricer pricer(machine, *cost);
  Simulator simulator;
  const auto run = [&] {
    const TaskGraph& tasks = lowering.lower(step.strategy);
    const TaskTimes& times = pricer.price(tasks);
    const Nanoseconds makespan = simulator.run(tasks, times, {.enforce_limits = false}).makespan;
    return std::pair(tasks.size(), makespan);
  };
  const auto [tasks, makespan] = run();
  for (auto _ : state) benchmark::DoNotOptimize(run().second);
  state.counters["tasks"] = static_cast<double>(tasks);
  state.counters["step_s"] = static_cast<double>(makespan) * 1e-9;
  state.counters["tasks/s"] =
      benchmark::Counter(static_cast<double>(tasks), benchmark::Counter::kIsIterationInvariantRate);
  state.SetLabel(subject.others);
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  state.counters["peak_rss_MB"] = static_cast<double>(usage.ru_maxrss) / 1024;  // of all so far
}

BENCHMARK_CAPTURE(lower_and_simulate, inception_v3_on_8,
                  Subject{"inception-v3", "8xa100-80g", "data-parallel", 512, false,
                          "FlexFlow 742-3487 us"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(lower_and_simulate, gpt2_small_on_64,
                  Subject{"gpt2-small", "8xa100-80g*8", "data-parallel", 512, true,
                          "FlexFlow 14-37 ms"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(lower_and_simulate, gpt2_small_on_64_tp4_pp4,
                  Subject{"gpt2-small", "8xa100-80g*8", "megatron:tp=4,pp=4,micro=4", 512, true,
                          "FlexFlow 14-37 ms, without pipelines"})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK_CAPTURE(lower_and_simulate, gpt3_175b_on_1024,
                  Subject{"gpt3-175b", "8xa100-80g*128",
                          "megatron:tp=8,pp=8,micro=1,recompute=full", 1024, true,
                          "no public figure"})
    ->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace windlass

BENCHMARK_MAIN();
