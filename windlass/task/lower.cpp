#include "windlass/task/lower.h"

#include <algorithm>

#include "windlass/task/emitter.h"
#include "windlass/task/packs/lower_packs.h"
#include "windlass/task/virtual_memory.h"

namespace windlass {
namespace {

// Tables only grow. Whether they did.
template <typename T>
bool append_new(std::vector<T>& known, const std::vector<T>& all) {
  const size_t before = known.size();
  known.insert(known.end(), all.begin() + static_cast<std::ptrdiff_t>(before), all.end());
  return all.size() > before;
}

TaskGraph packs_of(const TrainingGraph& training, const Strategy& strategy,
                   const Machine& machine) {
  TaskGraph graph = lower_packs(training, *strategy.packs, machine);
  for (Memory& memory : graph.memories)
    if (memory.team.valid() && strategy.memory_cap.value > 0)
      memory.limit = std::min(memory.limit, strategy.memory_cap);
  return graph;
}

}  // namespace

struct Lowering::State {
  State(const TrainingGraph& t, const Machine& m)
      : training(t),
        machine(m),
        facts(t),
        tables(t, facts, m),
        emitter(t, facts, m, tables, graph) {}

  const TrainingGraph& training;
  const Machine& machine;
  const TrainingFacts facts;
  Tables tables;
  TaskGraph graph;
  Emitter emitter;
  TaskGraph other;  // made anew each time: of demand paging, or of packs
};

Lowering::Lowering(const TrainingGraph& training, const Machine& machine)
    : state_(std::make_unique<State>(training, machine)) {}
Lowering::~Lowering() = default;
Lowering::Lowering(Lowering&&) noexcept = default;
Lowering& Lowering::operator=(Lowering&&) noexcept = default;

const TaskGraph& Lowering::lower(const Strategy& strategy) {
  State& state = *state_;
  if (strategy.packs) return state.other = packs_of(state.training, strategy, state.machine);
  check_outline(state.training, strategy);
  TaskGraph& graph = state.graph;
  state.emitter.run(strategy);
  append_new(graph.works, state.tables.works);
  append_new(graph.groups, state.tables.groups());
  append_new(graph.layouts, state.tables.layouts());
  append_new(graph.shardings, state.tables.shardings());
  append_new(graph.digit_sets, state.tables.digit_sets());
  append_new(graph.movements, state.tables.movements);
  if (append_new(graph.traffics, state.tables.traffics) && !extend_links(graph, state.machine))
    share_links(graph, state.machine);
  if (!strategy.virtual_memory) return graph;
  return state.other = page_on_demand(graph, state.machine);
}

TaskGraph lower(const TrainingGraph& training, const Strategy& strategy, const Machine& machine) {
  if (strategy.packs) return packs_of(training, strategy, machine);
  Lowering lowering(training, machine);
  return lowering.lower(strategy);
}

}  // namespace windlass
