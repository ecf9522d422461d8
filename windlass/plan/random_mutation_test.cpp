// Random changes of what random task graphs say. Each is found by the checker, or harmless: the
// slow executor computes the same numbers, and the simulator the same time and peaks.

#include <cmath>
#include <cstdlib>
#include <functional>
#include <map>

#include <gtest/gtest.h>

#include "windlass/base/error.h"
#include "windlass/cost/cost_model.h"
#include "windlass/plan/check.h"
#include "windlass/plan/loose_graph.h"
#include "windlass/plan/random_step.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using cases::LooseGraph;
using cases::LooseTask;
using cases::RandomStep;

bool near(const Array& a, const Array& b) {
  double scale = 1e-3;
  for (double value : b.values) scale = std::max(scale, std::abs(value));
  for (size_t i = 0; i < b.values.size(); ++i)
    if (!(std::abs(a.values[i] - b.values[i]) <= 1e-9 * scale)) return false;
  return a.values.size() == b.values.size();
}

// Why what the executor makes of the graph is not the plain step; empty if it is.
std::string wrong_numbers(const RandomStep& step, const TaskGraph& tasks, const StepEnd& expected) {
  try {
    const StepEnd found = run_tasks(step.training, step.machine, tasks, step.start);
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
std::vector<int64_t> costs(const Machine& machine, const TaskGraph& tasks) {
  const auto cost = analytic_cost_model();
  const SimResult result = Simulator().run(tasks, price_tasks(tasks, machine, *cost));
  std::vector<int64_t> numbers = {result.makespan};
  for (const auto& peak : result.peaks) numbers.push_back(peak.bytes);
  return numbers;
}

struct Mutator {
  const RandomStep& step;
  LooseGraph& graph;
  Rng& rng;

  size_t below(size_t size) {
    return static_cast<size_t>(rng.integer(0, static_cast<int64_t>(size) - 1));
  }
  template <typename T>
  int32_t index(const std::vector<T>& list) {
    return static_cast<int32_t>(below(list.size()));
  }
  // A random task of which this holds; none if there is none.
  LooseTask* task(const std::function<bool(const LooseTask&)>& right) {
    std::vector<LooseTask*> found;
    for (LooseTask& task : graph.tasks)
      if (right(task)) found.push_back(&task);
    return found.empty() ? nullptr : found[below(found.size())];
  }
  Use* use(const std::function<bool(const Use&)>& right) {
    std::vector<Use*> found;
    for (LooseTask& task : graph.tasks)
      for (Use& use : task.uses)
        if (right(use)) found.push_back(&use);
    return found.empty() ? nullptr : found[below(found.size())];
  }
  Use* any_use() {
    return use([](const Use&) { return true; });
  }
  LooseTask* any_task() {
    return task([](const LooseTask&) { return true; });
  }
  Buffer& buffer() { return graph.rest.buffers[below(graph.rest.buffers.size())]; }
  // A view of its own for a use that has one.
  View* view() {
    Use* seen = use([](const Use& use) { return use.view >= 0; });
    if (seen == nullptr) return nullptr;
    graph.rest.views.push_back(graph.rest.views[static_cast<size_t>(seen->view)]);
    seen->view = static_cast<int32_t>(graph.rest.views.size() - 1);
    return &graph.rest.views.back();
  }
  // A movement of its own for a task that has one.
  Movement* movement(bool layouts) {
    std::vector<Movement>& all = graph.rest.movements;
    LooseTask* moves_it = task([&](const LooseTask& t) {
      return moves(t.task.kind) && t.task.kind < TaskKind::SwapOut && t.task.how >= 0 &&
             (all[static_cast<size_t>(t.task.how)].from_layout >= 0) == layouts;
    });
    if (moves_it == nullptr) return nullptr;
    all.push_back(all[static_cast<size_t>(moves_it->task.how)]);
    moves_it->task.how = static_cast<int32_t>(all.size() - 1);
    return &all.back();
  }
  // Whether anybody needs what a task leaves: weights may come, or saved tensors go, that nobody
  // reads again.
  bool needed(size_t at) {
    std::vector<bool> wanted(graph.rest.buffers.size(), false);
    for (size_t i = graph.tasks.size(); i-- > at;) {
      const LooseTask& later = graph.tasks[i];
      const TaskKind kind = later.task.kind;
      bool counts = !moves(kind) && kind != TaskKind::Compress && kind != TaskKind::Decompress;
      for (const Use& use : later.uses)
        counts =
            counts || (use.write && (wanted[use.buffer.index()] || graph.rest[use.buffer].at_end));
      if (i == at) return counts;
      for (const Use& use : later.uses)
        if (counts) wanted[use.buffer.index()] = true;
    }
    return true;
  }
  TensorId tensor() { return TensorId(below(step.training.graph.tensors.size())); }
  int32_t micro_batch() {
    return static_cast<int32_t>(rng.integer(-1, step.strategy.micro_batches - 1));
  }
};

template <typename T>
bool set(T* field, T value) {
  if (field == nullptr || *field == value) return false;
  *field = value;
  return true;
}

// Each changes one thing; whether it did.
using Change = bool (*)(Mutator&);
const std::map<std::string, Change> kChanges = {
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
       return set(&m.any_use()->kind, static_cast<UseKind>(m.rng.integer(0, 10)));
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
    {"task: movement",
     [](Mutator& m) {
       LooseTask* task = m.task([](const LooseTask& t) {
         return moves(t.task.kind) && t.task.kind < TaskKind::SwapOut && t.task.how >= 0;
       });
       return task != nullptr && set(&task->task.how, m.index(m.graph.rest.movements));
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

uint64_t number_from(const char* variable, uint64_t otherwise) {
  const char* text = std::getenv(variable);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}

// The checker has nothing to say of what the executor shows to be right, and finds what is wrong.
TEST(RandomMutation, FoundOrHarmless) {
  const uint64_t first = number_from("WINDLASS_RANDOM_SEED", 1);
  const uint64_t count = number_from("WINDLASS_RANDOM_STEPS", 25);
  const uint64_t each = number_from("WINDLASS_MUTATIONS", 4);
  struct Tally {
    int tried = 0, found = 0, harmless = 0;
  };
  std::map<std::string, Tally> tallies;
  int steps = 0;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    RandomStep step = cases::random_step(seed);
    if (cases::has_coupled_split(step.training, step.strategy)) continue;
    SCOPED_TRACE(step.name);
    step.begin(seed);
    const TaskGraph clean = lower(step.training, step.strategy, step.machine);
    const StepEnd expected = run_plainly(step.training, step.start);
    const auto check = [&](const TaskGraph& graph) {
      return check_tasks(step.training, step.machine, step.strategy, graph);
    };
    const auto findings = check(clean);
    const std::string wrong = wrong_numbers(step, clean, expected);
    EXPECT_EQ(findings.empty(), wrong.empty())
        << (findings.empty() ? wrong : "right, but " + findings[0]);
    if (!findings.empty() || !wrong.empty()) continue;
    ++steps;
    const std::vector<int64_t> clean_costs = costs(step.machine, clean);
    const LooseGraph loose(clean);
    Rng rng(seed, 1);
    for (const auto& [name, mutate] : kChanges)
      for (uint64_t i = 0; i < each; ++i) {
        LooseGraph broken = loose;
        Mutator mutator{step, broken, rng};
        if (!mutate(mutator)) continue;
        Tally& tally = tallies[name];
        ++tally.tried;
        const TaskGraph graph = broken.build();
        if (!check(graph).empty()) {
          ++tally.found;
          continue;
        }
        const std::string numbers = wrong_numbers(step, graph, expected);
        EXPECT_EQ(numbers, "") << name << ", " << i;
        EXPECT_EQ(costs(step.machine, graph), clean_costs) << name << ", " << i;
        ++tally.harmless;
      }
  }
  EXPECT_GT(steps, static_cast<int>(count / 8));
  if (std::getenv("WINDLASS_MUTATIONS") != nullptr)
    for (const auto& [name, tally] : tallies)
      fmt::print("{:32} tried {:6} found {:6} harmless {:4}\n", name, tally.tried, tally.found,
                 tally.harmless);
}

}  // namespace
}  // namespace windlass
