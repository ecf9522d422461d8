// How many tasks a second the simulator runs, preparation and memory included.

#include <benchmark/benchmark.h>

#include "windlass/sim/reference/naive.h"
#include "windlass/sim/reference/random_tasks.h"
#include "windlass/sim/simulate.h"

namespace windlass {
namespace {

// A period of 0: nothing repeats, which is the worst for branch prediction.
RandomTasks make(const benchmark::State& state) {
  const auto argument = [&](size_t i) { return static_cast<size_t>(state.range(i)); };
  const size_t period = argument(2) == 0 ? argument(0) : argument(2);
  return training_like_tasks(1, argument(0), argument(1), period);
}

void count_tasks(benchmark::State& state, size_t tasks) {
  state.counters["tasks/s"] =
      benchmark::Counter(static_cast<double>(tasks), benchmark::Counter::kIsIterationInvariantRate);
}

void simulate_step(benchmark::State& state) {
  const RandomTasks random = make(state);
  Simulator simulator;
  for (auto _ : state) benchmark::DoNotOptimize(simulator.run(random.graph, random.times).makespan);
  count_tasks(state, random.graph.size());
}

void simulate_naive(benchmark::State& state) {
  const RandomTasks random = make(state);
  for (auto _ : state)
    benchmark::DoNotOptimize(simulate_naively(random.graph, random.times).makespan);
  count_tasks(state, random.graph.size());
}

BENCHMARK(simulate_step)
    ->ArgNames({"tasks", "teams", "period"})
    ->Args({1'500, 1, 200})
    ->Args({1'500, 8, 200})
    ->Args({100'000, 8, 200})
    ->Args({1'000'000, 1, 200})
    ->Args({1'000'000, 8, 200})
    ->Args({1'000'000, 8, 0})
    ->Args({1'000'000, 64, 200})
    ->Unit(benchmark::kMicrosecond);
BENCHMARK(simulate_naive)
    ->ArgNames({"tasks", "teams", "period"})
    ->Args({20'000, 8, 200})
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace windlass

BENCHMARK_MAIN();
