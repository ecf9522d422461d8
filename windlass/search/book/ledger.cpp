#include "windlass/search/book/ledger.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/search/book/strategy_hash.h"

namespace windlass {
namespace {

constexpr size_t kFrugal = 8;
// A little slower ones may become faster when some of what they give up is kept.
constexpr double kPromising = 1.3;

struct KnownBound {
  std::optional<Seconds> least;
};

}  // namespace

Ledger::Ledger(const Problem& problem, const SearchOptions& options)
    : problem_(problem),
      options_(options),
      batch_(find_batch(problem.network)),
      cuts_(std::make_shared<std::map<int64_t, std::unique_ptr<Cut>>>()),
      effort_(std::make_shared<EffortBook>()),
      kept_(std::make_shared<std::map<std::type_index, std::shared_ptr<void>>>()),
      free_(std::make_shared<std::unordered_map<uint64_t, Evaluation>>()) {
  begin("start", 1);
  if (options.micro_batches > 1) cut(options.micro_batches);
  clock_begin_ = options.clock ? options.clock() : 0;
  measured_before_ = measuring();
  if (!options.below) return;
  // What the host takes beside is in the step that is known, and not in what is compared here: some
  // that are no faster may be looked at.
  ceiling_ = static_cast<Nanoseconds>(options.below->value * 1e9);
  elsewhere_best_ = ceiling_;
}

Ledger Ledger::branch(Nanoseconds ceiling) const {
  Ledger result = *this;
  if (fits()) result.elsewhere_best_ = best_time();
  result.entries_.clear();
  result.frugal_.clear();
  result.sought_.clear();
  result.least_.reset();
  result.points_.clear();
  result.ceiling_ = ceiling;
  return result;
}

void Ledger::take(const Ledger& branch) {
  for (const Entry& entry : branch.entries_) add(entry.strategy, entry.micro_batches, entry.time);
  frugal_.insert(frugal_.end(), branch.frugal_.begin(), branch.frugal_.end());
  sought_.insert(sought_.end(), branch.sought_.begin(), branch.sought_.end());
  points_.insert(points_.end(), branch.points_.begin(), branch.points_.end());
}

double Ledger::seconds() const {
  return options_.clock ? options_.clock() - clock_begin_ : watch_.seconds();
}

double Ledger::measuring() const { return problem_.measuring ? problem_.measuring().value : 0; }

double Ledger::elapsed() const { return seconds() - (measuring() - measured_before_); }

double Ledger::units() const {
  double sum = effort_->charged;
  for (const auto& [micro, cut] : *cuts_) sum += static_cast<double>(cut->evaluator->units());
  return sum;
}

void Ledger::end_stage() {
  if (effort_->stages.empty()) return;
  StageEffort& stage = effort_->stages.back();
  stage.units = std::llround(units() - effort_->before);
  stage.simulated = tried() - effort_->simulated_before;
  // What did nothing and left nothing out is not worth a word.
  if (stage.units == 0 && stage.simulated == 0 && stage.complete) effort_->stages.pop_back();
}

void Ledger::begin(std::string stage, double budget) {
  end_stage();
  effort_->stages.push_back({.name = std::move(stage)});
  // With any effort there is time to find an answer.
  constexpr double kLeast = 0.1;
  effort_->budget = budget * std::max(kLeast, options_.effort);
  effort_->before = units();
  effort_->simulated_before = tried();
}

double Ledger::units_left() const { return effort_->budget - (units() - effort_->before); }

void Ledger::cut_short(bool by_time) {
  StageEffort& stage = effort_->stages.back();
  stage.complete = false;
  if (by_time) stage.time_limit = true;
}

bool Ledger::over() {
  if (interrupted()) return true;
  if (units_left() > 0) return false;
  cut_short(false);
  return true;
}

bool Ledger::interrupted() {
  if (!late()) return false;
  cut_short(true);
  return true;
}

bool Ledger::late() const {
  return (options_.stop && options_.stop()) || elapsed() > options_.time_limit.value;
}

bool Ledger::may_measure(int64_t micro_batches) {
  if (!problem_.measuring || !fits() || cuts_->contains(micro_batches)) return true;
  if (seconds() <= options_.time_limit.value) return true;
  cut_short(true);
  return false;
}

int64_t Ledger::tried() const {
  int64_t sum = effort_->simulated;
  for (const auto& [micro, cut] : *cuts_) sum += cut->evaluator->evaluations();
  return sum;
}

bool Ledger::memory_binds() const {
  return !fits() ||
         std::ranges::any_of(points_, [&](const auto& point) { return point.time < best_time(); });
}

void Ledger::report() {
  SearchProgress progress;
  if (fits()) progress.best = step_time(problem_, best_time());
  report(progress);
}

void Ledger::report(SearchProgress progress) {
  if (!options_.progress) return;
  progress.tried += tried();
  if (elsewhere_best_) {
    const Seconds other = step_time(problem_, *elsewhere_best_);
    progress.best = progress.best ? std::min(*progress.best, other) : other;
  }
  progress.seconds = Seconds(seconds());
  progress.bound = bound();
  options_.progress(progress);
}

Seconds Ledger::bound() {
  std::optional<Seconds>& least = kept<KnownBound>().least;
  if (!least) least = work_bound(problem_, options_);
  return *least;
}

std::vector<int64_t> Ledger::micro_batches(int64_t most) const {
  if (options_.micro_batches > 0) return {options_.micro_batches};
  std::vector<int64_t> list = {1};
  if (!batch_.obstacle.empty()) return list;
  for (int64_t m = 2; m <= std::min(batch_.samples, most); m *= 2)
    if (batch_.samples % m == 0) list.push_back(m);
  return list;
}

Cut& Ledger::cut(int64_t micro_batches) {
  const auto known = cuts_->find(micro_batches);
  if (known != cuts_->end()) return *known->second;
  auto made = std::make_unique<Cut>();
  made->micro_batches = micro_batches;
  MicroBatch part = cut_training(problem_.network, batch_, micro_batches, problem_.training);
  made->batch = std::move(part.batch);
  made->training = std::move(part.training);
  made->evaluator = std::make_unique<Evaluator>(problem_, made->training);
  return *cuts_->emplace(micro_batches, std::move(made)).first->second;
}

// Some networks see their samples together, or have constants that differ from one to the next.
bool Ledger::can_cut(int64_t micro_batches) {
  if (micro_batches > 1 && (!batch_.obstacle.empty() || batch_.samples < micro_batches))
    return false;
  try {
    cut(micro_batches);
    return true;
  } catch (const Error& error) {
    if (micro_batches == 1 || error.kind() != ErrorKind::Input) throw;
    return false;
  }
}

std::optional<Strategy> Ledger::named(BaselineSpec spec, int64_t micro_batches) {
  try {
    spec.micro_batches = micro_batches;
    resolve(spec, problem_.machine, batch_.samples);
    Cut& part = cut(micro_batches);
    Strategy strategy = make_baseline(spec, part.training, part.batch, problem_.machine);
    check_strategy(part.training, problem_.machine, strategy);
    return strategy;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    return std::nullopt;
  }
}

std::optional<Strategy> Ledger::named(BaselineSpec spec, int64_t micro_batches,
                                      const std::vector<DeviceId>& devices) {
  const auto count = static_cast<int64_t>(devices.size());
  const int64_t model = spec.tp * spec.pp * spec.cp;
  if (spec.dp == 0) spec.dp = count / model;
  if (spec.dp == 0 || spec.dp * model > count) return std::nullopt;
  std::optional<Strategy> strategy = named(spec, micro_batches);
  if (!strategy) return std::nullopt;
  for (std::vector<DeviceId>& group : strategy->groups)
    for (DeviceId& device : group) device = devices[device.index()];
  return strategy;
}

void Ledger::add_point(const Strategy& strategy, const Evaluation& free) {
  points_.push_back({free.peak, free.time, spared_on_host(problem_, strategy)});
}

void Ledger::add_frugal(const Strategy& strategy, int64_t micro_batches, int64_t peak) {
  const auto same_cut = [](int64_t micro) {
    return [micro](const Entry& entry) { return entry.micro_batches == micro; };
  };
  if (frugal_.size() >= kFrugal && frugal_.back().time <= peak &&
      std::ranges::any_of(frugal_, same_cut(micro_batches)))
    return;
  const auto at =
      std::ranges::upper_bound(frugal_, peak, {}, [](const Entry& entry) { return entry.time; });
  frugal_.insert(at, {strategy, micro_batches, peak});
  for (size_t i = frugal_.size(); frugal_.size() > kFrugal && i-- > 0;) {
    const auto last = frugal_.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::find_if(frugal_.begin(), last, same_cut(last->micro_batches)) != last)
      frugal_.erase(last);
  }
}

Evaluation Ledger::evaluate_free(const Strategy& strategy, int64_t micro_batches) {
  Evaluator& evaluator = *cut(micro_batches).evaluator;
  // Measured prices may not be there yet, and what is paged depends on the limits.
  if (strategy.packs || strategy.virtual_memory || problem_.reprice)
    return evaluator.evaluate_unlimited(strategy);
  const uint64_t key = strategy_hash(strategy);
  const auto known = free_->find(key);
  if (known != free_->end()) return known->second;
  return free_->emplace(key, evaluator.evaluate_unlimited(strategy)).first->second;
}

bool Ledger::fits_freely(const Strategy& strategy, const Evaluation& free) const {
  return free.hosts_fit && std::ranges::all_of(problem_.machine.devices, [&](const Device& device) {
           return free.peak <= usable_memory(device, strategy).value;
         });
}

Evaluation Ledger::consider(const Strategy& strategy, int64_t micro_batches) {
  if (!options_.fixed.allows(strategy))
    return {.free_time = std::numeric_limits<Nanoseconds>::max()};
  Evaluator& evaluator = *cut(micro_batches).evaluator;
  try {
    if (fits()) {
      const Nanoseconds least = evaluator.bound(strategy);
      if (static_cast<double>(least) >= kPromising * static_cast<double>(best_time()))
        return {.time = least, .free_time = least};
    }
    const Evaluation free = evaluate_free(strategy, micro_batches);
    add_point(strategy, free);
    if (!fits()) add_frugal(strategy, micro_batches, free.peak);
    if (fits() && static_cast<double>(free.time) >= kPromising * static_cast<double>(best_time()))
      return {.fits = false, .time = free.time, .free_time = free.time, .peak = free.peak};
    Evaluation inside = fits_freely(strategy, free)     ? free
                        : evaluator.too_large(strategy) ? Evaluation{.hosts_fit = free.hosts_fit}
                                                        : evaluator.evaluate(strategy);
    inside.free_time = free.time;
    if (inside.fits)
      add(strategy, micro_batches, inside.time);
    else
      inside.peak = free.peak;  // not of where it ended
    return inside;
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Internal) throw;
    return {.free_time = std::numeric_limits<Nanoseconds>::max()};
  }
}

void Ledger::add(const Strategy& strategy, int64_t micro_batches, Nanoseconds time) {
  if (!options_.fixed.allows(strategy)) return;
  const bool better = !fits() || time < best_time();
  const auto same = [&](const Entry& entry) {
    return entry.time == time && entry.micro_batches == micro_batches;
  };
  if (std::ranges::any_of(entries_, same)) return;
  const auto at =
      std::ranges::upper_bound(entries_, time, {}, [](const Entry& entry) { return entry.time; });
  entries_.insert(at, {strategy, micro_batches, time});
  if (entries_.size() > kEntries) entries_.pop_back();
  if (better) report();
}

void consider_starts(Ledger& ledger) {
  for (const StartStrategy& start : ledger.options().starts) {
    const int64_t micro = start.strategy.micro_batches;
    if (!ledger.can_cut(micro))
      fail_input("{}: the batch cannot be cut into {} micro-batches", start.origin, micro);
    try {
      check_strategy(ledger.cut(micro).training, ledger.problem().machine, start.strategy);
    } catch (const Error& error) {
      fail_input("{}: not a strategy for this model on this machine: {}", start.origin,
                 error.message());
    }
    ledger.consider(start.strategy, micro);
  }
}

}  // namespace windlass
