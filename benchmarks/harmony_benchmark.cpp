// Packs of layers on the profiles and plans that were released with Harmony: the released plan, the
// best that Harmony's own search finds inside the limit, and windlass's, under Harmony's estimate
// and under windlass's simulator. Takes the folder with the profiles and reference_plans.json.

#include <ctime>
#include <filesystem>
#include <fstream>
#include <map>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/table.h"
#include "windlass/machine/read_machine.h"
#include "windlass/search/packs/pack_search.h"
#include "windlass/search/packs/stream_search.h"
#include "windlass/search/peers/harmony/packers.h"
#include "windlass/search/peers/harmony/runtime_baseline.h"
#include "windlass/search/peers/paging/paging.h"

namespace windlass {
namespace {

constexpr int64_t kLimit = 9'000'000'000;
constexpr double kGiB = 0x1p30;

struct Point {
  std::string model;
  int64_t minibatch = 0;
  HarmonyPlan plan;
};

Point point_of(const nlohmann::json& entry) {
  Point point{entry.at("model"), entry.at("minibatch"), {}};
  HarmonyPlan& plan = point.plan;
  plan.mode = entry.at("mode") == "dp" ? HarmonyMode::Data : HarmonyMode::Pipeline;
  plan.devices = entry.at("devices");
  plan.forward_microbatch = entry.at("forward_microbatch");
  plan.backward_microbatch = entry.at("backward_microbatch");
  for (const auto& pack : entry.at("forward_packs"))
    plan.forward_packs.push_back({pack.at(0), pack.at(1)});
  for (const auto& pack : entry.at("backward_packs"))
    plan.backward_packs.push_back({pack.at(0), pack.at(1)});
  return point;
}

// Of the processor: machines that are busy do not count.
double seconds_since(std::clock_t begin) {
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

// The fastest of some runs.
template <typename Run>
double milliseconds(Run run) {
  double least = 1e300;
  for (int i = 0; i < 20; ++i) {
    const auto begin = std::clock();
    run();
    least = std::min(least, 1e3 * seconds_since(begin));
  }
  return least;
}

std::string label(const Point& point) {
  return fmt::format("{} D{} {} on {}", point.model, point.minibatch,
                     harmony_mode_name(point.plan.mode), point.plan.devices);
}

std::string number(double value) { return fmt::format("{:.3f}", value); }

// Under Harmony's estimate. A released plan that does not fit is in brackets; the ratio is to the
// best of those that fit.
void estimated(const std::vector<Point>& points, std::map<std::string, LayerProfile>& profiles) {
  Table table({Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Right});
  table.add({"estimate, s", "prefetch", "released", "own search", "windlass", "ratio", "bound",
             "searched s"});
  int better = 0, worse = 0, all = 0;
  double slowest = 0;
  for (const Point& point : points)
    for (bool prefetch : {false, true}) {
      ChainTables chain(profiles.at(point.model));
      HarmonyEstimator estimator(chain);
      const double released = estimator.seconds(point.plan, point.minibatch, prefetch);
      const bool fits = harmony_peak_bytes(chain, point.plan) <= kLimit;
      const auto begin = std::clock();
      const PackSearchResult found = search_packs(chain, point.plan.mode, point.plan.devices,
                                                  point.minibatch, kLimit, prefetch);
      const double took = seconds_since(begin);
      const auto own = harmony_own_search(chain, point.plan.mode, point.plan.devices,
                                          point.minibatch, kLimit, prefetch);
      double bar = own ? own->seconds : released;
      if (fits) bar = std::min(bar, released);
      ++all;
      better += found.seconds < bar - 1e-6;
      worse += found.seconds > bar + 1e-6;
      slowest = std::max(slowest, took);
      table.add({label(point), prefetch ? "on" : "off",
                 fits ? number(released) : fmt::format("({:.3f})", released),
                 own ? number(own->seconds) : "none", number(found.seconds),
                 number(found.seconds / bar), number(found.lower_bound), number(took)});
    }
  fmt::print(
      "{}{} points: {} faster than Harmony's best that fits, {} slower; slowest search "
      "{:.2f} s\n\n",
      table.text(), all, better, worse, slowest);
}

// Computing alone, all layers recomputed, shared out evenly, at the best micro-batch size that cuts
// the samples without a rest.
double compute_bound(ChainTables& chain, const Point& point) {
  double least = 1e300;
  for (int64_t size = 1; size <= point.minibatch; ++size)
    if (point.minibatch % size == 0 && chain.profile().backward.covers(size))
      least = std::min(least,
                       (chain.forward(size).seconds.back() + chain.backward(size).seconds.back()) *
                           static_cast<double>(point.minibatch / size));
  return least / point.plan.devices;
}

// Under windlass's simulator: Harmony's runtime with the released plan (in brackets if it does not
// fit by Harmony's formula), with that of its own search (in brackets if it does not fit by the
// simulator), and with the fastest that fits by both; windlass in the same mode and in any mode.
void simulated(const std::vector<Point>& points, std::map<std::string, LayerProfile>& profiles,
               const Machine& machine) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Right, Align::Right, Align::Right});
  table.add({"simulated, s", "released", "own search", "that fits", "same mode", "any mode",
             "no less than", "computing alone", "swap GiB: released", "own search", "that fits",
             "same mode", "any mode", "one step ms", "priced ms", "searched s"});
  double slowest = 0, longest = 0, dearest = 0;
  int more_than_fits = 0, more_than_released = 0;
  for (const Point& point : points) {
    ChainTables chain(profiles.at(point.model));
    StreamPricer pricer(chain, machine, point.minibatch, kLimit);
    const StreamCost released = pricer.price(harmony_runtime(point.plan));
    const bool fits = harmony_peak_bytes(chain, point.plan) <= kLimit;
    const auto own = harmony_own_search(chain, point.plan.mode, point.plan.devices, point.minibatch,
                                        kLimit, true);
    std::optional<StreamCost> fitting = harmony_that_fits(
        chain, pricer, point.plan.mode, point.plan.devices, point.minibatch, kLimit);
    if (fits && released.fits && (!fitting || released.seconds < fitting->seconds))
      fitting = released;
    StreamSearchOptions options;
    options.devices = point.plan.devices;
    const auto begin = std::clock();
    const StreamSearchResult any = search_streams(chain, machine, point.minibatch, kLimit, options);
    const double took = seconds_since(begin);
    options.mode = point.plan.mode;
    const auto again = std::clock();
    const StreamSearchResult same =
        search_streams(chain, machine, point.minibatch, kLimit, options);
    slowest = std::max({slowest, took, seconds_since(again)});
    // A step that is lowered, and all that the search does for a price: lowering, and steps until
    // they repeat.
    PackLowering lowering(chain, machine);
    const PackSteps* step = lowering.lower(*same.strategy, point.minibatch, 1, false);
    Simulator simulator;
    const double once =
        milliseconds([&] { simulator.run(*step->graph, *step->times, {.enforce_limits = false}); });
    const double priced = milliseconds([&] { pricer.price(*same.strategy); });
    longest = std::max(longest, once);
    dearest = std::max(dearest, priced);
    const auto gib = [](const StreamCost& cost) {
      return fmt::format("{:.1f}", static_cast<double>(cost.volume.swapped()) / kGiB);
    };
    StreamCost theirs;
    if (own) theirs = pricer.price(harmony_runtime(own->plan));
    const auto mark = [&](const std::string& text) { return fits ? text : "(" + text + ")"; };
    const auto mark_own = [&](const std::string& text) {
      return !own ? "none" : theirs.fits ? text : "(" + text + ")";
    };
    const int64_t moved = same.cost.volume.swapped();
    more_than_fits += fitting && moved > fitting->volume.swapped();
    more_than_released += moved > released.volume.swapped();
    table.add({label(point), mark(number(released.seconds)), mark_own(number(theirs.seconds)),
               fitting ? number(fitting->seconds) : "none", number(same.cost.seconds),
               number(any.cost.seconds), number(any.lower_bound),
               number(compute_bound(chain, point)), mark(gib(released)), mark_own(gib(theirs)),
               fitting ? gib(*fitting) : "none", gib(same.cost), gib(any.cost), number(once),
               number(priced), number(took)});
  }
  fmt::print(
      "{}in the same mode, {} of {} move more than Harmony's that fits, {} more than the released "
      "one, whether or not that fits; slowest search {:.2f} s, longest simulation of a step {:.2f} "
      "ms, "
      "of a price {:.2f} ms\n\n",
      table.text(), more_than_fits, points.size(), more_than_released, slowest, longest, dearest);
}

// Demand paging, 16 micro-batches on each device; pipelines also with so little memory that a stage
// does not fit. Beside it the most that weights can be paged: 4 m + 2 times, on each replica.
void paged(std::map<std::string, LayerProfile>& profiles) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Right});
  table.add({"paging, 16 micro-batches", "limit GB", "s", "windlass s", "times", "weights GiB",
             "at most", "times"});
  struct Case {
    HarmonyMode mode;
    int64_t minibatch, limit;
  };
  for (auto& [model, profile] : profiles)
    for (auto [mode, minibatch, limit] :
         {Case{HarmonyMode::Data, 64, kLimit}, Case{HarmonyMode::Pipeline, 16, kLimit},
          Case{HarmonyMode::Pipeline, 16, 2'000'000'000}}) {
      ChainTables chain(profile);
      const Machine machine = load_machine("4x1080ti", {.memory = Bytes(limit)});
      const PagingCost paging = simulate_paging(chain, machine, mode, 4, minibatch, 1, limit);
      const StreamSearchResult found = search_streams(chain, machine, minibatch, limit);
      const auto weights = [](const SwapVolume& volume) {
        return static_cast<double>(volume.weights) / kGiB;
      };
      table.add({fmt::format("{} D{} {}", model, minibatch, harmony_mode_name(mode)),
                 fmt::format("{:.0f}", static_cast<double>(limit) * 1e-9), number(paging.seconds),
                 number(found.cost.seconds),
                 fmt::format("{:.1f}", paging.seconds / found.cost.seconds),
                 fmt::format("{:.0f}", weights(paging.volume)),
                 fmt::format("{:.0f}", weights(paging_volume(chain, mode, 4, minibatch, 16))),
                 fmt::format("{:.1f}", weights(paging.volume) / weights(found.cost.volume))});
    }
  fmt::print("{}", table.text());
}

int run(const std::filesystem::path& folder) {
  std::vector<Point> points;
  std::map<std::string, LayerProfile> profiles;
  for (const auto& entry : nlohmann::json::parse(std::ifstream(folder / "reference_plans.json"))) {
    points.push_back(point_of(entry));
    const std::string& model = points.back().model;
    if (!profiles.contains(model))
      profiles[model] = load_layer_profile((folder / (model + ".json")).string());
  }
  const Machine machine = load_machine("4x1080ti", {.memory = Bytes(kLimit)});
  estimated(points, profiles);
  simulated(points, profiles, machine);
  paged(profiles);
  return 0;
}

}  // namespace
}  // namespace windlass

int main(int argc, char** argv) {
  const char* known = std::getenv("WINDLASS_DATA");
  const std::filesystem::path folder =
      argc > 1 ? argv[1] : std::filesystem::path(known ? known : "../shared/data") / "harmony";
  if (!std::filesystem::exists(folder / "reference_plans.json")) {
    fmt::print("skipped: no reference_plans.json in {}; name the folder\n", folder.string());
    return 0;
  }
  try {
    return windlass::run(folder);
  } catch (const std::exception& error) {
    fmt::print(stderr, "{}\n", error.what());
    return 1;
  }
}
