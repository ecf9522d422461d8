// What a search finds under ever lower limits: searchers of other systems, policies, and windlass,
// all judged by the same simulator. Limits are shares of the peak of plain data parallelism.
//
//   joint_benchmark [MODEL|all] [MACHINE|all] [effort]
//
// Prints a table and, at the end, in how many cases windlass is valid where any other is, where no
// other is, and whether it is ever slower than the best valid one; and whether its times fall as
// limits rise.

#include <algorithm>
#include <cstdlib>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/table.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/check.h"
#include "windlass/search/book/ledger.h"
#include "windlass/search/peers/peers.h"

namespace windlass {
namespace {

struct Case {
  const char* model;
  int64_t samples;  // a device
};
constexpr Case kModels[] = {{"inception-v3", 32},    {"resnet-101", 32}, {"nmt", 32},
                            {"transformer-big", 16}, {"bert-large", 8},  {"gpt2-xl", 1}};
constexpr const char* kMachines[] = {"4x1080ti", "8x1080ti", "4xv100-16g", "8xa100-80g"};
constexpr double kLimits[] = {1.0, 0.8, 0.6, 0.4, 0.3, 0.2};

struct Cell {
  bool valid = false;
  double seconds = 0;
};

struct Totals {
  int cases = 0, valid = 0, only = 0, missed = 0, slower = 0, not_monotone = 0;
  double worst = 0;  // how much slower than the best other
};

Machine limited(Machine machine, int64_t limit) {
  for (Device& device : machine.devices) device.limit = Bytes(limit);
  return machine;
}

std::string text(const Cell& cell) {
  return cell.valid ? fmt::format("{:.1f} ms", 1e3 * cell.seconds) : "-";
}

void run(const Case& what, const std::string& machine_name, double effort, Totals& totals) {
  const Machine free = load_machine(machine_name);
  const auto cost = analytic_cost_model();
  ModelOptions options;
  options.batch = what.samples * static_cast<int64_t>(free.devices.size());
  const Model model = load_model(what.model, options);
  const Problem whole = {.network = model.graph, .machine = free, .cost = *cost};
  SearchOptions plain;
  Ledger ledger(whole, plain);
  const auto data_parallel = ledger.named(parse_baseline("data-parallel"), 1);
  ensure(data_parallel.has_value(), "data parallelism is not possible");
  const int64_t peak = ledger.cut(1).evaluator->evaluate_unlimited(*data_parallel).peak;
  fmt::print("{} on {}, batch {}: data parallelism takes {}\n", what.model, machine_name,
             *options.batch, format_bytes(Bytes(peak)));
  Table table({Align::Right, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Left});
  table.add({"limit", "time-only", "FlexFlow-style", "MemFlow-style", "Unity-style",
             "recompute all", "windlass", ""});
  double above = 0;  // time at the limit above
  for (const double share : kLimits) {
    const Machine machine = limited(free, static_cast<int64_t>(share * static_cast<double>(peak)));
    const Problem problem = {.network = model.graph, .machine = machine, .cost = *cost};
    std::vector<Cell> others;
    for (std::string_view peer : peer_names()) {
      const PeerResult found =
          search_as(peer, problem, {.simulations = static_cast<int64_t>(1000 * effort)});
      others.push_back({found.fits, found.step_time.value});
    }
    Ledger inside(problem, plain);
    const auto recompute = inside.named(parse_baseline("recompute-all"), 1);
    const Evaluation all = inside.consider(*recompute, 1);
    others.push_back({all.fits, step_time(problem, all.time).value});
    const SearchResult found = search_all(problem, {.effort = effort});
    const Cell own = {found.termination != Termination::Infeasible, found.step_time.value};
    if (own.valid) {
      const SimulatedStep step = simulate_step(found.training, found.strategy, machine, *cost);
      ensure(step.result.status == SimStatus::Done, "a plan does not fit");
      ensure(check_tasks(found.training, machine, found.strategy, step.tasks).empty(),
             "the checker refuses a plan");
    }
    std::vector<std::string> row = {fmt::format("{:.0f} %", 100 * share)};
    bool any = false;
    double best = 0;
    for (const Cell& cell : others) {
      row.push_back(text(cell));
      if (cell.valid && (!any || cell.seconds < best)) best = cell.seconds;
      any |= cell.valid;
    }
    row.push_back(text(own));
    ++totals.cases;
    totals.valid += own.valid ? 1 : 0;
    std::string note;
    if (own.valid && !any) ++totals.only, note = "no other fits";
    if (any && !own.valid) ++totals.missed, note = "MISSED";
    if (any && own.valid) {
      totals.worst = std::max(totals.worst, own.seconds / best - 1);
      if (own.seconds > best) ++totals.slower, note = "SLOWER";
    }
    if (own.valid && own.seconds < above) ++totals.not_monotone, note += " faster than above";
    if (own.valid) above = own.seconds;
    row.push_back(note);
    table.add(row);
  }
  fmt::print("{}\n", table.text("  "));
  std::fflush(stdout);
}

}  // namespace
}  // namespace windlass

int main(int argc, char** argv) {
  using namespace windlass;
  const std::string model = argc > 1 ? argv[1] : "all", machine = argc > 2 ? argv[2] : "all";
  const double effort = argc > 3 ? std::atof(argv[3]) : 1;
  Totals totals;
  try {
    for (const Case& what : kModels)
      for (const char* name : kMachines)
        if ((model == "all" || model == what.model) && (machine == "all" || machine == name))
          run(what, name, effort, totals);
  } catch (const Error& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
  fmt::print(
      "{} cases: windlass valid in {}, alone in {}, missed {}; slower than the best other in {} "
      "(at most {:.2f} %); times that fall with the limit: {}\n",
      totals.cases, totals.valid, totals.only, totals.missed, totals.slower, 100 * totals.worst,
      totals.not_monotone);
}
