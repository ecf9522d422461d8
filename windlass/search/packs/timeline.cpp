#include "windlass/search/packs/timeline.h"

#include <algorithm>
#include <array>

namespace windlass {
namespace {

constexpr std::string_view kLetters = "FRBWAG";

// The letter of a task, and which of the three lines it stands in.
struct Mark {
  size_t line = 0;
  size_t letter = 0;  // of kLetters
};

// Weights and gradients have lanes of their own, apart from those of activations.
bool mark_of(const TaskGraph& graph, TaskId id, Mark& mark) {
  const LaneId lane = graph.lanes_of(id).front();
  const bool first_of_kind = lane.index() == 0 ||
                             graph.lanes[lane.index() - 1].kind != graph[lane].kind ||
                             graph.lanes[lane.index() - 1].team != graph[lane].team;
  switch (graph[id].kind) {
    case TaskKind::Forward: mark = {0, 0}; return true;
    case TaskKind::Recompute: mark = {0, 1}; return true;
    case TaskKind::Backward: mark = {0, 2}; return true;
    case TaskKind::SwapIn: mark = {1, first_of_kind ? size_t{3} : size_t{4}}; return true;
    case TaskKind::SwapOut: mark = {2, first_of_kind ? size_t{5} : size_t{4}}; return true;
    default: return false;
  }
}

}  // namespace

std::vector<LayerTimeline> draw_timeline(const PackSteps& steps, const SimResult& simulation,
                                         size_t width) {
  const TaskGraph& graph = *steps.graph;
  Nanoseconds begin = 0, end = 0;
  for (size_t step = 0; step < std::min<size_t>(2, steps.begin.size() - 1); ++step) {
    begin = end;
    for (size_t i = steps.begin[step]; i < steps.begin[step + 1]; ++i)
      end = std::max(end, simulation.end[i]);
  }
  // Nanoseconds by team, line, part of the step and letter.
  const size_t teams = graph.teams.size();
  std::vector<std::array<Nanoseconds, kLetters.size()>> busy(teams * 3 * width);
  const auto length = std::max<Nanoseconds>(1, end - begin);
  const auto edge = [&](size_t part) {
    return begin + static_cast<Nanoseconds>(static_cast<double>(length) *
                                            static_cast<double>(part) / static_cast<double>(width));
  };
  for (size_t i = 0; i < graph.size(); ++i) {
    Mark mark;
    const TaskId id(i);
    if (!mark_of(graph, id, mark) || simulation.end[i] <= begin) continue;
    const size_t team = graph[graph.lanes_of(id).front()].team.index();
    const Nanoseconds from = std::max(begin, simulation.start[i]) - begin;
    for (auto part = static_cast<size_t>(static_cast<double>(from) * static_cast<double>(width) /
                                         static_cast<double>(length));
         part < width && edge(part) < simulation.end[i]; ++part) {
      const Nanoseconds shared =
          std::min(simulation.end[i], edge(part + 1)) - std::max(simulation.start[i], edge(part));
      busy[(team * 3 + mark.line) * width + part][mark.letter] += std::max<Nanoseconds>(0, shared);
    }
  }
  std::vector<LayerTimeline> result;
  for (size_t team = 0; team < teams; ++team) {
    LayerTimeline line{graph.memories[team].name, "", "", ""};
    for (size_t l = 0; l < 3; ++l)
      for (size_t part = 0; part < width; ++part) {
        const auto& shares = busy[(team * 3 + l) * width + part];
        Nanoseconds total = 0;
        for (Nanoseconds share : shares) total += share;
        const auto most = std::max_element(shares.begin(), shares.end()) - shares.begin();
        // Computing must fill half of a part to be seen, transfers an eighth.
        const bool idle = (l == 0 ? 2 : 8) * total < edge(part + 1) - edge(part);
        (l == 0   ? line.compute
         : l == 1 ? line.swap_in
                  : line.swap_out) += idle ? '.' : kLetters[static_cast<size_t>(most)];
      }
    result.push_back(std::move(line));
  }
  return result;
}

}  // namespace windlass
