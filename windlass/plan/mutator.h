// What random changes of a task graph choose from, for tests.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "windlass/base/rng.h"
#include "windlass/plan/loose_graph.h"
#include "windlass/task/reference/run_tasks.h"

namespace windlass::cases {

// A step whose task graph is changed.
struct MutatedStep {
  const TrainingGraph& training;
  const Machine& machine;
  const StepStart& start;
  int64_t micro_batches = 1;
  std::function<std::vector<std::string>(const TaskGraph&)> check;
  std::function<StepEnd()> expected;  // of the step that is not split
};

struct Mutator {
  const MutatedStep& step;
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
  int32_t micro_batch() { return static_cast<int32_t>(rng.integer(-1, step.micro_batches - 1)); }
};

template <typename T>
bool set(T* field, T value) {
  if (field == nullptr || *field == value) return false;
  *field = value;
  return true;
}

}  // namespace windlass::cases
