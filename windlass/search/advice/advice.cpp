#include "windlass/search/advice/advice.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

class Adviser {
 public:
  Adviser(const AdviceProblem& given, Seconds budget)
      : given_(given),
        end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                std::chrono::duration<double>(budget.value))) {}

  std::vector<Advice> run() {
    add_limit();
    std::vector<ProblemChange> changes = own_changes();
    changes.insert(changes.end(), given_.changes.begin(), given_.changes.end());
    if (given_.network) try_batch();
    for (const ProblemChange& change : changes) try_change(change);
    std::erase_if(found_, [&](const Advice& advice) {
      return !advice.fits && given_.least_limit && advice.least_limit >= *given_.least_limit;
    });
    std::ranges::stable_sort(found_, [](const Advice& a, const Advice& b) {
      if (a.fits != b.fits) return a.fits;
      if (!a.fits) return a.least_limit < b.least_limit;
      return static_cast<double>(a.samples) * b.step_time.value >
             static_cast<double>(b.samples) * a.step_time.value;
    });
    return found_;
  }

 private:
  bool over() const {
    return Clock::now() >= end_ || (given_.options.stop && given_.options.stop());
  }

  // For one of many searches: little effort each, and all together not beyond the end.
  SearchOptions limited(SearchOptions options) const {
    constexpr double kEffort = 0.15;
    options.effort *= kEffort;
    options.stop = [this] { return over(); };
    options.progress = {};
    options.starts = {};
    return options;
  }

  // Fills in what is found; false if nothing can be said.
  bool search(const Problem& problem, const SearchOptions& options, Advice& advice) const {
    Ledger ledger(problem, options);
    const int64_t micro = given_.frugal.micro_batches;
    // What needed least before is close to what needs least now, if it is possible at all.
    const int64_t only = options.micro_batches;
    if ((only == 0 || only == micro) && ledger.can_cut(micro))
      ledger.consider(given_.frugal, micro);
    for (const int64_t cut : {micro, std::max<int64_t>(1, only)})
      if ((only == 0 || only == cut) && !ledger.fits()) run_frugal(ledger, cut);
    if (problem.machine.devices.size() == 1)
      run_one_device(ledger);
    else
      run_grid(ledger, {all_devices(problem.machine)});
    try_packs(ledger);
    advice.samples = ledger.batch().samples;
    advice.fits = ledger.fits();
    if (advice.fits) {
      advice.step_time = step_time(problem, ledger.best_time());
      return true;
    }
    constexpr size_t kLookedAt = 2;
    std::optional<int64_t> least;
    for (size_t i = 0; i < std::min(kLookedAt, ledger.frugal().size()); ++i) {
      const Ledger::Entry& entry = ledger.frugal()[i];
      const std::optional<int64_t> limit =
          ledger.cut(entry.micro_batches).evaluator->least_limit(entry.strategy);
      if (limit && (!least || *limit < *least)) least = limit;
    }
    if (least) advice.least_limit = Bytes(*least);
    return least.has_value();
  }

  void try_change(const ProblemChange& change) {
    if (over()) return;
    const Problem& problem = given_.problem;
    Advice advice = {
        .change = change.change, .flags = change.flags, .same_result = change.same_result};
    try {
      const Graph network = change.network ? change.network() : Graph{};
      const Machine machine = change.machine ? change.machine() : Machine{};
      const Problem changed = {.network = change.network ? network : problem.network,
                               .machine = change.machine ? machine : problem.machine,
                               .training = change.training.value_or(problem.training),
                               .cost = change.cost ? *change.cost : problem.cost,
                               .reprice = change.cost ? Reprice{} : problem.reprice};
      const SearchOptions options = limited(change.options.value_or(given_.options));
      if (search(changed, options, advice)) found_.push_back(std::move(advice));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
    }
  }

  // The least limit itself: the most frugal strategy inside of it.
  void add_limit() {
    if (over()) return;
    if (given_.least_limit) return add_limit(given_.frugal, *given_.least_limit, "");
    // A host is too small: as little as possible without it.
    Ledger ledger(given_.problem, given_.options);
    const int64_t micro = given_.frugal.micro_batches;
    const auto devices = static_cast<int64_t>(given_.problem.machine.devices.size());
    std::optional<Strategy> best;
    int64_t least = 0;
    for (const int64_t tp : {int64_t{1}, devices}) {
      BaselineSpec spec = parse_baseline("megatron");
      spec.tp = tp, spec.dp = devices / tp;
      spec.zero = spec.dp > 1 ? 3 : 0;
      spec.recompute = RecomputePolicy::Full;
      std::optional<Strategy> strategy = ledger.named(spec, micro);
      if (!strategy) continue;
      const auto limit = ledger.cut(micro).evaluator->least_limit(*strategy);
      if (!limit || (best && *limit >= least)) continue;
      least = *limit;
      best = std::move(strategy);
    }
    if (best) add_limit(*best, Bytes(least), ", nothing on the host");
  }

  void add_limit(const Strategy& strategy, Bytes limit, std::string_view remark) {
    Machine machine = given_.problem.machine;
    for (Device& device : machine.devices) device.limit = std::max(device.limit, limit);
    const Problem& problem = given_.problem;
    const Problem larger = {.network = problem.network,
                            .machine = machine,
                            .training = problem.training,
                            .cost = problem.cost,
                            .reprice = problem.reprice};
    const SearchOptions options = limited(given_.options);
    Ledger ledger(larger, options);
    if (!ledger.consider(strategy, strategy.micro_batches).fits) return;
    found_.push_back({.change = fmt::format("a limit of {}{}", format_bytes(limit), remark),
                      .flags = fmt::format("--memory {}", limit.value),
                      .fits = true,
                      .samples = ledger.batch().samples,
                      .step_time = step_time(larger, ledger.best_time())});
  }

  // The largest batch that fits, or else the least one there is.
  void try_batch() {
    const int64_t now = find_batch(given_.problem.network).samples;
    if (over() || now < 2) return;
    const Problem& problem = given_.problem;
    const BatchProblem batch = {.network = given_.network,
                                .machine = problem.machine,
                                .training = problem.training,
                                .cost = given_.batch_cost ? *given_.batch_cost : problem.cost,
                                .reprice = given_.batch_cost ? Reprice{} : problem.reprice};
    int64_t samples = 1;
    try {
      samples = largest_batch(batch, limited(given_.options)).value_or(1);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      return;
    }
    if (samples >= now) return;
    ProblemChange change = {.change = fmt::format("a batch of {} instead of {}", samples, now),
                            .flags = fmt::format("--batch {}", samples)};
    change.network = [&] { return given_.network(samples); };
    change.cost = given_.batch_cost;
    try_change(change);
  }

  std::vector<ProblemChange> own_changes() const {
    std::vector<ProblemChange> list = host_changes();
    add_freed(list);
    const OptimizerKind optimizer = given_.problem.training.optimizer;
    if (optimizer_state_count(optimizer) > optimizer_state_count(OptimizerKind::Sgd)) {
      TrainingOptions training = given_.problem.training;
      training.optimizer = OptimizerKind::Sgd;
      list.push_back({.change = "an optimizer without state",
                      .flags = "--optimizer sgd",
                      .training = training,
                      .same_result = false});
    }
    if (given_.options.compress == 0) {
      SearchOptions options = given_.options;
      options.compress = 2;
      list.push_back({.change = "saved tensors in fewer bits",
                      .flags = "--allow compress",
                      .options = options,
                      .same_result = false});
    }
    return list;
  }

  // What the user has decided, given back.
  void add_freed(std::vector<ProblemChange>& list) const {
    const FixedDecisions& fixed = given_.options.fixed;
    const auto add = [&](const std::string& what, auto&& change) {
      SearchOptions options = given_.options;
      change(options);
      list.push_back({.change = fmt::format("{} left to the search", what), .options = options});
    };
    const int decided = (given_.options.micro_batches > 0 ? 1 : 0) + (fixed.structure() ? 1 : 0) +
                        (fixed.zero >= 0 ? 1 : 0) + (fixed.recompute ? 1 : 0) +
                        (fixed.offload ? 1 : 0) + (fixed.host_weights ? 1 : 0) +
                        (fixed.host_update ? 1 : 0);
    if (decided > 1)
      add("all that is fixed", [](SearchOptions& options) {
        options.fixed = {};
        options.micro_batches = 0;
      });
    if (given_.options.micro_batches > 0)
      add(fmt::format("the number of micro-batches ({})", given_.options.micro_batches),
          [](SearchOptions& options) { options.micro_batches = 0; });
    if (fixed.structure())
      add("dp, tp, pp, cp and ep", [](SearchOptions& options) {
        options.fixed.dp = options.fixed.tp = options.fixed.pp = options.fixed.cp = 0;
        options.fixed.ep = 0;
      });
    if (fixed.zero >= 0)
      add(fmt::format("zero={}", fixed.zero), [](SearchOptions& o) { o.fixed.zero = -1; });
    if (fixed.recompute) add("recompute", [](SearchOptions& o) { o.fixed.recompute.reset(); });
    const auto on_off = [](bool on) { return on ? "on" : "off"; };
    if (fixed.offload)
      add(fmt::format("offload={}", on_off(*fixed.offload)),
          [](SearchOptions& o) { o.fixed.offload.reset(); });
    if (fixed.host_weights)
      add(fmt::format("host-weights={}", on_off(*fixed.host_weights)),
          [](SearchOptions& o) { o.fixed.host_weights.reset(); });
    if (fixed.host_update)
      add(fmt::format("host-update={}", on_off(*fixed.host_update)),
          [](SearchOptions& o) { o.fixed.host_update.reset(); });
  }

  // No limit of devices helps where a host is too small: what the most frugal strategy needs there.
  std::vector<ProblemChange> host_changes() const {
    if (given_.least_limit || over()) return {};
    Ledger ledger(given_.problem, given_.options);
    if (!ledger.can_cut(given_.frugal.micro_batches)) return {};
    int64_t needed = 0;
    const Evaluator::Run run =
        ledger.cut(given_.frugal.micro_batches).evaluator->run_unlimited(given_.frugal);
    for (size_t m = 0; m < run.tasks.memories.size(); ++m)
      if (!run.tasks.memories[m].team.valid()) needed = std::max(needed, run.result.peaks[m].bytes);
    ProblemChange change = {.change = fmt::format("{} of host memory", format_bytes(Bytes(needed))),
                            .flags = fmt::format("--host-memory {}", needed)};
    change.machine = [this, needed] {
      Machine machine = given_.problem.machine;
      for (Node& node : machine.nodes) node.memory = std::max(node.memory, Bytes(needed));
      return machine;
    };
    return {change};
  }

  const AdviceProblem& given_;
  Clock::time_point end_;
  std::vector<Advice> found_;
};

}  // namespace

std::vector<Advice> advise(const AdviceProblem& given, Seconds budget) {
  return Adviser(given, budget).run();
}

}  // namespace windlass
