#include "windlass/report/parts.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "windlass/report/lives.h"

namespace windlass {
namespace {

// Tensors that an op and its backward op read and write.
std::set<TensorId> operands_of(const TrainingGraph& training, OpId op) {
  std::set<TensorId> tensors;
  const auto add = [&](TensorId tensor) {
    if (!tensor.valid()) return;
    tensors.insert(tensor);
    if (const TensorId gradient = training.gradient_of[tensor.index()]; gradient.valid())
      tensors.insert(gradient);
  };
  for (TensorId tensor : training.graph[op].inputs) add(tensor);
  for (TensorId tensor : training.graph[op].outputs) add(tensor);
  return tensors;
}

std::vector<OpWork> work_of(const SimulatedStep& step, const TrainingGraph& training, OpId op) {
  // By kind and team.
  std::map<std::pair<TaskKind, TeamId>, OpWork> found;
  std::map<TeamId, Seconds> begun;
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    const Task& task = step.tasks.tasks[i];
    if (!task.op.valid() || moves(task.kind)) continue;
    const bool is_it = task.op == op || training.graph[task.op].forward == op;
    if (!is_it) continue;
    const TeamId team = step.tasks[step.tasks.lanes_of(TaskId(i)).front()].team;
    OpWork& work = found[{task.kind, team}];
    work.kind = task.kind;
    const Seconds time = seconds(step.times.duration[i]);
    work.total += time;
    Seconds& before = begun[team];
    if (!task.begins) {
      ++work.runs;
      work.each = std::max(work.each, before + time);
    }
    before = task.begins ? time : Seconds(0);
  }
  std::map<TaskKind, OpWork> longest;
  for (const auto& [key, work] : found) {
    OpWork& most = longest[key.first];
    if (work.total > most.total) most = work;
  }
  std::vector<OpWork> list;
  for (const auto& [kind, work] : longest) list.push_back(work);
  return list;
}

std::vector<OpMove> moves_of(const SimulatedStep& step, const TrainingGraph& training, OpId op) {
  const std::set<TensorId> operands = operands_of(training, op);
  const SimResult& result = step.whole();
  std::map<std::pair<TensorId, TaskKind>, OpMove> found;
  for (size_t i = 0; i < step.tasks.size(); ++i) {
    const Task& task = step.tasks.tasks[i];
    if (!moves(task.kind)) continue;
    std::set<TensorId> carried;
    for (const Use& use : step.tasks.uses_of(TaskId(i)))
      if (step.tasks[use.buffer].tensor.valid()) carried.insert(step.tasks[use.buffer].tensor);
    for (TensorId tensor : carried) {
      if (!operands.contains(tensor)) continue;
      OpMove& move = found[{tensor, task.kind}];
      move.kind = task.kind;
      move.tensor = training.graph[tensor].name;
      ++move.runs;
      move.bytes += step.tasks.traffics[static_cast<size_t>(task.price)].volume;
      move.others = std::max(move.others, static_cast<int64_t>(carried.size()) - 1);
      move.total += seconds(result.end[i] - result.start[i]);
    }
  }
  std::vector<OpMove> list;
  for (auto& [key, move] : found) list.push_back(std::move(move));
  std::ranges::stable_sort(list,
                           [](const OpMove& a, const OpMove& b) { return a.total > b.total; });
  return list;
}

// The most bytes at once, of stays in one memory.
int64_t most_at_once(std::vector<std::pair<Nanoseconds, int64_t>> changes) {
  std::ranges::sort(changes);  // at one moment, releases come first
  int64_t now = 0, most = 0;
  for (const auto& [time, bytes] : changes) most = std::max(most, now += bytes);
  return most;
}

}  // namespace

OpParts parts_of(const SimulatedStep& step, const TrainingGraph& training, OpId op) {
  return {work_of(step, training, op), moves_of(step, training, op)};
}

TensorParts parts_of(const SimulatedStep& step, TensorId tensor) {
  const TaskGraph& graph = step.tasks;
  const SimResult& result = step.whole();
  const std::vector<Life> lives = buffer_lives(graph, result);
  size_t fullest = graph.memories.size();
  for (size_t m = 0; m < graph.memories.size(); ++m)
    if (graph.memories[m].team.valid() &&
        (fullest == graph.memories.size() || result.peaks[m].bytes > result.peaks[fullest].bytes))
      fullest = m;
  TensorParts parts;
  std::map<size_t, std::vector<std::pair<Nanoseconds, int64_t>>> changes;  // by memory
  std::set<int32_t> batches;
  std::vector<std::tuple<int32_t, Nanoseconds, size_t, TensorStay>> stays;
  for (size_t i = 0; i < graph.buffers.size(); ++i) {
    const Buffer& buffer = graph.buffers[i];
    if (buffer.tensor != tensor || lives[i].begin < 0) continue;
    if (buffer.micro_batch >= 0) batches.insert(buffer.micro_batch);
    const size_t m = buffer.memory.index();
    if (graph.memories[m].team.valid()) {
      changes[m].emplace_back(lives[i].begin, buffer.bytes.value);
      if (lives[i].end <= result.makespan)
        changes[m].emplace_back(lives[i].end, -buffer.bytes.value);
      if (m == fullest && lives[i].at(result.peaks[m].time)) parts.at_peak += buffer.bytes;
    }
    stays.emplace_back(buffer.micro_batch, lives[i].begin, m,
                       TensorStay{.memory = graph.memories[m].name,
                                  .kind = buffer.kind,
                                  .bytes = buffer.bytes,
                                  .begin = seconds(lives[i].begin),
                                  .end = seconds(std::min(lives[i].end, result.makespan)),
                                  .always = buffer.at_start && buffer.at_end});
  }
  for (auto& [memory, list] : changes)
    parts.most_on_device = std::max(parts.most_on_device, Bytes(most_at_once(std::move(list))));
  std::erase_if(stays, [&](const auto& stay) {
    return std::get<0>(stay) >= 0 && std::get<0>(stay) != *batches.begin();
  });
  std::ranges::stable_sort(stays, [](const auto& a, const auto& b) {
    return std::tie(std::get<1>(a), std::get<2>(a)) < std::tie(std::get<1>(b), std::get<2>(b));
  });
  for (auto& entry : stays) parts.stays.push_back(std::move(std::get<3>(entry)));
  parts.micro_batches = static_cast<int64_t>(batches.size());
  return parts;
}

}  // namespace windlass
