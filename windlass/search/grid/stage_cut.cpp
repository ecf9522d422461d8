#include "windlass/search/grid/stage_cut.h"

#include <algorithm>
#include <array>
#include <cmath>

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

// The slowest stage or way between two so far, and the time through all of them.
struct Point {
  double slowest = 0, through = 0;
  // How it came about: the point of the state before, and what was added.
  int32_t before = -1;
  uint32_t state = 0, piece = 0;
};

class StageCutting {
 public:
  explicit StageCutting(const StageProblem& problem) : problem_(problem) {
    // A state says how many groups of each kind are used, and which kind came last.
    for (const StageProblem::Kind& kind : problem.kinds) {
      place_.push_back(states_);
      states_ *= kind.groups.size() + 1;
    }
  }

  std::optional<StageCut> run() {
    const size_t n = problem_.pieces(), kinds = problem_.kinds.size();
    if (n < problem_.groups() || problem_.groups() == 0) return std::nullopt;
    points_.assign((n + 1) * states_ * kinds, {});
    points_[at(0, 0, 0)] = {Point{}};
    for (size_t end = 1; end <= n; ++end) {
      std::vector<Part> parts(kinds);
      for (size_t begin = end; begin-- > 0;)
        for (size_t k = 0; k < kinds; ++k) {
          parts[k].add(problem_.kinds[k], begin);
          extend(begin, end, k, parts[k]);
        }
    }
    return best();
  }

 private:
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
      const std::optional<double> time = part.time_within(on, in_flight(problem_, where));
      if (!time) continue;
      for (size_t last = 0; last < problem_.kinds.size(); ++last) {
        const size_t from = at(begin, state, last);
        if (points_[from].empty()) continue;
        double pass = 0;
        if (where > 0)
          pass = pass_time(problem_, problem_.kinds[last].groups[used(state, last) - 1],
                           on.groups[count], begin - 1);
        auto& list = points_[at(end, state + place_[kind], kind)];
        for (size_t p = 0; p < points_[from].size(); ++p) {
          const Point& point = points_[from][p];
          add(list, {.slowest = std::max({point.slowest, *time, pass}),
                     .through = point.through + *time + 2 * pass,
                     .before = static_cast<int32_t>(p),
                     .state = static_cast<uint32_t>(state * problem_.kinds.size() + last),
                     .piece = static_cast<uint32_t>(begin)});
        }
      }
    }
  }

  // Keeps those that no other is as good as in both, by `slowest`.
  static void add(std::vector<Point>& list, const Point& point) {
    const auto after = std::ranges::upper_bound(list, point.slowest, {}, &Point::slowest);
    if (after != list.begin() && std::prev(after)->through <= point.through) return;
    auto first = after;
    while (first != list.begin() && std::prev(first)->slowest >= point.slowest) --first;
    auto last = after;
    while (last != list.end() && last->through >= point.through) ++last;
    list.insert(list.erase(first, last), point);
  }

  std::optional<StageCut> best() const {
    const auto repeats = static_cast<double>(problem_.micro_batches - 1);
    std::optional<StageCut> result;
    size_t list = 0, index = 0;
    for (size_t last = 0; last < problem_.kinds.size(); ++last) {
      const size_t here = at(problem_.pieces(), states_ - 1, last);
      for (size_t p = 0; p < points_[here].size(); ++p) {
        const Point& point = points_[here][p];
        const double time = point.through + repeats * point.slowest;
        if (result && result->time <= time) continue;
        result = StageCut{.time = time};
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
  size_t states_ = 1;
  std::vector<size_t> place_;               // by kind
  std::vector<std::vector<Point>> points_;  // by pieces done, state and last kind
};

}  // namespace

std::optional<double> cost_of(const StageProblem& problem, const std::vector<size_t>& ends,
                              const std::vector<int32_t>& groups) {
  double slowest = 0, through = 0;
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
    const double pass = s == 0 ? 0 : pass_time(problem, groups[s - 1], groups[s], begin - 1);
    slowest = std::max({slowest, *time, pass});
    through += *time + 2 * pass;
  }
  return through + static_cast<double>(problem.micro_batches - 1) * slowest;
}

std::optional<StageCut> cut_stages(const StageProblem& problem) {
  return StageCutting(problem).run();
}

}  // namespace windlass
