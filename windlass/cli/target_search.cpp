#include "windlass/cli/target_search.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/export/torch_script.h"
#include "windlass/search/book/ledger.h"

namespace windlass {
namespace {

constexpr int64_t kMostTensorParts = 16;

struct Shape {
  int64_t dp = 1, tp = 1, pp = 1, interleave = 1, micro_batches = 1;
  Nanoseconds time = 0;  // with nothing against full memory
};

// What is done against full memory, from nothing to everything.
struct Remedy {
  int zero = 0;
  RecomputePolicy recompute = RecomputePolicy::None;
  bool host_states = false, host_weights = false;

  // Whether it does all that the other does, and so is no faster where that one fits.
  bool includes(const Remedy& other) const {
    return zero >= other.zero && recompute >= other.recompute && host_states >= other.host_states &&
           host_weights >= other.host_weights;
  }
};

std::vector<Remedy> remedies_of(const TargetRules& rules, const Shape& shape) {
  std::vector<RecomputePolicy> policies = {RecomputePolicy::None};
  if (rules.selective) policies.push_back(RecomputePolicy::Selective);
  policies.push_back(RecomputePolicy::Full);
  std::vector<Remedy> list;
  for (int host = 0; host < 3; ++host)
    for (RecomputePolicy policy : policies)
      for (int zero : rules.zero) {
        if (zero > 0 && (shape.dp == 1 || (shape.pp > 1 && zero > rules.zero_with_pipeline)))
          continue;
        if (host >= 1 && (!rules.host_states || zero < rules.host_states_from)) continue;
        if (host == 2 && (!rules.host_weights || zero < 3)) continue;
        list.push_back({zero, policy, host >= 1, host == 2});
      }
  return list;
}

BaselineSpec spec_of_shape(const Shape& shape, const Remedy& remedy) {
  std::string name = fmt::format("megatron:dp={},tp={},pp={},micro-batches={}", shape.dp, shape.tp,
                                 shape.pp, shape.micro_batches);
  if (shape.interleave > 1) name += fmt::format(",interleave={}", shape.interleave);
  if (remedy.zero > 0) name += fmt::format(",zero={}", remedy.zero);
  if (remedy.recompute != RecomputePolicy::None)
    name += fmt::format(",recompute={}",
                        remedy.recompute == RecomputePolicy::Full ? "full" : "selective");
  if (remedy.host_states) name += ",host-update=on";
  if (remedy.host_weights) name += ",host-weights=on";
  return parse_baseline(name);
}

constexpr double kAllSettings = 1e15;  // units of effort that nothing uses up

class TargetSearch {
 public:
  TargetSearch(const TargetRules& rules, Ledger& ledger) : rules_(rules), ledger_(ledger) {}

  void run() {
    // There are few: all are tried.
    ledger_.begin("settings", kAllSettings);
    std::vector<Shape> shapes = all_shapes();
    // What the user rules out plainly may be allowed with remedies: nothing is known of its time.
    for (Shape& shape : shapes) {
      if (ledger_.fits() && ledger_.interrupted()) break;
      if (const auto found = consider(shape, {})) shape.time = found->free_time;
    }
    std::ranges::stable_sort(shapes, {}, &Shape::time);
    for (const Shape& shape : shapes) {
      if (ledger_.beaten(shape.time)) break;
      std::vector<Remedy> fitting;
      for (const Remedy& remedy : remedies_of(rules_, shape)) {
        if (ledger_.interrupted()) return;
        if (std::ranges::any_of(fitting, [&](const Remedy& r) { return remedy.includes(r); }))
          continue;
        const auto found = consider(shape, remedy);
        if (found && found->fits) fitting.push_back(remedy);
      }
    }
  }

 private:
  std::vector<Shape> all_shapes() {
    const auto devices = static_cast<int64_t>(ledger_.problem().machine.devices.size());
    const int64_t samples = ledger_.batch().samples;
    const FixedDecisions& fixed = ledger_.options().fixed;
    const auto open = [](int64_t decided, int64_t value) {
      return decided == 0 || decided == value;
    };
    std::vector<Shape> shapes;
    for (int64_t tp = 1; tp <= std::min(rules_.tensor ? kMostTensorParts : 1, devices); ++tp)
      for (int64_t pp = 1; pp <= (rules_.pipeline ? devices / tp : 1); ++pp) {
        const int64_t dp = devices / (tp * pp);
        if (dp * tp * pp != devices || samples % dp != 0) continue;
        if (!open(fixed.dp, dp) || !open(fixed.tp, tp) || !open(fixed.pp, pp)) continue;
        for (int64_t parts : ledger_.micro_batches(samples / dp)) {
          if (samples % (dp * parts) != 0 || !ledger_.can_cut(parts)) continue;
          shapes.push_back({dp, tp, pp, 1, parts});
          if (pp > 1 && rules_.interleave && parts % pp == 0)
            shapes.push_back({dp, tp, pp, 2, parts});
        }
      }
    return shapes;
  }

  // None: the user decided otherwise, or the network or the machine does not allow it.
  std::optional<Evaluation> consider(const Shape& shape, const Remedy& remedy) {
    const BaselineSpec spec = spec_of_shape(shape, remedy);
    if (!ledger_.options().fixed.allows(spec)) return std::nullopt;
    const auto strategy = ledger_.named(spec, shape.micro_batches);
    if (!strategy) return std::nullopt;
    const Evaluation found = ledger_.consider(*strategy, shape.micro_batches);
    ledger_.report();
    return found;
  }

  const TargetRules& rules_;
  Ledger& ledger_;
};

struct Target {
  std::string name;
  TargetRules rules;
};

const std::vector<Target>& targets() {
  static const std::vector<Target> kTargets = [] {
    std::vector<Target> list;
    for (const SettingsExporter& exporter : settings_exporters())
      list.push_back({std::string(exporter.name), exporter.rules});
    list.push_back({"pytorch", torch_script_rules()});
    return list;
  }();
  return kTargets;
}

template <size_t kTarget>
SearchResult search_settings(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  TargetSearch(targets().at(kTarget).rules, ledger).run();
  SearchResult result = ledger.finish();
  result.lower_bound = work_bound(problem);
  return result;
}

template <size_t... kTargets>
std::vector<SearchMethod> all_searches(std::index_sequence<kTargets...>) {
  return {
      {targets().at(kTargets).name, "settings of another system", search_settings<kTargets>}...};
}

}  // namespace

std::vector<std::string> search_targets() {
  std::vector<std::string> names;
  for (const Target& target : targets()) names.push_back(target.name);
  return names;
}

const SearchMethod& target_search(std::string_view target) {
  static const std::vector<SearchMethod> kSearches = all_searches(std::make_index_sequence<6>());
  for (const SearchMethod& search : kSearches)
    if (search.name == target) return search;
  fail_input("--for {}: there is no such system; known are {}", target,
             join(search_targets(), ", "));
}

}  // namespace windlass
