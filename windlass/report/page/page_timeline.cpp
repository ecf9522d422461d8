#include "windlass/report/page/page_timeline.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "windlass/report/labels.h"
#include "windlass/report/page/base64.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

constexpr int64_t kMostQuanta = int64_t{1} << 24;

struct Slice {
  int64_t start = 0, end = 0;  // quanta
  TaskKind kind = TaskKind::Forward;
  TaskId task;        // of one task
  int64_t count = 1;  // tasks
};
using Track = std::vector<Slice>;

std::vector<Track> tracks_of(const TaskGraph& graph, const SimResult& result, int64_t quantum) {
  std::vector<Track> tracks(graph.lanes.size());
  for (size_t i = 0; i < graph.size(); ++i) {
    if (result.end[i] < 0) continue;
    for (LaneId lane : graph.lanes_of(TaskId(i))) {
      Track& track = tracks[lane.index()];
      if (track.empty() || track.back().task != TaskId(i))
        track.push_back(
            {result.start[i] / quantum, result.end[i] / quantum, graph.tasks[i].kind, TaskId(i)});
    }
  }
  for (Track& track : tracks)
    std::ranges::stable_sort(track, {}, [](const Slice& slice) { return slice.start; });
  return tracks;
}

size_t slices_of(const std::vector<Track>& tracks) {
  size_t slices = 0;
  for (const Track& track : tracks) slices += track.size();
  return slices;
}

// Neighbours of one kind with at most so long a gap between them become one, unless that would be
// longer than `longest`.
void merge(Track& track, int64_t gap, int64_t longest) {
  size_t kept = 0;
  for (size_t i = 1; i < track.size(); ++i) {
    Slice& last = track[kept];
    const Slice& next = track[i];
    if (next.kind == last.kind && next.start - last.end <= gap &&
        next.end - last.start <= longest) {
      last.end = std::max(last.end, next.end);
      last.count += next.count;
    } else {
      track[++kept] = next;
    }
  }
  if (!track.empty()) track.resize(kept + 1);
}

void fit(std::vector<Track>& tracks, size_t most, int64_t end) {
  for (int64_t longest = 16; slices_of(tracks) > most; longest *= 2) {
    for (Track& track : tracks) merge(track, longest / 8, longest);
    if (longest > 2 * end) break;
  }
}

void add_number(std::string& bytes, uint64_t value) {
  for (; value >= 128; value >>= 7) bytes += static_cast<char>((value & 127) | 128);
  bytes += static_cast<char>(value);
}

class Labels {
 public:
  Labels(const TaskGraph& graph, const Graph* training) : graph_(graph), training_(training) {}

  uint64_t of(TaskId task) {
    const auto kind = static_cast<int>(graph_[task].kind);
    std::string name = task_subject(graph_, training_, task);
    if (graph_[task].begins) name = "begin of " + name;
    const auto [entry, fresh] = known_.try_emplace({kind, name}, known_.size());
    if (fresh) json_.push_back({kind, std::move(name)});
    return entry->second;
  }
  ordered_json& json() { return json_; }

 private:
  const TaskGraph& graph_;
  const Graph* training_;
  std::map<std::pair<int, std::string>, uint64_t> known_;
  ordered_json json_ = ordered_json::array();
};

std::string encode(const Track& track, const TaskGraph& graph, Labels& labels) {
  std::string bytes;
  int64_t reached = 0;
  for (const Slice& slice : track) {
    const int64_t start = std::max(slice.start, reached);
    const int64_t end = std::max(slice.end, start);
    add_number(bytes, static_cast<uint64_t>(start - reached));
    add_number(bytes, static_cast<uint64_t>(end - start));
    if (slice.count > 1) {
      add_number(bytes, 0);
      add_number(bytes, static_cast<uint64_t>(slice.kind));
      add_number(bytes, static_cast<uint64_t>(slice.count));
    } else {
      add_number(bytes, labels.of(slice.task) + 1);
      add_number(bytes, static_cast<uint64_t>(graph[slice.task].micro_batch + 1));
    }
    reached = end;
  }
  return to_base64(bytes);
}

}  // namespace

ordered_json page_timeline_json(const SimulatedStep& step, const Graph* training,
                                const PageTimelineOptions& options) {
  const TaskGraph& graph = step.tasks;
  const SimResult& result = step.whole();
  const int64_t quantum = (result.makespan + kMostQuanta - 1) / kMostQuanta;
  std::vector<Track> tracks = tracks_of(graph, result, std::max<int64_t>(1, quantum));
  const int64_t end = result.makespan / std::max<int64_t>(1, quantum);
  fit(tracks, options.most_slices, end);
  ordered_json json;
  json["quantum_ns"] = std::max<int64_t>(1, quantum);
  json["end"] = end;
  json["tasks"] = graph.size();
  json["slices"] = slices_of(tracks);
  auto& kinds = json["kinds"] = ordered_json::array();
  for (int k = 0; k <= static_cast<int>(TaskKind::SwapIn); ++k)
    kinds.push_back(task_kind_name(static_cast<TaskKind>(k)));
  Labels labels(graph, training);
  std::vector<std::pair<std::pair<size_t, size_t>, size_t>> order;
  for (size_t i = 0; i < tracks.size(); ++i) {
    const TeamId team = graph.lanes[i].team;
    const bool host = graph.lanes[i].kind == LaneKind::Host;
    order.push_back({{host || !team.valid() ? graph.teams.size() : team.index(),
                      static_cast<size_t>(graph.lanes[i].kind)},
                     i});
  }
  std::ranges::sort(order);
  auto& list = json["tracks"] = ordered_json::array();
  for (const auto& [key, i] : order) {
    if (tracks[i].empty()) continue;
    list.push_back({{"team", key.first < graph.teams.size() ? team_label(graph, TeamId(key.first))
                                                            : std::string("host")},
                    {"lane", lane_label(graph, LaneId(i))},
                    {"slices", tracks[i].size()},
                    {"data", encode(tracks[i], graph, labels)}});
  }
  json["labels"] = std::move(labels.json());
  return json;
}

}  // namespace windlass
