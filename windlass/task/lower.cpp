#include "windlass/task/lower.h"

#include "windlass/task/emitter.h"
#include "windlass/task/virtual_memory.h"

namespace windlass {
namespace {

// Of a device under demand paging, left for workspace.
constexpr Bytes kPagingReserve{64 << 20};

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
  TaskGraph paged;
};

Lowering::Lowering(const TrainingGraph& training, const Machine& machine)
    : state_(std::make_unique<State>(training, machine)) {}
Lowering::~Lowering() = default;
Lowering::Lowering(Lowering&&) noexcept = default;
Lowering& Lowering::operator=(Lowering&&) noexcept = default;

const TaskGraph& Lowering::lower(const Strategy& strategy) {
  State& state = *state_;
  check_outline(state.training, strategy);
  TaskGraph& graph = state.graph;
  state.emitter.run(strategy);
  if (graph.works.size() != state.tables.works.size()) graph.works = state.tables.works;
  if (graph.traffics.size() != state.tables.traffics.size()) {
    graph.traffics = state.tables.traffics;
    share_links(graph, state.machine);
  }
  if (!strategy.virtual_memory) return graph;
  state.paged = page_on_demand(graph, state.machine, kPagingReserve);
  return state.paged;
}

TaskGraph lower(const TrainingGraph& training, const Strategy& strategy, const Machine& machine) {
  Lowering lowering(training, machine);
  return lowering.lower(strategy);
}

}  // namespace windlass
