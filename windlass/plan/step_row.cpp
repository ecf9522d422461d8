#include "windlass/plan/step_row.h"

#include <algorithm>
#include <iterator>
#include <span>
#include <utility>

#include "windlass/base/error.h"

namespace windlass {
namespace {

bool rests(const Buffer& buffer) { return buffer.at_start && buffer.at_end; }

bool computes(TaskKind kind) {
  return kind == TaskKind::Forward || kind == TaskKind::Recompute || kind == TaskKind::Backward;
}

class RowMaker {
 public:
  RowMaker(const TaskGraph& step, const TaskTimes& times, int32_t steps, RowStart start,
           const std::vector<TaskId>& late)
      : step_(step), times_(times), place_(step.size()) {
    put_in_order(late);
    row_.shape.steps = steps;
    row_.start = start;
    row_.tasks = step;
    row_.tasks.clear_tasks();
    row_.tasks.buffers = step.buffers;
    row_.tasks.views = step.views;
    row_.shape.brought.assign(step.buffers.size(), false);
    own_.resize(step.buffers.size());
    for (size_t b = 0; b < own_.size(); ++b) own_[b] = BufferId(b);
    writer_.resize(step.buffers.size());
    readers_.resize(step.buffers.size());
    // Of each lane the last one is enough.
    if (start != RowStart::AfterBackward) return;
    std::vector<TaskId> last(step.lanes.size());
    for (size_t i = 0; i < step.size(); ++i)
      if (computes(step.tasks[i].kind))
        for (LaneId lane : step.lanes_of(TaskId(i))) last[lane.index()] = TaskId(i);
    std::ranges::copy_if(last, std::back_inserter(computed_), &TaskId::valid);
  }

  StepRow make() {
    for (int32_t k = 0; k < row_.shape.steps; ++k) {
      if (k > 0) make_buffers();
      for (size_t i = 0; i < step_.size(); ++i) add(row_.shape.original(i), k);
    }
    check_task_graph(row_.tasks);
    return std::move(row_);
  }

 private:
  void put_in_order(const std::vector<TaskId>& late) {
    std::vector<bool> last(step_.size());
    for (TaskId id : late) last[id.index()] = true;
    std::vector<TaskId>& order = row_.shape.order;
    for (size_t i = 0; i < step_.size(); ++i)
      if (!last[i]) order.emplace_back(i);
    order.insert(order.end(), late.begin(), late.end());
    for (size_t place = 0; place < order.size(); ++place) place_[order[place].index()] = place;
    if (late.empty()) order.clear();
  }

  void make_buffers() {
    bringer_.assign(step_.buffers.size(), TaskId());
    for (size_t b = 0; b < step_.buffers.size(); ++b) {
      if (rests(step_.buffers[b])) continue;
      Buffer copy = step_.buffers[b];
      row_.shape.brought.push_back(copy.at_start);
      copy.at_start = false;
      own_[b] = row_.tasks.add(copy);
    }
  }

  void add(TaskId id, int32_t k) {
    const size_t first = static_cast<size_t>(k) * step_.size();
    const TaskId made(first + place_[id.index()]);
    std::vector<TaskId> before;
    for (TaskId other : step_.predecessors_of(id))
      before.emplace_back(first + place_[other.index()]);
    if (k > 0) {
      wait_for_step_before(id, first, before);
      wait_for_data(id, made, before);
    }
    note_uses(id, made);
    std::vector<Use> uses(step_.uses_of(id).begin(), step_.uses_of(id).end());
    for (Use& use : uses) use.buffer = own_[use.buffer.index()];
    std::ranges::sort(before);
    before.erase(std::unique(before.begin(), before.end()), before.end());
    row_.tasks.add(step_[id], step_.lanes_of(id), before, uses);
    row_.times.duration.push_back(times_.duration[id.index()]);
    row_.times.workspace.push_back(times_.workspace[id.index()]);
  }

  // `first`: of this step. Inside of a step its own predecessors say what waits for what.
  void wait_for_step_before(TaskId id, size_t first, std::vector<TaskId>& before) const {
    const auto wait_for = [&](TaskId other) {
      if (other.valid() && other.index() < first) before.push_back(other);
    };
    for (const Use& use : step_.uses_of(id)) {
      const size_t b = use.buffer.index();
      wait_for(writer_[b]);
      if (use.write)
        for (TaskId reader : readers_[b]) wait_for(reader);
    }
    if (!step_.predecessors_of(id).empty()) return;  // which wait
    for (TaskId other : computed_)
      before.emplace_back(first - step_.size() + place_[other.index()]);
  }

  void wait_for_data(TaskId id, TaskId made, std::vector<TaskId>& before) {
    for (const Use& use : step_.uses_of(id)) {
      const Buffer& buffer = step_[use.buffer];
      if (!buffer.at_start || buffer.at_end) continue;
      TaskId& bringer = bringer_[use.buffer.index()];
      if (!bringer.valid()) bringer = made;
      if (bringer != made) before.push_back(bringer);
    }
  }

  void note_uses(TaskId id, TaskId made) {
    for (const Use& use : step_.uses_of(id)) {
      const size_t b = use.buffer.index();
      if (!rests(step_.buffers[b])) continue;
      if (use.write) {
        writer_[b] = made;
        readers_[b].clear();
      } else if (writer_[b] != made) {
        readers_[b].push_back(made);
      }
    }
  }

  const TaskGraph& step_;
  const TaskTimes& times_;
  std::vector<size_t> place_;  // by task of the step
  StepRow row_;
  // By buffer of the step: its own in the step at hand; of what rests, who wrote it last and who
  // has read it since; of data of the step, who brings it.
  std::vector<BufferId> own_;
  std::vector<TaskId> writer_;
  std::vector<std::vector<TaskId>> readers_;
  std::vector<TaskId> bringer_;
  std::vector<TaskId> computed_;  // of a step: what the next one waits for
};

}  // namespace

std::vector<Nanoseconds> StepRow::ends() const {
  std::vector<Nanoseconds> found(static_cast<size_t>(shape.steps), 0);
  for (size_t i = 0; i < tasks.size(); ++i) {
    Nanoseconds& end = found[i / tasks_each()];
    end = std::max(end, result.end[i]);
  }
  return found;
}

std::string cannot_row(const TaskGraph& step) {
  if (!step.carried.empty())
    return "pages that a step leaves on devices are where the next one finds them";
  for (const Buffer& buffer : step.buffers)
    if (buffer.at_end && !buffer.at_start) return "a step leaves more than it found";
  return {};
}

std::vector<TaskId> late_updates(const SimulatedStep& step) {
  const TaskGraph& tasks = step.tasks;
  Nanoseconds computed = 0;
  std::vector<bool> waited_for(tasks.size());
  std::vector<size_t> first_use(tasks.buffers.size(), tasks.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (computes(tasks.tasks[i].kind)) computed = std::max(computed, step.result.end[i]);
    for (TaskId other : tasks.predecessors_of(TaskId(i))) waited_for[other.index()] = true;
    for (const Use& use : tasks.uses_of(TaskId(i)))
      first_use[use.buffer.index()] = std::min(first_use[use.buffer.index()], i);
  }
  std::vector<std::pair<size_t, TaskId>> found;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (tasks.tasks[i].kind != TaskKind::HostUpdate || waited_for[i] ||
        step.result.start[i] < computed)
      continue;
    // What follows on a lane that computes counts on it without saying so.
    if (tasks[tasks.lanes_of(TaskId(i)).front()].kind != LaneKind::Host) continue;
    size_t needed = tasks.size();
    for (const Use& use : tasks.uses_of(TaskId(i)))
      if (use.write && rests(tasks[use.buffer]))
        needed = std::min(needed, first_use[use.buffer.index()]);
    found.emplace_back(needed, TaskId(i));
  }
  std::ranges::sort(found);
  std::vector<TaskId> late;
  for (const auto& [needed, task] : found) late.push_back(task);
  return late;
}

StepRow chain_steps(const TaskGraph& step, const TaskTimes& times, int32_t steps, RowStart start,
                    const std::vector<TaskId>& late) {
  ensure(steps > 0 && cannot_row(step).empty(), "steps that cannot be in a row");
  return RowMaker(step, times, steps, start, late).make();
}

StepRow make_row(const SimulatedStep& step, int32_t steps) {
  Simulator simulator;
  StepRow best;
  const auto look_at = [&](RowStart start, const std::vector<TaskId>& late) {
    StepRow row = chain_steps(step.tasks, step.times, steps, start, late);
    row.result = simulator.run(row.tasks, row.times);
    ensure(row.result.status != SimStatus::Deadlock, "steps of a row wait for each other");
    const bool better =
        best.tasks.size() == 0 ||
        (row.result.status == SimStatus::Done &&
         (best.result.status != SimStatus::Done || row.result.makespan < best.result.makespan));
    if (better) best = std::move(row);
  };
  look_at(RowStart::Free, {});
  if (steps == 1) return best;
  look_at(RowStart::AfterBackward, {});
  const std::vector<TaskId> late = late_updates(step);
  if (late.size() < 2) return best;
  look_at(RowStart::Free, late);
  look_at(RowStart::AfterBackward, late);
  return best;
}

SimulatedStep step_of_row(const SimulatedStep& step, const StepRow& row) {
  ensure(row.result.status == SimStatus::Done && row.tasks_each() == step.tasks.size(),
         "a row that does not end, or of another step");
  SimulatedStep typical = step;
  const std::vector<Nanoseconds> ends = row.ends();
  std::vector<Nanoseconds> times;
  for (size_t k = 1; k < ends.size(); ++k) times.push_back(ends[k] - ends[k - 1]);
  if (times.empty()) times = ends;
  std::ranges::sort(times);
  const size_t first = static_cast<size_t>(row.shape.steps) / 2 * row.tasks_each();
  const auto starts = std::span(row.result.start).subspan(first, row.tasks_each());
  const Nanoseconds began = *std::ranges::min_element(starts);
  for (size_t i = 0; i < row.tasks_each(); ++i) {
    const size_t task = row.shape.original(i).index();
    typical.result.start[task] = row.result.start[first + i] - began;
    typical.result.end[task] = row.result.end[first + i] - began;
  }
  typical.result.makespan = times[times.size() / 2];
  typical.result.peaks = row.result.peaks;
  for (MemoryPeak& peak : typical.result.peaks)
    if (peak.task.valid()) peak.task = row.shape.original(peak.task.index() % row.tasks_each());
  return typical;
}

}  // namespace windlass
