#include "windlass/report/labels.h"

#include <array>
#include <cmath>

#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/base/units.h"

namespace windlass {

std::string task_subject(const TaskGraph& graph, const Graph* training, TaskId id) {
  const Task& task = graph[id];
  if (training && task.op.valid()) return (*training)[task.op].name;
  if (training && task.tensor.valid()) return (*training)[task.tensor].name;
  return fmt::format("task {}", id.value);
}

std::string task_label(const TaskGraph& graph, const Graph* training, TaskId id) {
  const Task& task = graph[id];
  const std::string_view kind = task_kind_name(task.kind);
  std::string subject = task_subject(graph, training, id);
  // Backward and update ops have names that say so already.
  if (subject.size() > kind.size() && subject.ends_with(fmt::format(".{}", kind)))
    subject.resize(subject.size() - kind.size() - 1);
  std::string text = fmt::format("{}{} {}", task.begins ? "begin of " : "", kind, subject);
  if (task.micro_batch >= 0) text += fmt::format(" (micro-batch {})", task.micro_batch);
  return text;
}

std::string buffer_label(const TaskGraph& graph, const Graph* training, BufferId id) {
  const TensorId tensor = graph[id].tensor;
  if (training && tensor.valid()) return (*training)[tensor].name;
  return fmt::format("buffer {}", id.value);
}

std::string pack_label(const PackLabel& label) {
  constexpr std::array kNames = {"weights",  "gradients", "optimizer state", "shares", "input",
                                 "gradient", "saved"};
  std::string text =
      fmt::format("{} of {}", kNames[static_cast<size_t>(label.what)], layers_text(label.layers));
  if (label.parts > 1) text += fmt::format(", part {} of {}", label.part + 1, label.parts);
  if (label.end > label.begin) text += fmt::format(", samples {}-{}", label.begin, label.end - 1);
  return text;
}

std::string numbers_folded(std::string_view name) {
  std::string folded;
  for (std::string_view part : split(name, '.')) {
    if (!folded.empty()) folded += '.';
    const bool number = part.find_first_not_of("0123456789") == std::string_view::npos;
    folded += number && !part.empty() ? "*" : part;
  }
  return folded;
}

std::string team_label(const TaskGraph& graph, TeamId team) {
  return team.valid() ? graph[graph[team].memory].name : "host";
}

std::string rate_label(double rate) {
  constexpr double kWhole = 9999.5, kMost = 1e18;  // from where on four digits are not all
  if (rate < kWhole || rate >= kMost) return fmt::format("{:.4g}", rate);
  return format_integer(std::llround(rate));
}

std::string lane_label(const TaskGraph& graph, LaneId id) {
  const Lane& lane = graph[id];
  std::string label(lane_kind_name(lane.kind));
  if (lane.receiver.valid()) label += " to " + team_label(graph, lane.receiver);
  return label;
}

std::string direction_label(const Machine& machine, const LinkDirection& direction) {
  const Link& link = machine[direction.link];
  const std::string& a = machine[link.a].name;
  const std::string& b = machine[link.b].name;
  // Links without a name of their own are called after their ends.
  const std::string name = link.name == a + "-" + b ? "" : link.name + " ";
  if (!link.full_duplex) return fmt::format("{}{} - {}", name, a, b);
  return direction.forward ? fmt::format("{}{} > {}", name, a, b)
                           : fmt::format("{}{} > {}", name, b, a);
}

std::string link_label(const Machine& machine, const SharedLink& link) {
  if (link.directions.empty()) return "link";
  std::string text = direction_label(machine, link.directions.front());
  if (link.directions.size() > 1) text += fmt::format(" and {} alike", link.directions.size() - 1);
  return text;
}

}  // namespace windlass
