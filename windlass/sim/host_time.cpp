#include "windlass/sim/host_time.h"

#include <algorithm>
#include <cmath>

namespace windlass {
namespace {

// One device's side of the race.
struct IssueQueue {
  Nanoseconds issued = 0, done = 0;
  int32_t micro_batch = -1;
  bool backward = false;
};

int64_t weights_updated(const TaskGraph& graph, TaskId id) {
  return std::ranges::count(graph.uses_of(id), UseKind::Weight, &Use::kind);
}

int64_t launches_of(const Work& work) {
  int64_t launches = 0;
  for (const Kernel& kernel : work.kernels) launches += kernel.launches;
  return launches;
}

bool backward_pass(TaskKind kind) {
  return kind == TaskKind::Backward || kind == TaskKind::Recompute || kind == TaskKind::Decompress;
}

// `core_speed`: of the host (machine.h, Node).
Nanoseconds host_time(const TaskGraph& graph, TaskId id, const DeviceType& device,
                      const HostCosts& host, double core_speed) {
  const Task& task = graph[id];
  const Work& work = graph.works[static_cast<size_t>(task.price)];
  if (work.kernels.empty()) return 0;
  Seconds each = host.forward_op;
  const bool sums = std::ranges::any_of(graph.uses_of(id),
                                        [](const Use& use) { return use.kind == UseKind::Term; });
  if (work.kernels.front().cast || sums)
    each = host.cast;
  else if (task.kind == TaskKind::Update)
    each = host.weight * static_cast<double>(weights_updated(graph, id));
  else if (task.kind == TaskKind::Backward && task.op.valid())
    each = host.backward_op;
  if (work.kernels.front().family == OpFamily::Convolution &&
      host.convolution_op.value > host.forward_op.value)
    each = each * (host.convolution_op / host.forward_op);
  // An op of the library that launches again and again: a recurrent layer.
  constexpr int64_t kOfAnOp = 4;
  const int64_t more = std::max<int64_t>(0, launches_of(work) - kOfAnOp);
  return nanoseconds_of(each / core_speed + device.launch_overhead * static_cast<double>(more));
}

// Of what is moved, if nothing else is under way.
Nanoseconds time_alone(const TaskGraph& graph, const Machine& machine, const Task& task) {
  return nanoseconds_of(time_alone(machine, graph.traffics[static_cast<size_t>(task.price)]));
}

void wait_for_host(const TaskGraph& graph, const Machine& machine, const HostCosts& host,
                   TaskTimes& times) {
  const bool waits = host.waits_each_pass && std::ranges::any_of(graph.tasks, [](const Task& task) {
                       return task.kind == TaskKind::Send;
                     });
  std::vector<IssueQueue> queues(graph.teams.size());
  std::vector<double> speeds;
  for (const Team& team : graph.teams)
    speeds.push_back(machine[machine[team.devices.front()].node].core_speed);
  for (size_t i = 0; i < graph.size(); ++i) {
    const TaskId id(i);
    const Task& task = graph.tasks[i];
    if (moves(task.kind)) {
      for (LaneId lane : graph.lanes_of(id)) {
        if (graph[lane].kind == LaneKind::Compute || !graph[lane].team.valid()) continue;
        const size_t team = graph[lane].team.index();
        queues[team].issued += nanoseconds_of(host.collective / speeds[team]);
        // The next op of the device reads what is redistributed: meanwhile the host goes on.
        if (task.kind == TaskKind::Collective)
          queues[team].done += time_alone(graph, machine, task);
      }
      continue;
    }
    const Lane& lane = graph[graph.lanes_of(id).front()];
    if (lane.kind != LaneKind::Compute) continue;
    IssueQueue& queue = queues[lane.team.index()];
    const bool backward = backward_pass(task.kind);
    if (task.micro_batch >= 0 &&
        (task.micro_batch != queue.micro_batch || backward != queue.backward)) {
      if (waits) queue.issued = queue.done = std::max(queue.issued, queue.done);
      if (!backward) queue.issued += nanoseconds_of(host.micro_batch / speeds[lane.team.index()]);
      queue.micro_batch = task.micro_batch;
      queue.backward = backward;
    }
    queue.issued += host_time(graph, id, machine.device_types[graph[lane.team].type], host,
                              speeds[lane.team.index()]);
    const Nanoseconds late = std::max<Nanoseconds>(0, queue.issued - queue.done);
    times.duration[i] += late;
    queue.done += times.duration[i];
  }
}

void add_copies(const TaskGraph& graph, const RunnerCosts& costs, TaskTimes& times) {
  // Gradients of all weights that a team updates.
  std::vector<int64_t> updated(graph.teams.size(), 0);
  const auto team_of = [&](TaskId id) { return graph[graph.lanes_of(id).front()].team.index(); };
  for (size_t i = 0; i < graph.size(); ++i) {
    if (graph.tasks[i].kind != TaskKind::Update) continue;
    for (const Use& use : graph.uses_of(TaskId(i)))
      if (use.kind == UseKind::Gradient)
        updated[team_of(TaskId(i))] += graph[use.buffer].bytes.value;
  }
  const auto copies = [](double count, int64_t bytes) {
    return static_cast<int64_t>(std::ceil(count * static_cast<double>(bytes)));
  };
  // Where replicas sum gradients up with each other, buckets have room for all of them.
  std::vector<bool> reduces(graph.teams.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks[i];
    if (task.kind != TaskKind::Reduce || task.how < 0 ||
        graph.movements[static_cast<size_t>(task.how)].collective != Collective::AllReduce)
      continue;
    for (LaneId lane : graph.lanes_of(TaskId(i)))
      if (graph[lane].team.valid()) reduces[graph[lane].team.index()] = true;
  }
  std::vector<int64_t> kept(graph.teams.size(), costs.library_workspace.value);
  for (size_t team = 0; team < kept.size(); ++team)
    if (reduces[team]) kept[team] += copies(costs.bucket_copies, updated[team]);
  for (size_t i = 0; i < graph.size(); ++i) {
    const Task& task = graph.tasks[i];
    if (moves(task.kind) || graph[graph.lanes_of(TaskId(i)).front()].kind != LaneKind::Compute)
      continue;
    times.workspace[i] += kept[team_of(TaskId(i))];
    if (task.kind == TaskKind::Update)
      times.workspace[i] += copies(costs.update_copies, updated[team_of(TaskId(i))]);
    if (task.kind != TaskKind::Forward && task.kind != TaskKind::Backward) continue;
    for (const Kernel& kernel : graph.works[static_cast<size_t>(task.price)].kernels) {
      if (kernel.family != OpFamily::Loss) continue;
      times.workspace[i] += task.kind == TaskKind::Forward
                                ? copies(costs.loss_copies, kernel.read.value)
                                : copies(costs.loss_backward_copies, kernel.written.value);
    }
  }
}

}  // namespace

void add_runner_costs(const TaskGraph& graph, const Machine& machine, const RunnerCosts& costs,
                      TaskTimes& times) {
  wait_for_host(graph, machine, costs.host, times);
  add_copies(graph, costs, times);
}

}  // namespace windlass
