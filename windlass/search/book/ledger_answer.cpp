// What a book answers: the best that fits, or what needs least.
#include <algorithm>

#include "windlass/plan/check.h"
#include "windlass/search/book/ledger.h"

namespace windlass {
namespace {

// Packs of layers have more moving parts than other plans: they are worth it if they are faster by
// more than this.
constexpr double kNoise = 1.01;

}  // namespace

bool Ledger::refused(const Entry& entry) {
  Cut& part = cut(entry.micro_batches);
  const TaskGraph tasks = lower(part.training, entry.strategy, problem_.machine);
  return !check_tasks(part.training, problem_.machine, entry.strategy, tasks).empty();
}

// What the independent checker refuses is not returned, however fast.
void Ledger::drop_refused() {
  while (fits() && refused(entries_.front())) entries_.erase(entries_.begin());
}

void Ledger::take_points(const Ledger& branch) {
  points_.insert(points_.end(), branch.points_.begin(), branch.points_.end());
}

Nanoseconds Ledger::whole_time(const Entry& entry) const {
  return entry.time - spared_on_host(problem_, entry.strategy);
}

std::optional<Ledger::Entry> Ledger::choose(Nanoseconds least, Nanoseconds most,
                                            std::optional<Nanoseconds>& passed_over) {
  passed_over.reset();
  std::vector<Entry> list;
  for (const Entry& entry : entries_)
    if (const Nanoseconds time = whole_time(entry); time >= least && time <= most)
      list.push_back(entry);
  const auto time = [&](const Entry& entry) { return whole_time(entry); };
  std::ranges::stable_sort(list, {}, time);
  std::optional<Entry> packs;
  for (const Entry& entry : list) {
    if (packs && static_cast<double>(time(entry)) > kNoise * static_cast<double>(time(*packs)))
      break;
    if ((packs && entry.strategy.packs) || refused(entry)) continue;
    if (!entry.strategy.packs) {
      if (packs) passed_over = time(*packs);
      return entry;
    }
    packs = entry;
  }
  return packs;
}

std::optional<Seconds> Ledger::prefer_simpler() {
  if (!fits() || !entries_.front().strategy.packs) return std::nullopt;
  const Entry packs = entries_.front();
  const auto other =
      std::ranges::find_if(entries_, [](const Entry& entry) { return !entry.strategy.packs; });
  if (other == entries_.end() ||
      static_cast<double>(other->time) > kNoise * static_cast<double>(packs.time))
    return std::nullopt;
  std::rotate(entries_.begin(), other, other + 1);
  return step_time(problem_, packs.time - spared_on_host(problem_, packs.strategy));
}

// Of what the checker does not refuse.
Ledger::Entry Ledger::least() {
  std::optional<Entry> least;
  if (least_ && !refused(*least_)) least = least_;
  std::vector<Entry> list = sought_;
  if (!least) list.insert(list.end(), frugal_.begin(), frugal_.end());
  if (options_.below) list.clear();  // nobody asks where something is known to fit
  for (const Entry& entry : list) {
    Evaluator& evaluator = *cut(entry.micro_batches).evaluator;
    // What is there from the start cannot be waited for.
    if (least && evaluator.standing(entry.strategy) >= least->time) continue;
    const std::optional<int64_t> limit = evaluator.least_limit(entry.strategy);
    if (!limit || (least && *limit >= least->time) || refused(entry)) continue;
    least = Entry{entry.strategy, entry.micro_batches, *limit};
  }
  if (least) return *least;
  if (!frugal_.empty()) return {frugal_.front().strategy, frugal_.front().micro_batches, 0};
  int64_t micro = options_.micro_batches > 0 ? options_.micro_batches : 1;
  if (!can_cut(micro)) micro = 1;
  return {plain_strategy(cut(micro).training, DeviceId(size_t{0})), micro, 0};
}

SearchResult Ledger::finish() {
  SearchResult result;
  begin("end", 1);
  result.passed_over = prefer_simpler();
  drop_refused();
  result.samples = batch_.samples;
  int64_t micro = options_.micro_batches > 0 ? options_.micro_batches : 1;
  if (fits()) {
    const Entry& best = entries_.front();
    const bool limited = std::ranges::any_of(effort_->stages, &StageEffort::time_limit);
    result.termination = limited ? Termination::Limit : Termination::Feasible;
    result.strategy = best.strategy;
    result.step_time = step_time(problem_, best.time - spared_on_host(problem_, best.strategy));
    if (best.strategy.packs) result.passed_over.reset();  // the simpler one was refused
    micro = best.micro_batches;
    const Evaluation free = cut(micro).evaluator->evaluate_unlimited(best.strategy);
    add_point(best.strategy, free);
  } else {
    const Entry needs = this->least();
    result.strategy = needs.strategy;
    micro = needs.micro_batches;
    if (needs.time > 0) result.least_limit = Bytes(needs.time);
  }
  std::vector<std::pair<int64_t, Nanoseconds>> points;
  for (const Point& point : points_) points.emplace_back(point.peak, point.time - point.spared);
  std::ranges::sort(points);
  for (const auto& [peak, time] : points)
    if (const Seconds seconds = step_time(problem_, time);
        result.frontier.empty() || seconds < result.frontier.back().step_time)
      result.frontier.push_back({Bytes(peak), seconds});
  result.tried = tried();
  end_stage();
  result.stages = effort_->stages;
  result.training = std::move(cut(micro).training);
  cuts_->erase(micro);
  result.seconds = Seconds(seconds());
  return result;
}

}  // namespace windlass
