#include "windlass/search/grid/stage_cut.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

namespace windlass {
namespace {

// What can be computed again by the time it takes for a byte, in half octaves from the least on.
constexpr size_t kRates = 32;
constexpr double kLeastRate = 1e-13;  // seconds a byte

size_t rate_of(const StageProblem::Kind::Again& again) {
  const double rate = again.time / static_cast<double>(again.bytes);
  if (!(rate > kLeastRate)) return 0;
  return std::min(kRates - 1, static_cast<size_t>(2 * std::log2(rate / kLeastRate)));
}

// A stage that grows piece by piece towards the front.
struct Part {
  double time = 0;
  int64_t standing = 0, kept = 0, beside = 0;
  struct Again {
    double bytes = 0, time = 0;
  };
  std::array<Again, kRates> again = {};

  void add(const StageProblem::Kind& kind, size_t piece) {
    time += kind.time[piece];
    standing += kind.standing[piece];
    kept += kind.kept[piece];
    beside = std::max(beside, kind.beside[piece]);
    if (kind.again.empty()) return;
    for (const StageProblem::Kind::Again& one : kind.again[piece]) {
      if (one.bytes <= 0) continue;
      Again& sum = again[rate_of(one)];
      sum.bytes += static_cast<double>(one.bytes);
      sum.time += one.time;
    }
  }
  // Of a micro-batch, inside of the limit; none if it does not fit.
  std::optional<double> time_within(const StageProblem::Kind& kind, int64_t in_flight) const {
    const int64_t lacking = standing + kept * in_flight + beside - kind.limit;
    if (lacking <= 0) return time;
    double left = static_cast<double>(lacking) / static_cast<double>(in_flight), more = 0;
    for (const Again& sum : again) {
      if (sum.bytes <= 0) continue;
      const double part = std::min(1.0, left / sum.bytes);
      more += part * sum.time;
      if (part < 1) return time + more;
      left -= sum.bytes;
    }
    return left <= 0 ? std::optional(time + more) : std::nullopt;
  }
};

int64_t in_flight(const StageProblem& problem, size_t position) {
  return std::min(problem.micro_batches, static_cast<int64_t>(problem.groups() - position));
}

double pass_time(const StageProblem& problem, int32_t from, int32_t to, size_t last_piece) {
  const StageProblem::Pass& pass =
      problem.passes[static_cast<size_t>(from)][static_cast<size_t>(to)];
  return pass.start + pass.per_byte * static_cast<double>(problem.passed[last_piece]);
}

// Stages one after the other, and what holds up the first of the micro-batches that follow.
struct Point {
  // What the stages up to the last one, from whichever takes most, take longer than the period that
  // is asked for; not above 0.
  double excess = 0;
  double through = 0;  // all stages, there and back
  // How it came about: the point of the state before, and what was added.
  int32_t before = -1;
  uint32_t state = 0, piece = 0;
};

struct StageTimes {
  double period = 0, through = 0;
  double step(const StageProblem& problem) const {
    return through + static_cast<double>(problem.micro_batches - 1) * period;
  }
};

// None if a stage is empty or does not fit.
std::optional<StageTimes> times_of(const StageProblem& problem, const std::vector<size_t>& ends,
                                   const std::vector<int32_t>& groups) {
  StageTimes result;
  std::vector<double> times, passes;
  for (size_t s = 0; s < ends.size(); ++s) {
    const size_t begin = s == 0 ? 0 : ends[s - 1];
    if (begin >= ends[s]) return std::nullopt;
    const auto kind = std::ranges::find_if(problem.kinds, [&](const StageProblem::Kind& k) {
      return std::ranges::find(k.groups, groups[s]) != k.groups.end();
    });
    Part part;
    for (size_t i = ends[s]; i-- > begin;) part.add(*kind, i);
    const std::optional<double> time = part.time_within(*kind, in_flight(problem, s));
    if (!time) return std::nullopt;
    times.push_back(*time);
    passes.push_back(s == 0 ? 0 : pass_time(problem, groups[s - 1], groups[s], begin - 1));
    result.through += times[s] + 2 * passes[s];
    result.period = std::max(result.period, passes[s]);
  }
  for (size_t a = 0; a < times.size(); ++a) {
    double sum = 0;
    for (size_t b = a; b < times.size(); ++b) {
      sum += times[b] + (b > a ? 2 * passes[b] : 0);
      result.period = std::max(result.period, sum / static_cast<double>(b - a + 1));
    }
  }
  return result;
}

class StageCutting {
 public:
  StageCutting(const StageProblem& problem, double near) : problem_(problem), near_(near) {
    // A state says how many groups of each kind are used, and which kind came last.
    for (const StageProblem::Kind& kind : problem.kinds) {
      place_.push_back(states_);
      states_ *= kind.groups.size() + 1;
    }
    rest_.assign(problem.pieces() + 1, 0);
    for (size_t i = problem.pieces(); i-- > 0;) {
      double least = kAnyPeriod;
      for (const StageProblem::Kind& kind : problem.kinds) least = std::min(least, kind.time[i]);
      rest_[i] = rest_[i + 1] + least;
    }
    for (const auto& row : problem.passes)
      for (size_t b = 0; b < row.size(); ++b)
        for (const int64_t bytes : problem.passed)
          most_pass_ =
              std::max(most_pass_, row[b].start + row[b].per_byte * static_cast<double>(bytes));
  }

  // The least way through for one period after the other, as long as a period may be worth it.
  std::optional<StageCut> run() {
    if (problem_.pieces() < problem_.groups() || problem_.groups() == 0) return std::nullopt;
    const auto any = solve(kAnyPeriod);
    if (!any || problem_.micro_batches == 1) return best_;
    const double least = rest_[0] / static_cast<double>(problem_.groups());
    look_between(least, any->period, any->through);
    return best_;
  }

 private:
  static constexpr double kAnyPeriod = std::numeric_limits<double>::infinity();
  static constexpr double kRounding = 1e-12;  // of sums

  // Cuts with a period in between, which take at least `through` from end to end.
  void look_between(double low, double high, double through) {
    const double least = StageTimes{low, through}.step(problem_);
    if (least >= (1 - near_) * best_->time || high - low <= kRounding * high) return;
    const double middle = low + (high - low) / 2;
    if (const auto found = solve(middle))
      look_between(low, std::min(middle, found->period), found->through);
    look_between(middle, high, through);
  }

  // The cut with the least way through of those with at most this period.
  std::optional<StageTimes> solve(double period) {
    period_ = period;
    points_.resize((problem_.pieces() + 1) * states_ * problem_.kinds.size());
    for (auto& list : points_) list.clear();
    points_[at(0, 0, 0)] = {Point{.excess = -2 * most_pass_}};
    for (size_t end = 1; end <= problem_.pieces(); ++end) {
      std::vector<Part> parts(problem_.kinds.size());
      for (size_t begin = end; begin-- > 0;) {
        bool any = false;
        for (size_t k = 0; k < parts.size(); ++k) {
          parts[k].add(problem_.kinds[k], begin);
          if (parts[k].time > enough()) continue;
          extend(begin, end, k, parts[k]);
          any = true;
        }
        if (!any) break;
      }
    }
    const std::optional<StageCut> found = fastest();
    if (!found) return std::nullopt;
    const std::optional<StageTimes> times = times_of(problem_, found->ends, found->groups);
    const double time = times->step(problem_);
    if (!best_ || time < best_->time) best_ = StageCut{found->ends, found->groups, time};
    return times;
  }

  double enough() const { return period_ * (1 + kRounding); }
  size_t at(size_t pieces, size_t state, size_t last) const {
    return (pieces * states_ + state) * problem_.kinds.size() + last;
  }
  size_t used(size_t state, size_t kind) const {
    return state / place_[kind] % (problem_.kinds[kind].groups.size() + 1);
  }
  size_t position(size_t state) const {
    size_t sum = 0;
    for (size_t k = 0; k < problem_.kinds.size(); ++k) sum += used(state, k);
    return sum;
  }

  // One more stage of pieces [begin, end) on the next group of a kind.
  void extend(size_t begin, size_t end, size_t kind, const Part& part) {
    const StageProblem::Kind& on = problem_.kinds[kind];
    for (size_t state = 0; state + place_[kind] < states_; ++state) {
      const size_t count = used(state, kind);
      if (count == on.groups.size()) continue;
      const size_t where = position(state);
      // As many pieces must be left as groups.
      if (begin < where || problem_.pieces() - end + where + 1 < problem_.groups()) continue;
      const auto left = static_cast<double>(problem_.groups() - where - 1);
      if (left > 0 && rest_[end] > left * enough()) continue;
      for (size_t last = 0; last < problem_.kinds.size(); ++last) {
        const size_t from = at(begin, state, last);
        if (points_[from].empty()) continue;
        const std::optional<double> time = part.time_within(on, in_flight(problem_, where));
        if (!time) break;
        double pass = 0;
        if (where > 0)
          pass = pass_time(problem_, problem_.kinds[last].groups[used(state, last) - 1],
                           on.groups[count], begin - 1);
        if (*time > enough() || pass > enough()) continue;
        auto& list = points_[at(end, state + place_[kind], kind)];
        for (size_t p = 0; p < points_[from].size(); ++p) {
          const Point& point = points_[from][p];
          const double excess = excess_after(point.excess, *time, pass);
          if (excess > kRounding * period_) continue;
          add(list, {.excess = excess,
                     .through = point.through + *time + 2 * pass,
                     .before = static_cast<int32_t>(p),
                     .state = static_cast<uint32_t>(state * problem_.kinds.size() + last),
                     .piece = static_cast<uint32_t>(begin)});
        }
      }
    }
  }

  // Less than no way makes up for is as good as that.
  double excess_after(double before, double time, double pass) const {
    const double least = -2 * most_pass_;
    if (period_ == kAnyPeriod) return least;
    return std::max(least, time - period_ + std::max(0.0, before + 2 * pass));
  }

  // Keeps those that no other is as good as in both, by `excess`.
  static void add(std::vector<Point>& list, const Point& point) {
    const auto after = std::ranges::upper_bound(list, point.excess, {}, &Point::excess);
    if (after != list.begin() && std::prev(after)->through <= point.through) return;
    auto first = after;
    while (first != list.begin() && std::prev(first)->excess >= point.excess) --first;
    auto last = after;
    while (last != list.end() && last->through >= point.through) ++last;
    list.insert(list.erase(first, last), point);
  }

  // Of those with the period that was asked for.
  std::optional<StageCut> fastest() const {
    std::optional<StageCut> result;
    size_t list = 0, index = 0;
    for (size_t last = 0; last < problem_.kinds.size(); ++last) {
      const size_t here = at(problem_.pieces(), states_ - 1, last);
      for (size_t p = 0; p < points_[here].size(); ++p) {
        const double through = points_[here][p].through;
        if (result && result->time <= through) continue;
        result = StageCut{.time = through};
        list = here;
        index = p;
      }
    }
    if (!result) return std::nullopt;
    for (size_t end = problem_.pieces(); end > 0;) {
      const Point& point = points_[list][index];
      const size_t kind = list % problem_.kinds.size();
      const size_t state = point.state / problem_.kinds.size();
      result->ends.push_back(end);
      result->groups.push_back(problem_.kinds[kind].groups[used(state, kind)]);
      list = at(point.piece, state, point.state % problem_.kinds.size());
      index = static_cast<size_t>(point.before);
      end = point.piece;
    }
    std::ranges::reverse(result->ends);
    std::ranges::reverse(result->groups);
    return result;
  }

  const StageProblem& problem_;
  const double near_;
  size_t states_ = 1;
  std::vector<size_t> place_;  // by kind
  std::vector<double> rest_;   // by piece: the least time of it and all after it
  double most_pass_ = 0;
  double period_ = kAnyPeriod;
  std::vector<std::vector<Point>> points_;  // by pieces done, state and last kind
  std::optional<StageCut> best_;
};

}  // namespace

std::optional<double> cost_of(const StageProblem& problem, const std::vector<size_t>& ends,
                              const std::vector<int32_t>& groups) {
  const std::optional<StageTimes> times = times_of(problem, ends, groups);
  if (!times) return std::nullopt;
  return times->step(problem);
}

std::optional<StageCut> cut_stages(const StageProblem& problem, double near) {
  return StageCutting(problem, near).run();
}

}  // namespace windlass
