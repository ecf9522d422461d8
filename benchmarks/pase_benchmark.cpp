// Exact search on PaSE's networks with PaSE's cost model: cost tables included, on one core.
//
// Published for the same optimum (Elango, IPDPS 2021, Table I; Xeon E5, minutes:seconds at 64
// devices): AlexNet 0:00.475, Inception-v3 3:16.253, RNNLM 0:00.215, Transformer 31:23.187, all
// without building the cost tables. The released code runs out of 17 GB for the Transformer at 32.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <sys/resource.h>

#include "windlass/search/exact/eliminate.h"
#include "windlass/search/peers/pase/pase_problem.h"

namespace {

using namespace windlass;

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double peak_megabytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return static_cast<double>(usage.ru_maxrss) / 1024;
}

struct Published {
  const char* name;
  double seconds[5];  // at 4, 8, 16, 32, 64 devices; 0: none
};
constexpr Published kPublished[] = {
    {"alexnet", {0.226, 0.253, 0.295, 0.361, 0.475}},
    {"rnnlm", {0.057, 0.086, 0.069, 0.131, 0.215}},
    {"inception-v3", {14.398, 20.018, 39.791, 86.039, 196.253}},
    {"resnet-101", {0, 0, 0, 0, 0}},
    {"transformer", {9.752, 28.798, 130.882, 553.022, 1883.187}},
    {"densenet-121", {0, 0, 0, 0, 0}},
};

}  // namespace

int main() {
  std::printf("%-13s %4s %20s %8s %9s %14s %12s %9s %10s %8s\n", "network", "p", "optimum, FLOP",
              "gap", "s", "largest table", "cells", "computed", "published", "peak MB");
  for (const Published& entry : kPublished) {
    const LayerGraph graph = *pase_network(entry.name);
    for (size_t i = 0; i < 5; ++i) {
      const PaseMachine machine = {.devices = int64_t{4} << i};
      double best = 0;
      EliminationResult result;
      double cost = 0;
      // The best of three, unless one takes long.
      for (int round = 0; round < 3; ++round) {
        const double start = now();
        const PaseProblem problem = make_pase_problem(graph, machine);
        result = minimise(problem.network, {.threads = 1, .time_limit = Seconds(60)});
        const double seconds = now() - start;
        cost = pase_cost(graph, machine, problem, result.choice);
        best = round == 0 ? seconds : std::min(best, seconds);
        if (seconds > 5) break;
      }
      std::printf("%-13s %4ld %20.0f %7.2f%% %9.4f %14.0f %12.3g %8.1f%%", entry.name,
                  static_cast<long>(machine.devices), cost, 100 * result.gap(), best,
                  result.largest_table, result.cells,
                  100 * result.cells_computed / std::max(1.0, result.cells));
      if (entry.seconds[i] > 0)
        std::printf(" %9.0fx", entry.seconds[i] / best);
      else
        std::printf(" %10s", "-");
      std::printf(" %8.0f\n", peak_megabytes());
    }
  }
  return 0;
}
