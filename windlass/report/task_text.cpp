#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/report/labels.h"
#include "windlass/report/task_listing.h"

namespace windlass {
namespace {

class TaskText {
 public:
  explicit TaskText(const TaskListing& listing) : listing_(listing), graph_(listing.graph) {}

  std::string text() const {
    std::string text = places();
    text += fmt::format("\nbuffers: {}\n{}", graph_.buffers.size(), buffers().text("  "));
    text += fmt::format("\ntasks: {}\n", graph_.size());
    for (size_t i = 0; i < graph_.size(); ++i) text += task(TaskId(i));
    return text;
  }

 private:
  std::string places() const {
    Table table({Align::Left, Align::Left, Align::Left});
    for (const Memory& memory : graph_.memories)
      table.add({memory.name, "limit " + format_bytes(memory.limit), who(memory)});
    std::string text = fmt::format("memories: {}\n{}", graph_.memories.size(), table.text("  "));
    if (graph_.groups.empty()) return text;
    text += fmt::format("\ngroups of devices: {}\n", graph_.groups.size());
    for (size_t g = 0; g < graph_.groups.size(); ++g)
      text += fmt::format("  g{}  {}\n", g, device_names(graph_.groups[g]));
    return text;
  }
  std::string who(const Memory& memory) const {
    if (memory.team.valid()) return device_names(graph_[memory.team].devices);
    std::string names;
    for (NodeId host : memory.hosts)
      names += (names.empty() ? "" : " ") + listing_.machine[host].name;
    return names;
  }
  std::string device_names(const std::vector<DeviceId>& devices) const {
    std::string names;
    for (DeviceId device : devices)
      names += (names.empty() ? "" : " ") + listing_.machine[device].name;
    return names;
  }

  std::string tensor_name(TensorId id) const {
    return listing_.training && id.valid() ? (*listing_.training)[id].name : "";
  }
  std::string buffer_name(BufferId id) const {
    if (listing_.buffer_name) return listing_.buffer_name(id);
    const TensorId tensor = graph_[id].tensor;
    return tensor.valid() ? tensor_name(tensor) : "statistics";
  }
  std::string layout(int32_t index) const {
    return index < 0 ? "" : format_layout(graph_.layouts[static_cast<size_t>(index)]);
  }
  static std::string group(int32_t index) { return index < 0 ? "" : fmt::format("g{}", index); }
  // "2 members 4 apart": those that differ in these digits.
  std::string digits(int32_t set) const {
    if (set <= 0) return "nobody";
    std::string text;
    for (const MemberDigit& digit : graph_.digit_sets[static_cast<size_t>(set)])
      text += fmt::format("{}{} members{}", text.empty() ? "" : " x ", digit.parts,
                          digit.place == 1 ? "" : fmt::format(" {} apart", digit.place));
    return text;
  }

  Table buffers() const {
    Table table({Align::Left, Align::Left, Align::Left, Align::Left, Align::Right, Align::Left,
                 Align::Left});
    for (size_t i = 0; i < graph_.buffers.size(); ++i) {
      const Buffer& buffer = graph_.buffers[i];
      std::string what = buffer_name(BufferId(i));
      if (buffer.micro_batch >= 0) what += fmt::format(", micro-batch {}", buffer.micro_batch);
      std::string lies = layout(buffer.layout);
      if (buffer.group >= 0) lies += fmt::format(" over {}", group(buffer.group));
      if (buffer.team.valid()) lies += ", of " + team_label(graph_, buffer.team);
      if (buffer.share != 0) lies += fmt::format(", shared out to {}", digits(buffer.share));
      const char* lives = buffer.at_start ? (buffer.at_end ? "always" : "from the start")
                          : buffer.at_end ? "to the end"
                                          : "";
      table.add({fmt::format("b{}", i), graph_[buffer.memory].name,
                 std::string(buffer_kind_name(buffer.kind)), what,
                 fmt::format("{} B", buffer.bytes.value), lies, lives});
    }
    return table;
  }

  std::string task(TaskId id) const {
    const std::string label = fmt::format("t{}", id.value);
    const std::string indent(4 + label.size(), ' ');
    std::string text = fmt::format("  {}  {}\n{}{}\n", label, head(id), indent, place(id));
    if (graph_.uses_of(id).empty()) return text;
    Table table({Align::Left, Align::Left, Align::Left, Align::Left, Align::Left});
    for (const Use& use : graph_.uses_of(id))
      table.add({fmt::format("{} {}", use_kind_name(use.kind), use.index),
                 use.adds    ? "adds to"
                 : use.write ? "writes"
                             : "reads",
                 fmt::format("b{}", use.buffer.value), buffer_name(use.buffer), view(use.view)});
    return text + table.text(indent);
  }
  std::string name(TaskId id) const {
    if (listing_.task_name) return listing_.task_name(id);
    const Task& task = graph_[id];
    if (listing_.training && task.op.valid()) return (*listing_.training)[task.op].name;
    return tensor_name(task.tensor);
  }
  // What is done, of which micro-batch, by whom and how.
  std::string head(TaskId id) const {
    const Task& task = graph_[id];
    std::string text = (task.begins ? "begin of " : "") + std::string(task_kind_name(task.kind));
    if (const std::string subject = name(id); !subject.empty()) text += " " + subject;
    if (task.micro_batch >= 0) text += fmt::format(", micro-batch {}", task.micro_batch);
    if (task.group >= 0) text += ", by " + group(task.group);
    if (task.how >= 0) text += how(task);
    if (task.how == kFirstMember) text += ", by the first member";
    return text;
  }
  std::string how(const Task& task) const {
    const auto index = static_cast<size_t>(task.how);
    switch (task.kind) {
      case TaskKind::Forward:
      case TaskKind::Recompute:
      case TaskKind::Backward: return " split " + sharding(task, graph_.shardings[index]);
      case TaskKind::Norm:
      case TaskKind::Update:
      case TaskKind::HostUpdate: return task.how == 0 ? "" : ", shared out to " + digits(task.how);
      case TaskKind::Compress:
      case TaskKind::Decompress: return fmt::format(", {} bits an element", task.how);
      case TaskKind::SwapOut:
      case TaskKind::SwapIn: return ", shares of " + digits(task.how);
      default: return ", " + movement(graph_.movements[index]);
    }
  }
  std::string sharding(const Task& task, const Sharding& sharding) const {
    if (!listing_.training) return fmt::format("in {}", size_of(sharding));
    const Graph& training = *listing_.training;
    return format_sharding(sharding, loops_of(training, training[task.op]));
  }
  std::string movement(const Movement& movement) const {
    std::string text = movement.pairwise ? (movement.sums ? "pieces that are added up" : "pieces")
                                         : std::string(collective_name(movement.collective));
    if (movement.digits != 0) text += " among " + digits(movement.digits);
    if (movement.from_layout >= 0) text += " from " + layout(movement.from_layout);
    if (movement.to_layout >= 0) text += " to " + layout(movement.to_layout);
    if (movement.to_group != movement.from_group)
      text += fmt::format(" of {}", group(movement.to_group));
    return text;
  }

  // Lanes, predecessors and price.
  std::string place(TaskId id) const {
    std::string text;
    for (LaneId lane : graph_.lanes_of(id)) {
      text += fmt::format("{}{} {}", text.empty() ? "on " : " and ",
                          lane_kind_name(graph_[lane].kind), team_label(graph_, graph_[lane].team));
      if (graph_[lane].receiver.valid()) text += " > " + team_label(graph_, graph_[lane].receiver);
    }
    const char* separator = ", after ";
    for (TaskId before : graph_.predecessors_of(id)) {
      text += fmt::format("{}t{}", separator, before.value);
      separator = " ";
    }
    const auto price = static_cast<size_t>(graph_[id].price);
    return text + "; " +
           (moves(graph_[id].kind) ? cost(graph_.traffics[price]) : cost(graph_.works[price]));
  }
  static std::string cost(const Traffic& traffic) {
    if (traffic.loads.empty()) return "nothing moves";
    return fmt::format("{}, {} bytes from each", algorithm_name(traffic.algorithm),
                       traffic.volume.value);
  }
  static std::string cost(const Work& work) {
    if (work.kernels.empty()) return "no kernel";
    double products = 0, pointwise = 0;
    int64_t read = 0, written = 0;
    for (const Kernel& kernel : work.kernels) {
      products += kernel.multiply_adds;
      pointwise += kernel.pointwise;
      read += kernel.read.value;
      written += kernel.written.value;
    }
    std::string text;
    if (products > 0) text += fmt::format("{:.0f} multiply-adds, ", products);
    if (pointwise > 0) text += fmt::format("{:.0f} pointwise, ", pointwise);
    return text + fmt::format("{} bytes read, {} written", read, written);
  }
  std::string view(int32_t index) const {
    std::string text;
    for (; index >= 0; index = graph_.views[static_cast<size_t>(index)].of) {
      const View& view = graph_.views[static_cast<size_t>(index)];
      text = fmt::format(" as {} {}{}", tensor_name(view.tensor), layout(view.layout), text);
    }
    return text.empty() ? text : text.substr(1);
  }

  const TaskListing& listing_;
  const TaskGraph& graph_;
};

}  // namespace

std::string tasks_text(const TaskListing& listing) { return TaskText(listing).text(); }

}  // namespace windlass
