#include "windlass/search/settings/settings_search.h"

#include <algorithm>
#include <limits>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/search/book/ledger.h"
#include "windlass/strategy/context_parallel.h"

namespace windlass {
namespace {

constexpr int64_t kMostTensorParts = 16;
// Shorter parts of sequences are tried only if the user asks for them.
constexpr int64_t kFewestPositionsOfPart = 2048;

struct Shape {
  int64_t dp = 1, tp = 1, pp = 1, cp = 1, ep = 1, interleave = 1, micro_batches = 1;
  bool sequence = false;
  Nanoseconds time = 0;  // with nothing against full memory
};

// What is done against full memory, from nothing to everything.
struct Remedy {
  int zero = 0;
  RecomputePolicy recompute = RecomputePolicy::None;
  bool offload = false;  // of what is saved
  bool host_states = false, host_weights = false;

  // Whether it does all that the other does, and so is no faster where that one fits.
  bool includes(const Remedy& other) const {
    return zero >= other.zero && recompute >= other.recompute && offload >= other.offload &&
           host_states >= other.host_states && host_weights >= other.host_weights;
  }
};

// Settings that belong together, and what strategies of them are called.
struct SettingsGrid {
  TargetRules rules;
  std::string_view name = "megatron";
  bool offload = false;  // saved tensors may go to the host, all of them
  int64_t least_pp = 1;
};

std::vector<Remedy> remedies_of(const SettingsGrid& grid, const Shape& shape) {
  const TargetRules& rules = grid.rules;
  std::vector<RecomputePolicy> policies = {RecomputePolicy::None};
  if (rules.selective) policies.push_back(RecomputePolicy::Selective);
  policies.push_back(RecomputePolicy::Full);
  const int64_t replicas = shape.dp * shape.cp;
  const int least = std::max(shape.cp > 1 ? *rules.context : 0, shape.ep > 1 ? *rules.experts : 0);
  std::vector<Remedy> list;
  for (int host = 0; host < 3; ++host)
    for (RecomputePolicy policy : policies)
      for (int zero : rules.zero) {
        if (zero > 0 && (replicas == 1 || (shape.pp > 1 && zero > rules.zero_with_pipeline)))
          continue;
        if (zero < least) continue;
        if ((host >= 1 && !rules.host_states) || (host == 2 && !rules.host_weights)) continue;
        if (host == 1 && rules.host_together) continue;
        // A replica alone shares nothing out: the stage is a word of the settings only.
        const int stage = replicas > 1 || !rules.host_alone ? zero
                          : shape.pp > 1                    ? rules.zero_with_pipeline
                                                            : 3;
        if (host >= 1 && stage < rules.host_states_from) continue;
        if (host == 2 && stage < rules.host_weights_from) continue;
        list.push_back({zero, policy, false, host >= 1, host == 2});
        if (grid.offload && policy == RecomputePolicy::None)
          list.push_back({zero, policy, true, host >= 1, host == 2});
      }
  return list;
}

BaselineSpec spec_of_shape(const SettingsGrid& grid, const Shape& shape, const Remedy& remedy) {
  std::vector<std::string> settings;
  const auto add = [&](std::string_view key, auto value) {
    settings.push_back(fmt::format("{}={}", key, value));
  };
  if (grid.name == "megatron") {
    add("dp", shape.dp), add("tp", shape.tp), add("pp", shape.pp);
    if (shape.cp > 1) add("cp", shape.cp);
    if (shape.ep > 1) add("ep", shape.ep);
    if (shape.sequence) add("sequence-parallel", "on");
  } else if (shape.pp > 1) {
    add("stages", shape.pp);
  }
  const bool zero = grid.name == "zero";
  if (zero) add("stage", remedy.zero);
  add("micro-batches", shape.micro_batches);
  if (shape.interleave > 1) add("interleave", shape.interleave);
  if (remedy.zero > 0 && !zero) add("zero", remedy.zero);
  if (remedy.recompute != RecomputePolicy::None)
    add("recompute", remedy.recompute == RecomputePolicy::Full ? "full" : "selective");
  if (remedy.offload) add("offload", "on");
  if (remedy.host_states) add("host-update", "on");
  if (remedy.host_weights) add("host-weights", "on");
  return parse_baseline(fmt::format("{}:{}", grid.name, join(settings, ",")));
}

// Units of effort: those that nothing uses up, and those for one of the usual strategies.
constexpr double kAllSettings = 1e15, kTunedSettings = 1e6;

class SettingsSearch {
 public:
  SettingsSearch(SettingsGrid grid, Ledger& ledger) : grid_(std::move(grid)), ledger_(ledger) {}

  // With so many units of effort.
  void run(double units) {
    ledger_.begin("settings", units);
    std::vector<Shape> shapes = all_shapes();
    // What the user rules out plainly may be allowed with remedies: nothing is known of its time.
    for (Shape& shape : shapes) {
      if (ledger_.over() && (ledger_.fits() || units < kAllSettings)) break;
      if (const auto found = consider(shape, remedies_of(grid_, shape).front()))
        shape.time = found->free_time;
    }
    std::ranges::stable_sort(shapes, {}, &Shape::time);
    for (const Shape& shape : shapes) {
      if (ledger_.beaten(shape.time)) break;
      std::vector<Remedy> fitting;
      for (const Remedy& remedy : remedies_of(grid_, shape)) {
        if (ledger_.over()) return;
        if (std::ranges::any_of(fitting, [&](const Remedy& r) { return remedy.includes(r); }))
          continue;
        const auto found = consider(shape, remedy);
        if (found && found->fits) fitting.push_back(remedy);
      }
    }
  }

  // The fastest that fits, else the one that needs least; none: nothing is possible.
  const std::optional<std::string>& best() const { return best_; }

 private:
  std::vector<Shape> all_shapes() {
    const auto devices = static_cast<int64_t>(ledger_.problem().machine.devices.size());
    const int64_t samples = ledger_.batch().samples;
    const FixedDecisions& fixed = ledger_.options().fixed;
    const auto open = [](int64_t decided, int64_t value) {
      return decided == 0 || decided == value;
    };
    std::vector<Shape> shapes;
    const TargetRules& rules = grid_.rules;
    for (int64_t tp = 1; tp <= std::min(rules.tensor ? kMostTensorParts : 1, devices); ++tp) {
      if (!shares_heads(ledger_.problem().network, tp)) continue;
      for (int64_t pp = grid_.least_pp; pp <= (rules.pipeline ? devices / tp : 1); ++pp) {
        for (const int64_t cp : contexts(devices / (tp * pp))) {
          const int64_t dp = devices / (tp * pp * cp);
          if (dp * tp * pp * cp != devices || samples % dp != 0) continue;
          if (!open(fixed.dp, dp) || !open(fixed.tp, tp) || !open(fixed.pp, pp)) continue;
          add_shapes({.dp = dp, .tp = tp, .pp = pp, .cp = cp}, shapes);
        }
      }
    }
    return shapes;
  }

  // Into how many parts sequences may be split.
  std::vector<int64_t> contexts(int64_t most) const {
    const Graph& network = ledger_.problem().network;
    const int64_t fixed = ledger_.options().fixed.cp;
    std::vector<int64_t> list;
    for (int64_t cp = 1; cp <= (grid_.rules.context ? most : 1); cp *= 2)
      if (cp == 1 ||
          (shares_positions(network, cp) && positions_of(network) / cp >= kFewestPositionsOfPart))
        list.push_back(cp);
    if (fixed == 0) return list;
    if (fixed > 1 && (!grid_.rules.context || !shares_positions(network, fixed))) return {};
    return {fixed};
  }

  // With every number of micro-batches.
  void add_shapes(Shape shape, std::vector<Shape>& shapes) {
    const TargetRules& rules = grid_.rules;
    const int64_t samples = ledger_.batch().samples;
    shape.ep = std::max<int64_t>(1, ledger_.options().fixed.ep);
    if (shape.dp % shape.ep != 0) return;
    for (int64_t parts : ledger_.micro_batches(samples / shape.dp)) {
      if (samples % (shape.dp * parts) != 0 || !ledger_.can_cut(parts)) continue;
      shape.micro_batches = parts;
      for (const bool sequence : {false, true}) {
        if (sequence ? shape.tp == 1 || !(rules.sequence || rules.always_sequence)
                     : shape.tp > 1 && (rules.always_sequence || shape.ep > 1))
          continue;
        shape.sequence = sequence;
        shape.interleave = 1;
        shapes.push_back(shape);
        shape.interleave = 2;
        if (shape.pp > 1 && rules.interleave && parts % shape.pp == 0) shapes.push_back(shape);
      }
    }
  }

  // None: the user decided otherwise, or the network or the machine does not allow it.
  std::optional<Evaluation> consider(const Shape& shape, const Remedy& remedy) {
    BaselineSpec spec = spec_of_shape(grid_, shape, remedy);
    spec.whole_layers = !grid_.rules.target.empty();
    if (!ledger_.options().fixed.allows(spec)) return std::nullopt;
    const auto strategy = ledger_.named(spec, shape.micro_batches);
    if (!strategy) return std::nullopt;
    const Evaluation found = ledger_.consider(*strategy, shape.micro_batches);
    const int64_t badness = found.fits ? found.time : found.peak;
    if (!best_ || found.fits > fits_ || (found.fits == fits_ && badness < badness_)) {
      best_ = spec.name;
      fits_ = found.fits;
      badness_ = badness;
    }
    ledger_.report();
    return found;
  }

  const SettingsGrid grid_;
  Ledger& ledger_;
  std::optional<std::string> best_;
  bool fits_ = false;
  int64_t badness_ = 0;  // of the best: its time, or its peak where it does not fit
};

// The usual strategies with what there is to tune about them.
std::vector<SettingsGrid> usual_grids(size_t devices) {
  const TargetRules alone = {.name = "usual strategies",
                             .tensor = false,
                             .pipeline = false,
                             .interleave = false,
                             .zero = {0},
                             .host_states = false,
                             .host_weights = false};
  if (devices == 1) {
    TargetRules host = alone;
    host.host_states = host.host_weights = true;
    host.host_states_from = host.host_weights_from = 0;
    return {{alone, "single", true}, {host, "single", true}};
  }
  TargetRules zero = alone, offload = alone, stages = alone;
  zero.zero = offload.zero = {1, 2, 3};
  offload.host_states = offload.host_weights = true;
  stages.pipeline = true;
  const TargetRules megatron = {.name = alone.name,
                                .zero = {0, 1},
                                .selective = true,
                                .host_states = false,
                                .host_weights = false};
  return {{alone, "data-parallel", true},
          {zero, "zero"},
          {offload, "zero"},
          {megatron, "megatron"},
          {stages, "gpipe", false, 2},
          {stages, "1f1b", false, 2}};
}

}  // namespace

SearchResult search_settings(const Problem& problem, const SearchOptions& options,
                             const TargetRules& rules) {
  const FixedDecisions& fixed = options.fixed;
  if (fixed.ep > 1 && !rules.experts)
    fail_input("--fix ep={}: settings of {} do not split experts over devices", fixed.ep,
               rules.name);
  if (fixed.cp > 1 && !rules.context)
    fail_input("--fix cp={}: settings of {} do not split the positions of samples", fixed.cp,
               rules.name);
  if (fixed.ep > 1 && problem.with_slots != nullptr) {
    SearchResult result = search_settings({.network = *problem.with_slots,
                                           .machine = problem.machine,
                                           .training = problem.training,
                                           .cost = problem.cost,
                                           .reprice = problem.reprice,
                                           .measuring = problem.measuring},
                                          options, rules);
    result.in_slots = true;
    return result;
  }
  Ledger ledger(problem, options);
  SettingsSearch({rules}, ledger).run(kAllSettings);
  SearchResult result = ledger.finish();
  result.lower_bound = work_bound(problem, options);
  return result;
}

std::vector<std::string> tuned_strategies(const Problem& problem, const SearchOptions& options,
                                          const std::function<void(const std::string&)>& progress) {
  Ledger book(problem, options);
  std::vector<std::string> names;
  for (const SettingsGrid& grid : usual_grids(problem.machine.devices.size())) {
    if (progress) progress(std::string(grid.name));
    // What is found of one strategy is not known to the others; the cuts of the network are.
    Ledger own = book.branch(std::numeric_limits<Nanoseconds>::max());
    SettingsSearch search(grid, own);
    search.run(kTunedSettings);
    if (search.best() && std::ranges::find(names, *search.best()) == names.end())
      names.push_back(*search.best());
  }
  return names;
}

}  // namespace windlass
