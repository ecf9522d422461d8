#include "windlass/task/task_graph.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <unordered_map>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"

namespace windlass {
namespace {

template <typename... Args>
void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) fail(ErrorKind::Internal, format, std::forward<Args>(args)...);
}

}  // namespace

std::string_view task_kind_name(TaskKind kind) {
  static constexpr std::array<std::string_view, 15> kNames = {
      "forward",  "recompute",  "backward", "update",   "host-update",
      "compress", "decompress", "join",     "norm",     "collective",
      "reduce",   "gather",     "send",     "swap-out", "swap-in"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view lane_kind_name(LaneKind kind) {
  static constexpr std::array<std::string_view, 7> kNames = {
      "compute", "communicate", "reduce", "send", "swap-out", "swap-in", "host"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view buffer_kind_name(BufferKind kind) {
  static constexpr std::array<std::string_view, 8> kNames = {
      "weight",    "weight gradient", "optimizer state", "activation",
      "transient", "communication",   "stash",           "input"};
  return kNames[static_cast<size_t>(kind)];
}

std::string_view use_kind_name(UseKind kind) {
  static constexpr std::array<std::string_view, 12> kNames = {
      "input", "output", "auxiliary", "statistics", "term",  "sum",
      "from",  "to",     "gradient",  "weight",     "state", "squares"};
  return kNames[static_cast<size_t>(kind)];
}

TaskId TaskGraph::add(const Task& task, std::span<const LaneId> on, std::span<const TaskId> after,
                      std::span<const Use> using_buffers) {
  task_lanes.insert(task_lanes.end(), on.begin(), on.end());
  predecessors.insert(predecessors.end(), after.begin(), after.end());
  uses.insert(uses.end(), using_buffers.begin(), using_buffers.end());
  return finish(task);
}

void TaskGraph::clear_tasks() {
  tasks.clear();
  buffers.clear();
  views.clear();
  carried.clear();
  lane_begin.assign(1, 0);
  predecessor_begin.assign(1, 0);
  use_begin.assign(1, 0);
  task_lanes.clear();
  predecessors.clear();
  uses.clear();
}

void check_task_graph(const TaskGraph& graph) {
  const auto in = [](auto id, const auto& list) { return id.valid() && id.index() < list.size(); };
  const size_t count = graph.size();
  expect(count == 0 ||
             (graph.lane_begin.size() == count + 1 && graph.predecessor_begin.size() == count + 1 &&
              graph.use_begin.size() == count + 1),
         "task graph: lists do not match the tasks");
  expect(graph.loads.size() == graph.traffics.size(), "task graph: links are not shared yet");
  for (const Buffer& buffer : graph.buffers) {
    expect(in(buffer.memory, graph.memories) && buffer.bytes.value >= 0,
           "task graph: a buffer of {} bytes in memory {}", buffer.bytes.value,
           buffer.memory.value);
    expect(!buffer.team.valid() || in(buffer.team, graph.teams),
           "task graph: a buffer is of team {} of {}", buffer.team.value, graph.teams.size());
  }
  for (size_t i = 0; i < count; ++i) {
    const TaskId id(i);
    const Task& task = graph[id];
    const size_t prices = moves(task.kind) ? graph.traffics.size() : graph.works.size();
    expect(task.price >= 0 && static_cast<size_t>(task.price) < prices,
           "task graph: task {} has price {} of {}", i, task.price, prices);
    expect(!graph.lanes_of(id).empty(), "task graph: task {} is on no lane", i);
    for (LaneId lane : graph.lanes_of(id))
      expect(in(lane, graph.lanes), "task graph: task {} is on lane {}", i, lane.value);
    for (TaskId before : graph.predecessors_of(id))
      expect(in(before, graph.tasks), "task graph: task {} follows task {}", i, before.value);
    for (const Use& use : graph.uses_of(id))
      expect(in(use.buffer, graph.buffers), "task graph: task {} uses buffer {}", i,
             use.buffer.value);
  }
  for (const auto& loads : graph.loads)
    for (const SharedLoad& load : loads)
      expect(
          load.link >= 0 && static_cast<size_t>(load.link) < graph.links.size() && load.weight > 0,
          "task graph: weight {} on link {}", load.weight, load.link);
}

int64_t load_weight(const Traffic& traffic, const LinkLoad& load) {
  const auto volume = static_cast<double>(traffic.volume.value);
  expect(volume > 0, "traffic without volume loads link {}", load.direction.link.value);
  const double weight = std::round(static_cast<double>(load.bytes.value) * kLoadUnit / volume);
  return std::max<int64_t>(1, static_cast<int64_t>(weight));
}

void share_links(TaskGraph& graph, const Machine& machine) {
  // Rows of (traffic, weight) by direction, two a link; equal rows and bandwidths are one shared
  // link.
  using Row = std::vector<std::pair<int32_t, int64_t>>;
  std::vector<Row> rows(2 * machine.links.size());
  for (size_t i = 0; i < graph.traffics.size(); ++i) {
    const Traffic& traffic = graph.traffics[i];
    for (const LinkLoad& load : traffic.loads) {
      if (load.bytes.value <= 0) continue;
      rows[2 * load.direction.link.index() + (load.direction.forward ? 1 : 0)].emplace_back(
          static_cast<int32_t>(i), load_weight(traffic, load));
    }
  }
  graph.links.clear();
  graph.loads.assign(graph.traffics.size(), {});
  std::unordered_multimap<uint64_t, std::pair<size_t, int32_t>> known;  // to a row and its link
  for (size_t d = 0; d < rows.size(); ++d) {
    const Row& row = rows[d];
    if (row.empty()) continue;
    const LinkDirection direction = {LinkId(d / 2), d % 2 == 1};
    const BytesPerSecond bandwidth = machine[direction.link].bandwidth;
    Hasher hasher;
    hasher.add(bandwidth.value);
    for (const auto& [traffic, weight] : row) hasher.add(traffic).add(weight);
    const auto [first, last] = known.equal_range(hasher.result());
    const auto same = std::find_if(first, last, [&](const auto& entry) {
      const auto& [other, link] = entry.second;
      return rows[other] == row && graph.links[static_cast<size_t>(link)].bandwidth == bandwidth;
    });
    if (same != last) {
      graph.links[static_cast<size_t>(same->second.second)].directions.push_back(direction);
      continue;
    }
    const auto next = static_cast<int32_t>(graph.links.size());
    known.emplace(hasher.result(), std::pair(d, next));
    graph.links.push_back({{direction}, bandwidth});
    for (const auto& [traffic, weight] : row)
      graph.loads[static_cast<size_t>(traffic)].push_back({next, weight});
  }
}

bool extend_links(TaskGraph& graph, const Machine& machine) {
  std::vector<int32_t> link_of(2 * machine.links.size(), -1);  // by direction
  const auto at = [](const LinkDirection& direction) {
    return 2 * direction.link.index() + (direction.forward ? 1 : 0);
  };
  for (size_t i = 0; i < graph.links.size(); ++i)
    for (const LinkDirection& direction : graph.links[i].directions)
      link_of[at(direction)] = static_cast<int32_t>(i);
  std::vector<size_t> carried(graph.links.size());  // directions of the link that carry the same
  for (size_t t = graph.loads.size(); t < graph.traffics.size(); ++t) {
    const Traffic& traffic = graph.traffics[t];
    std::vector<SharedLoad> loads;
    for (const LinkLoad& load : traffic.loads) {
      if (load.bytes.value <= 0) continue;
      const int32_t link = link_of[at(load.direction)];
      if (link < 0) return false;
      const int64_t weight = load_weight(traffic, load);
      size_t& count = carried[static_cast<size_t>(link)];
      if (count++ == 0) {
        loads.push_back({link, weight});
        continue;
      }
      const auto same = std::ranges::find(loads, link, &SharedLoad::link);
      if (same->weight != weight) return false;
    }
    for (const SharedLoad& load : loads) {
      size_t& count = carried[static_cast<size_t>(load.link)];
      if (count != graph.links[static_cast<size_t>(load.link)].directions.size()) return false;
      count = 0;
    }
    std::ranges::sort(loads, {}, &SharedLoad::link);
    graph.loads.push_back(std::move(loads));
  }
  return true;
}

}  // namespace windlass
