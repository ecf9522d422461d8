#include "windlass/sim/reference/random_tasks.h"

#include <algorithm>

namespace windlass {
namespace {

size_t below(Rng& rng, size_t bound) {
  return static_cast<size_t>(rng.integer(0, static_cast<int64_t>(bound) - 1));
}

void add_teams(TaskGraph& graph, size_t teams) {
  for (size_t i = 0; i < teams; ++i) {
    graph.memories.push_back({"gpu", TeamId(i), {}, Bytes(int64_t{1} << 60)});
    graph.teams.push_back({{DeviceId(i)}, 0, MemoryId(i)});
  }
  graph.memories.push_back({"host", {}, {NodeId(size_t{0})}, Bytes(int64_t{1} << 60)});
}

void add_traffic(TaskGraph& graph, int64_t volume, std::vector<SharedLoad> loads) {
  Traffic traffic;
  traffic.volume = Bytes(volume);
  graph.traffics.push_back(traffic);
  graph.loads.push_back(std::move(loads));
}

}  // namespace

RandomTasks random_tasks(Rng& rng, size_t count) {
  RandomTasks made;
  TaskGraph& graph = made.graph;
  const size_t teams = 1 + below(rng, 3);
  add_teams(graph, teams);
  const size_t lanes = 1 + below(rng, rng.chance(0.3) ? 20 : 8);
  for (size_t i = 0; i < lanes; ++i)
    graph.lanes.push_back({static_cast<LaneKind>(below(rng, 7)), TeamId(below(rng, teams)), {}});
  const size_t links = 1 + below(rng, 6);
  // Links of a few units of 2^-20 bytes per nanosecond: rounding and ties decide.
  const bool coarse = rng.chance(0.3);
  for (size_t i = 0; i < links; ++i) {
    const double bandwidth = coarse ? static_cast<double>(rng.integer(1, 8)) * 1e9 / (1 << 20)
                                    : rng.uniform(0.05e9, 4e9);
    graph.links.push_back({{}, BytesPerSecond(bandwidth)});
  }
  for (size_t i = 0; i < 8; ++i) {
    std::vector<SharedLoad> loads;
    for (size_t link = 0; link < links; ++link) {
      if (rng.chance(0.35)) {
        loads.push_back(
            {static_cast<int32_t>(link), rng.chance(0.5) ? 1024 : rng.integer(1, 4096)});
      }
    }
    add_traffic(graph, rng.chance(0.1) ? 0 : rng.integer(1, 60), std::move(loads));
  }
  graph.works.resize(1);

  const size_t buffers = 1 + below(rng, count + 1);
  for (size_t i = 0; i < buffers; ++i) {
    Buffer buffer;
    buffer.memory = MemoryId(below(rng, graph.memories.size()));
    buffer.at_start = rng.chance(0.15);
    buffer.at_end = rng.chance(0.15);
    buffer.bytes = Bytes(rng.chance(0.1) ? 0 : rng.integer(1, 8));
    graph.add(buffer);
  }

  const bool backwards = rng.chance(0.15);
  const bool busy = rng.chance(0.5);
  for (size_t i = 0; i < count; ++i) {
    Task task;
    task.kind = static_cast<TaskKind>(below(rng, 13));
    task.price = static_cast<int32_t>(moves(task.kind) ? below(rng, 8) : 0);
    std::vector<LaneId> on = {LaneId(below(rng, lanes))};
    while (rng.chance(0.2)) on.emplace_back(below(rng, lanes));
    std::vector<TaskId> after;
    while (i > 0 && rng.chance(busy ? 0.3 : 0.6))
      after.emplace_back(i - 1 - below(rng, std::min<size_t>(i, 12)));
    if (backwards && rng.chance(0.02)) after.emplace_back(below(rng, count));
    std::vector<Use> uses;
    while (rng.chance(0.6)) {
      // Near the place of the task in the whole, so that buffers come and go.
      const size_t near = i * buffers / count + below(rng, 4);
      uses.push_back({BufferId(rng.chance(0.9) ? std::min(near, buffers - 1) : below(rng, buffers)),
                      rng.chance(0.5)});
    }
    graph.add(task, on, after, uses);
    const bool moving = moves(task.kind);
    made.times.duration.push_back(rng.integer(moving ? 0 : 1, moving ? 6 : 12));
    made.times.workspace.push_back(!moving && rng.chance(0.3) ? rng.integer(1, 6) : 0);
  }

  // Limits about as high as what a run without limits needs.
  Simulator simulator;
  SimOptions unlimited;
  unlimited.enforce_limits = false;
  const SimResult& free = simulator.run(graph, made.times, unlimited);
  if (rng.chance(0.7)) {
    const double share = rng.uniform(0.4, 1.2);
    for (size_t i = 0; i < graph.memories.size(); ++i) {
      graph.memories[i].limit =
          Bytes(static_cast<int64_t>(static_cast<double>(free.peaks[i].bytes) * share) +
                rng.integer(0, 4));
    }
  }
  return made;
}

RandomTasks training_like_tasks(uint64_t seed, size_t count, size_t teams, size_t period) {
  RandomTasks made;
  TaskGraph& graph = made.graph;
  add_teams(graph, teams);
  constexpr size_t kLanes = 5;
  constexpr LaneKind kKinds[kLanes] = {LaneKind::Compute, LaneKind::Communicate, LaneKind::Reduce,
                                       LaneKind::SwapOut, LaneKind::SwapIn};
  constexpr TaskKind kMoves[kLanes] = {TaskKind::Forward, TaskKind::Collective, TaskKind::Reduce,
                                       TaskKind::SwapOut, TaskKind::SwapIn};
  graph.works.resize(1);
  Rng rng(seed);
  // Each team has a link of its own in each direction; pairs of teams share one to the host.
  for (size_t i = 0; i < 3 * teams + teams % 2; ++i)
    graph.links.push_back({{}, BytesPerSecond(i < 2 * teams ? 100e9 : 25e9)});
  for (size_t team = 0; team < teams; ++team) {
    for (LaneKind kind : kKinds) graph.lanes.push_back({kind, TeamId(team), {}});
    const auto own = static_cast<int32_t>(2 * team);
    const auto host = static_cast<int32_t>(2 * teams + team / 2 * 2);
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const bool swap = lane >= 3;
      const int32_t direction = lane == 4 ? 1 : 0;
      std::vector<SharedLoad> loads = {{own + direction, 1024}};
      if (swap) loads.push_back({host + direction, 1024});
      add_traffic(graph, rng.integer(100'000, 2'000'000), std::move(loads));
    }
  }
  std::vector<std::vector<TaskId>> newest(teams);
  std::vector<std::vector<BufferId>> results(teams);
  for (size_t i = 0; i < count; ++i) {
    const size_t team = i % teams;
    Rng draw(seed, 1 + team + teams * (i / teams % period));
    const size_t lane = draw.chance(0.1) ? 1 + below(draw, kLanes - 1) : 0;
    Task task;
    task.kind = kMoves[lane];
    task.price = static_cast<int32_t>(lane == 0 ? 0 : team * kLanes + lane);
    Buffer buffer;
    buffer.memory = MemoryId(team);
    buffer.bytes = Bytes(draw.integer(1, 1 << 20));
    const BufferId result = graph.add(buffer);
    std::vector<Use> uses = {{result, true}};
    std::vector<TaskId> after;
    const auto recent = [&](const auto& list) {
      return list[list.size() - 1 - below(draw, std::min<size_t>(list.size(), 8))];
    };
    for (int k = 0; k < 2; ++k) {
      if (!results[team].empty()) uses.push_back({recent(results[team]), false});
      const size_t from = draw.chance(0.05) ? below(draw, teams) : team;
      if (!newest[from].empty()) after.push_back(recent(newest[from]));
    }
    newest[team].push_back(
        graph.add(task, std::vector<LaneId>{LaneId(team * kLanes + lane)}, after, uses));
    results[team].push_back(result);
    made.times.duration.push_back(lane == 0 ? draw.integer(2'000, 200'000) : 5'000);
    made.times.workspace.push_back(lane == 0 && draw.chance(0.3) ? 1 << 20 : 0);
  }
  return made;
}

}  // namespace windlass
