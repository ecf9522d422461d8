#include "windlass/search/advice/batch_size.h"

#include <algorithm>
#include <set>

#include "windlass/base/error.h"
#include "windlass/search/book/ledger.h"

namespace windlass {
namespace {

constexpr int64_t kMostSamples = 1 << 20;

Problem problem_of(const BatchProblem& batch, const Graph& network) {
  return {.network = network,
          .machine = batch.machine,
          .training = batch.training,
          .cost = batch.cost,
          .reprice = batch.reprice};
}

// False as well where the model has no such batch.
bool fits(const BatchProblem& batch, int64_t samples, const SearchOptions& options) {
  try {
    const Graph network = batch.network(samples);
    return anything_fits(problem_of(batch, network), options);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal || samples == 1) throw;
    return false;
  }
}

bool stopped(const SearchOptions& options) { return options.stop && options.stop(); }

}  // namespace

bool anything_fits(const Problem& problem, const SearchOptions& options) {
  Ledger ledger(problem, options);
  return run_frugal(ledger, std::max<int64_t>(1, options.micro_batches));
}

bool run_frugal(Ledger& ledger, int64_t micro) {
  const auto devices = static_cast<int64_t>(ledger.problem().machine.devices.size());
  const FixedDecisions& fixed = ledger.options().fixed;
  const auto allowed = [](int64_t only, int64_t value) { return only == 0 || only == value; };
  if (!ledger.can_cut(micro)) return false;
  const int64_t cp = std::max<int64_t>(1, fixed.cp);
  for (int64_t tp = 1; tp <= devices; ++tp)
    for (int64_t pp = 1; pp * tp <= devices; ++pp) {
      const int64_t dp = devices / (tp * pp * cp);
      if (dp * tp * pp * cp != devices || (pp > 1 && pp > micro)) continue;
      if (stopped(ledger.options())) return false;
      if (!allowed(fixed.tp, tp) || !allowed(fixed.pp, pp) || !allowed(fixed.dp, dp)) continue;
      for (const bool offload : {false, true})
        for (const RecomputePolicy recompute :
             {RecomputePolicy::Full, RecomputePolicy::Sqrt, RecomputePolicy::None})
          for (const bool host_weights : {false, true}) {
            if (fixed.recompute && *fixed.recompute != recompute) continue;
            if (fixed.offload && *fixed.offload != offload) continue;
            if (fixed.host_weights && *fixed.host_weights != host_weights) continue;
            BaselineSpec spec = parse_baseline("megatron");
            spec.dp = dp, spec.tp = tp, spec.pp = pp, spec.cp = cp;
            spec.ep = std::max<int64_t>(1, fixed.ep);
            spec.zero = fixed.zero >= 0 ? fixed.zero : (dp * cp > 1 ? 3 : 0);
            spec.recompute = recompute;
            spec.offload = offload;
            spec.host_weights = host_weights;
            spec.host_update = fixed.host_update.value_or(true);
            spec.bucket = Bytes(1 << 20);
            spec.sequence_parallel = tp > 1;
            for (int tries = 0; tries < 2; ++tries) {
              if (const auto strategy = ledger.named(spec, micro);
                  strategy && ledger.consider(*strategy, micro).fits)
                return true;
              if (!spec.sequence_parallel) break;
              spec.sequence_parallel = false;
            }
          }
    }
  return false;
}

std::optional<int64_t> largest_batch(const BatchProblem& problem, const SearchOptions& given) {
  SearchOptions options = given;
  if (options.micro_batches == 0) options.micro_batches = 1;
  options.progress = {};
  const auto devices = static_cast<int64_t>(problem.machine.devices.size());
  int64_t unit = devices * options.micro_batches;
  if (!fits(problem, unit, options)) {
    unit = options.micro_batches;
    if (!fits(problem, unit, options)) return std::nullopt;
  }
  int64_t good = 1, bad = 0;  // in units; bad: 0 if there is none yet
  while (bad == 0 && 2 * good * unit <= kMostSamples && !stopped(options))
    (fits(problem, 2 * good * unit, options) ? good : bad) = 2 * good;
  while (bad > good + 1 && !stopped(options)) {
    const int64_t middle = good + (bad - good) / 2;
    (fits(problem, middle * unit, options) ? good : bad) = middle;
  }
  return good * unit;
}

std::optional<int64_t> fastest_batch(const BatchProblem& problem, const SearchOptions& given) {
  const std::optional<int64_t> largest = largest_batch(problem, given);
  if (!largest) return std::nullopt;
  const auto devices = static_cast<int64_t>(problem.machine.devices.size());
  std::set<int64_t> sizes = {*largest};
  for (int64_t size = devices; size < *largest; size *= 2) sizes.insert(size);
  SearchOptions options = given;
  options.effort = 0.1 * given.effort;
  options.progress = {};
  // Twice as many samples for a hundredth more throughput are not worth their waiting.
  constexpr double kWorth = 1.01;
  // Small batches are slow ones: from the largest on, until throughput falls twice in a row.
  std::optional<int64_t> best;
  double best_rate = 0;
  int falling = 0;
  for (auto size = sizes.rbegin(); size != sizes.rend() && falling < 2; ++size) {
    if (stopped(options)) break;
    if (options.micro_batches > 0 && *size % options.micro_batches != 0) continue;
    const Graph network = problem.network(*size);
    const SearchResult found = search_all(problem_of(problem, network), options);
    if (found.termination == Termination::Infeasible) continue;
    const double rate = static_cast<double>(*size) / found.step_time.value;
    if (!best || rate * kWorth > best_rate) {
      best = *size;
      best_rate = std::max(rate, best_rate);
      falling = 0;
    } else {
      ++falling;
    }
  }
  return best ? best : largest;
}

}  // namespace windlass
