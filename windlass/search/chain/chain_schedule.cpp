// Schedules: how a point of the frontier came to be, found again from the last decision on.

#include <algorithm>
#include <functional>

#include "windlass/base/error.h"
#include "windlass/search/chain/chain.h"

namespace windlass {

std::vector<ChainStep> ChainSolver::schedule(size_t point) const {
  // Points of the frontier are entries of the first state, without those below the floor.
  const size_t entry = outer_[index({})].size() - frontier_.size() + point;
  std::vector<ChainStep> steps;
  emit_outer({}, entry, steps);
  return steps;
}

// The first step that gives the entry, and the entries of its lists.
std::pair<const ChainSolver::Step*, std::pair<size_t, size_t>> ChainSolver::origin(
    const Steps& steps, const Entry& entry) const {
  static const List kNothing = {Entry{}};
  for (const Step& step : steps) {
    const List& next = step.following == nullptr ? kNothing : *step.following;
    const List& again = step.again == nullptr ? kNothing : *step.again;
    for (size_t a = 0; a < next.size(); ++a) {
      const int64_t left = entry.time - step.time - next[a].time;
      // Times descend.
      const auto y = std::ranges::lower_bound(again, left, std::greater<>{}, &Entry::time);
      if (y == again.end() || y->time != left) continue;
      if (next[a].kept + step.kept == entry.kept && bytes_of(step, next[a], *y) == entry.bytes)
        return {&step, {a, static_cast<size_t>(y - again.begin())}};
    }
  }
  ensure(false, "a point of a chain comes from nowhere");
  return {};
}

void ChainSolver::emit_outer(const State& state, size_t at, std::vector<ChainStep>& out) const {
  using Kind = ChainStep::Kind;
  Steps steps;
  outer_steps(state, steps);
  const auto [step, entries] = origin(steps, outer_[index(state)][at]);
  const auto first = static_cast<int32_t>(state.block);
  const auto next = static_cast<int32_t>(step->next.block);
  if (step->option >= 0) {
    out.push_back({Kind::Keep, first, step->option});
    if (step->wait) out.push_back({Kind::Wait, next});
    if (!step->end) emit_outer(step->next, entries.first, out);
    out.push_back({Kind::Back, first, step->option});
    return;
  }
  for (int32_t i = first; i < next; ++i) out.push_back({Kind::Pass, i});
  out.push_back({step->next.sent ? Kind::Send : Kind::Store, next});
  emit_outer(step->next, entries.first, out);
  emit_inner(state.block, step->next.block - 1, entries.second, out);
}

void ChainSolver::emit_inner(size_t from, size_t last, size_t at,
                             std::vector<ChainStep>& out) const {
  using Kind = ChainStep::Kind;
  Steps steps;
  inner_steps(from, last, steps);
  const auto [step, entries] = origin(steps, inner_list(from, last)[at]);
  const auto first = static_cast<int32_t>(from);
  const auto next = static_cast<int32_t>(step->next.block);
  if (step->option >= 0) {
    out.push_back({Kind::Keep, first, step->option});
    if (!step->end) emit_inner(step->next.block, last, entries.first, out);
    out.push_back({Kind::Back, first, step->option});
    return;
  }
  for (int32_t i = first; i < next; ++i) out.push_back({Kind::Pass, i});
  out.push_back({Kind::Store, next});
  emit_inner(step->next.block, last, entries.first, out);
  emit_inner(from, step->next.block - 1, entries.second, out);
}

}  // namespace windlass
