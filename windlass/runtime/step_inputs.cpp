#include "windlass/runtime/step_inputs.h"

#include "windlass/base/error.h"
#include "windlass/model/convert.h"
#include "windlass/runtime/resting_tensors.h"

namespace windlass {

StepInputs::StepInputs(const TrainingGraph& training, const TaskGraph& tasks,
                       const Program& program, Slots& slots, const Ownership& own)
    : training_(training),
      tasks_(tasks),
      program_(program),
      slots_(slots),
      own_(own),
      step_(tasks.buffers.size(), 0) {
  for (size_t i = 0; i < program.tasks.size(); ++i)
    for (BufferId buffer : program.tasks[i].brings)
      step_[buffer.index()] = program.step_of(TaskId(i));
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    if (program.rests[b]) continue;
    const Buffer& buffer = tasks.buffers[b];
    for (const Placed& placed : program.placed[b])
      if (own.mine(placed.slot)) ++wanted_[{step_[b], buffer.tensor, buffer.micro_batch}];
  }
}

void StepInputs::begin(const StepRequest& request) {
  whole_.clear();
  for (size_t b = 0; b < tasks_.buffers.size(); ++b)
    if (tasks_.buffers[b].at_start && !program_.rests[b]) fill(request, BufferId(b), -1);
}

void StepInputs::bring(const StepRequest& request, BufferId buffer, TaskId task, int32_t part) {
  const ProgramTask& by = program_.tasks[task.index()];
  // What is on a host one part brings for all.
  const bool all = part < 0 || by.parts.size() == 1;
  fill(request, buffer, all ? -1 : by.parts[static_cast<size_t>(part)].memory);
}

void StepInputs::fill(const StepRequest& request, BufferId id, int32_t memory) {
  ensure(request.load != nullptr, "a step has no data");
  const auto here = [&](int32_t slot) {
    return own_.mine(slot) &&
           (memory < 0 || program_.slots[static_cast<size_t>(slot)].memory == memory);
  };
  for (int32_t slot : program_.slots_of[id.index()])
    if (here(slot) && !slots_.holds(slot)) slots_.allocate(slot);
  std::vector<const Placed*> places;
  for (const Placed& placed : program_.placed[id.index()])
    if (here(placed.slot)) places.push_back(&placed);
  if (places.empty()) return;
  const Buffer& buffer = tasks_[id];
  const Graph& graph = training_.of(buffer.micro_batch).graph;
  const TensorType& type = graph[buffer.tensor].type;
  const auto size = static_cast<size_t>(byte_size(type).value);
  const int32_t constant = graph[buffer.tensor].constant;
  const auto load = [&](std::span<std::byte> out) {
    // One that differs by sample is brought like data.
    if (constant >= 0)
      store_values(graph.constants[static_cast<size_t>(constant)].values, type.dtype, out);
    else
      request.load(buffer.tensor, buffer.micro_batch, out);
  };
  const std::lock_guard lock(mutex_);
  if (program_.devices == 1) return load(slots_.bytes(places[0]->slot).first(size));
  const Key key = {step_[id.index()], buffer.tensor, buffer.micro_batch};
  const auto [entry, fresh] = whole_.try_emplace(key);
  Whole& whole = entry->second;
  if (fresh) {
    whole.slots_left = wanted_.at(key);
    whole.bytes.resize(size);
    load(whole.bytes);
  }
  for (const Placed* placed : places) scatter(slots_, *placed, type.dtype, whole.bytes);
  whole.slots_left -= static_cast<int64_t>(places.size());
  if (whole.slots_left <= 0) whole_.erase(entry);
}

}  // namespace windlass
