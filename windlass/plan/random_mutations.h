// Random changes of what task graphs say, for tests. Each is found by the checker, or harmless: the
// slow executor computes the same numbers, and the simulator the same time and peaks.
#pragma once

#include <cmath>
#include <cstdlib>
#include <map>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/cost/cost_model.h"
#include "windlass/plan/mutator.h"
#include "windlass/plan/random_strategy.h"
#include "windlass/plan/same_step.h"
#include "windlass/sim/simulate.h"

namespace windlass::cases {

inline bool near(const Array& a, const Array& b) {
  double scale = 1e-3;
  for (double value : b.values) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < b.values.size(); ++i)
    if (!(std::abs(a.values[i] - b.values[i]) <= 1e-9 * scale)) return false;
  return a.values.size() == b.values.size();
}

// Why what the executor makes of the graph is not the plain step; empty if it is.
inline std::string wrong_numbers(const MutatedStep& step, const TaskGraph& tasks,
                                 const StepEnd& expected) {
  try {
    StepEnd found = run_tasks(step.training, step.machine, tasks, step.start);
    if (expected.losses.size() == 1) found.losses = {mean_loss(found)};
    if (found.losses.size() != expected.losses.size()) return "losses";
    for (size_t m = 0; m < found.losses.size(); ++m)
      if (!(std::abs(found.losses[m] - expected.losses[m]) <= 1e-9 * std::abs(expected.losses[m])))
        return "a loss";
    for (size_t u = 0; u < expected.weights.size(); ++u) {
      if (!near(found.gradients[u], expected.gradients[u])) return "a gradient";
      if (!near(found.weights[u], expected.weights[u])) return "a weight";
      for (size_t k = 0; k < expected.states[u].size(); ++k)
        if (!near(found.states[u][k], expected.states[u][k])) return "a state";
    }
  } catch (const Error& error) {
    return error.message();
  }
  return {};
}

// Time and peaks in the simulator.
inline std::vector<int64_t> costs(const Machine& machine, const TaskGraph& tasks) {
  const auto cost = analytic_cost_model();
  const SimResult result = Simulator().run(tasks, price_tasks(tasks, machine, *cost));
  std::vector<int64_t> numbers = {result.makespan};
  for (const auto& peak : result.peaks) numbers.push_back(peak.bytes);
  return numbers;
}

// Each changes one thing; whether it did.
using Change = bool (*)(Mutator&);
inline const std::map<std::string, Change> kChanges = {
    {"buffer: layout",
     [](Mutator& m) { return set(&m.buffer().layout, m.index(m.graph.rest.layouts)); }},
    {"buffer: share",
     [](Mutator& m) { return set(&m.buffer().share, m.index(m.graph.rest.digit_sets)); }},
    {"buffer: group",
     [](Mutator& m) { return set(&m.buffer().group, m.index(m.graph.rest.groups)); }},
    {"buffer: team",
     [](Mutator& m) {
       std::vector<Buffer*> on_hosts;
       for (Buffer& buffer : m.graph.rest.buffers)
         if (buffer.team.valid()) on_hosts.push_back(&buffer);
       return !on_hosts.empty() && set(&on_hosts[m.below(on_hosts.size())]->team,
                                       TeamId(m.below(m.graph.rest.teams.size())));
     }},
    {"buffer: tensor", [](Mutator& m) { return set(&m.buffer().tensor, m.tensor()); }},
    {"buffer: micro-batch",
     [](Mutator& m) { return set(&m.buffer().micro_batch, m.micro_batch()); }},
    {"buffer: bytes",
     [](Mutator& m) {
       Buffer& buffer = m.buffer();
       return set(&buffer.bytes, Bytes(buffer.bytes.value / 2));
     }},
    {"view: layout",
     [](Mutator& m) {
       View* view = m.view();
       return view != nullptr && set(&view->layout, m.index(m.graph.rest.layouts));
     }},
    {"view: tensor",
     [](Mutator& m) {
       View* view = m.view();
       return view != nullptr && set(&view->tensor, m.tensor());
     }},
    {"view: of",
     [](Mutator& m) {
       View* view = m.view();
       return view != nullptr && set(&view->of, m.index(m.graph.rest.views) - 1);
     }},
    {"use: view",
     [](Mutator& m) {
       Use* use = m.rng.chance(0.5) ? m.any_use() : m.use([](const Use& u) { return u.view >= 0; });
       if (use == nullptr || m.graph.rest.views.empty()) return false;
       return set(&use->view, m.rng.chance(0.5) ? -1 : m.index(m.graph.rest.views));
     }},
    {"use: index",
     [](Mutator& m) {
       Use* use = m.any_use();
       return set(&use->index, static_cast<uint32_t>(m.rng.integer(0, 3)));
     }},
    {"use: kind",
     [](Mutator& m) {
       return set(&m.any_use()->kind, static_cast<UseKind>(m.rng.integer(0, 11)));
     }},
    {"use: adds",
     [](Mutator& m) {
       Use* use = m.use([](const Use& u) { return u.write; });
       return set(&use->adds, !use->adds);
     }},
    {"use: write",
     [](Mutator& m) {
       Use* use = m.any_use();
       return set(&use->write, !use->write);
     }},
    {"use: dropped",
     [](Mutator& m) {
       LooseTask& task = *m.any_task();
       if (task.uses.empty()) return false;
       task.uses.erase(task.uses.begin() + static_cast<std::ptrdiff_t>(m.below(task.uses.size())));
       return true;
     }},
    {"use: doubled",
     [](Mutator& m) {
       LooseTask& task = *m.any_task();
       if (task.uses.empty()) return false;
       const Use again = task.uses[m.below(task.uses.size())];
       task.uses.push_back(again);
       return true;
     }},
    {"uses: swapped",
     [](Mutator& m) {
       LooseTask& task = *m.any_task();
       if (task.uses.size() < 2) return false;
       Use& a = task.uses[m.below(task.uses.size())];
       Use& b = task.uses[m.below(task.uses.size())];
       if (a.buffer == b.buffer && a.view == b.view) return false;
       std::swap(a.buffer, b.buffer);
       std::swap(a.view, b.view);
       return true;
     }},
    {"use: buffer",
     [](Mutator& m) {
       return set(&m.any_use()->buffer, BufferId(m.below(m.graph.rest.buffers.size())));
     }},
    {"movement: from layout",
     [](Mutator& m) {
       Movement* how = m.movement(true);
       return how != nullptr && set(&how->from_layout, m.index(m.graph.rest.layouts));
     }},
    {"movement: to layout",
     [](Mutator& m) {
       Movement* how = m.movement(true);
       return how != nullptr && set(&how->to_layout, m.index(m.graph.rest.layouts));
     }},
    {"movement: digits",
     [](Mutator& m) {
       Movement* how = m.movement(true);
       return how != nullptr && set(&how->digits, m.index(m.graph.rest.digit_sets));
     }},
    {"movement: collective",
     [](Mutator& m) {
       Movement* how = m.movement(true);
       return how != nullptr && set(&how->collective, static_cast<Collective>(m.rng.integer(0, 4)));
     }},
    {"movement: pairwise",
     [](Mutator& m) {
       Movement* how = m.movement(true);
       return how != nullptr && set(&how->pairwise, !how->pairwise);
     }},
    {"movement: sums",
     [](Mutator& m) {
       Movement* how = m.movement(m.rng.chance(0.7));
       return how != nullptr && set(&how->sums, !how->sums);
     }},
    {"movement: groups",
     [](Mutator& m) {
       Movement* how = m.movement(m.rng.chance(0.7));
       return how != nullptr && set(m.rng.chance(0.5) ? &how->from_group : &how->to_group,
                                    m.index(m.graph.rest.groups));
     }},
    {"layout: sizes",
     [](Mutator& m) {
       std::vector<Digit*> cut;
       for (Layout& layout : m.graph.rest.layouts)
         for (Digit& digit : layout.digits)
           if (digit.kind == Digit::Kind::Axis) cut.push_back(&digit);
       if (cut.empty()) return false;
       Digit& digit = *cut[m.below(cut.size())];
       return set(&digit.sizes, random_sizes(digit.parts, m.rng));
     }},
    {"sharding: sizes",
     [](Mutator& m) {
       std::vector<Split*> cut;
       for (Sharding& sharding : m.graph.rest.shardings)
         for (Split& split : sharding.splits)
           if (split.loop >= 0) cut.push_back(&split);
       if (cut.empty()) return false;
       Split& split = *cut[m.below(cut.size())];
       return set(&split.sizes, random_sizes(split.parts, m.rng));
     }},
    {"teams: device",
     [](Mutator& m) {
       std::vector<Team>& teams = m.graph.rest.teams;
       auto& from = teams[m.below(teams.size())].devices;
       auto& to = teams[m.below(teams.size())].devices;
       if (&from == &to || from.size() < 2) return false;
       to.push_back(from.back());
       from.pop_back();
       return true;
     }},
    {"exchange: digits",
     [](Mutator& m) {
       Movement* how = m.movement(false);
       return how != nullptr && set(&how->digits, m.index(m.graph.rest.digit_sets));
     }},
    {"exchange: collective",
     [](Mutator& m) {
       Movement* how = m.movement(false);
       return how != nullptr && set(&how->collective, static_cast<Collective>(m.rng.integer(0, 4)));
     }},
    {"task: sharding, digits or bits",
     [](Mutator& m) {
       LooseTask* task = m.task([](const LooseTask& t) { return !moves(t.task.kind); });
       if (task->task.kind == TaskKind::Compress || task->task.kind == TaskKind::Decompress)
         return set(&task->task.how, int32_t{1} << m.rng.integer(1, 3));
       const bool updates =
           task->task.kind == TaskKind::Update || task->task.kind == TaskKind::HostUpdate;
       return set(&task->task.how,
                  updates ? m.index(m.graph.rest.digit_sets) : m.index(m.graph.rest.shardings));
     }},
    {"task: whose share is copied",
     [](Mutator& m) {
       LooseTask* task =
           m.task([](const LooseTask& t) { return t.task.kind >= TaskKind::SwapOut; });
       return task != nullptr &&
              set(&task->task.how, m.index(m.graph.rest.digit_sets) - (m.rng.chance(0.5) ? 2 : 0));
     }},
    {"task: movement",
     [](Mutator& m) {
       LooseTask* task = m.task([](const LooseTask& t) {
         return moves(t.task.kind) && t.task.kind < TaskKind::SwapOut && t.task.how >= 0;
       });
       return task != nullptr && set(&task->task.how, m.index(m.graph.rest.movements));
     }},
    {"task: begins",
     [](Mutator& m) {
       LooseTask* task = m.task([](const LooseTask& t) { return t.task.op.valid(); });
       return task != nullptr && set(&task->task.begins, !task->task.begins);
     }},
    {"statistics: not exchanged",
     [](Mutator& m) {
       const LooseTask* task = m.task([](const LooseTask& t) {
         return t.task.kind == TaskKind::Collective && t.task.op.valid();
       });
       if (task == nullptr) return false;
       m.graph.tasks.erase(m.graph.tasks.begin() + (task - m.graph.tasks.data()));
       return true;
     }},
    {"task: group",
     [](Mutator& m) { return set(&m.any_task()->task.group, m.index(m.graph.rest.groups)); }},
    {"task: micro-batch",
     [](Mutator& m) { return set(&m.any_task()->task.micro_batch, m.micro_batch()); }},
    {"task: tensor",
     [](Mutator& m) {
       LooseTask* task = m.task([](const LooseTask& t) { return t.task.tensor.valid(); });
       return task != nullptr && set(&task->task.tensor, m.tensor());
     }},
    {"task: price",
     [](Mutator& m) {
       LooseTask* task = m.task([](const LooseTask& t) { return moves(t.task.kind); });
       return task != nullptr && set(&task->task.price, m.index(m.graph.rest.traffics));
     }},
    {"task: dropped",
     [](Mutator& m) {
       const size_t at = m.below(m.graph.tasks.size());
       if (!m.needed(at)) return false;
       m.graph.tasks.erase(m.graph.tasks.begin() + static_cast<std::ptrdiff_t>(at));
       return true;
     }},
    {"task: doubled",
     [](Mutator& m) {
       const size_t at = m.below(m.graph.tasks.size());
       LooseTask copy = m.graph.tasks[at];
       copy.after.push_back(copy.id);
       copy.id = {};
       m.graph.tasks.insert(m.graph.tasks.begin() + static_cast<std::ptrdiff_t>(at) + 1, copy);
       return true;
     }},
};

inline uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// What became of the changes so far.
class Mutations {
 public:
  // The checker has nothing to say of what the executor shows to be right, and finds what is wrong.
  // False if the graph itself is wrong.
  bool try_all(const MutatedStep& step, const TaskGraph& clean, uint64_t seed, uint64_t each) {
    const StepEnd expected = step.expected();
    const auto findings = step.check(clean);
    const std::string wrong = wrong_numbers(step, clean, expected);
    EXPECT_EQ(findings.empty(), wrong.empty())
        << (findings.empty() ? wrong : "right, but " + findings[0]);
    if (!findings.empty() || !wrong.empty()) return false;
    const std::vector<int64_t> clean_costs = costs(step.machine, clean);
    const LooseGraph loose(clean);
    Rng rng(seed, 1);
    for (const auto& [name, mutate] : kChanges)
      for (uint64_t i = 0; i < each; ++i) {
        LooseGraph broken = loose;
        Mutator mutator{step, broken, rng};
        if (!mutate(mutator)) continue;
        Tally& tally = tallies_[name];
        ++tally.tried;
        const TaskGraph graph = broken.build();
        if (!step.check(graph).empty()) {
          ++tally.found;
          continue;
        }
        const std::string numbers = wrong_numbers(step, graph, expected);
        EXPECT_EQ(numbers, "") << name << ", " << i;
        EXPECT_EQ(costs(step.machine, graph), clean_costs) << name << ", " << i;
        ++tally.harmless;
      }
    return true;
  }

  void print() const {
    if (std::getenv("WINDLASS_MUTATIONS") == nullptr) return;
    for (const auto& [name, tally] : tallies_)
      fmt::print("{:32} tried {:6} found {:6} harmless {:4}\n", name, tally.tried, tally.found,
                 tally.harmless);
  }

 private:
  struct Tally {
    int tried = 0, found = 0, harmless = 0;
  };
  std::map<std::string, Tally> tallies_;
};

}  // namespace windlass::cases
