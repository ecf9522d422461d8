#include <algorithm>

#include <nlohmann/json.hpp>

#include "windlass/report/task_listing.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

class TaskJson {
 public:
  explicit TaskJson(const TaskListing& listing) : listing_(listing), graph_(listing.graph) {}

  ordered_json json() const {
    ordered_json memories = ordered_json::array(), teams = ordered_json::array(),
                 groups = ordered_json::array(), buffers = ordered_json::array(),
                 tasks = ordered_json::array();
    for (const Memory& memory : graph_.memories)
      memories.push_back({{"name", memory.name}, {"limit_bytes", memory.limit.value}});
    for (const Team& team : graph_.teams)
      teams.push_back({{"devices", devices(team.devices)}, {"memory", team.memory.value}});
    for (const auto& group : graph_.groups) groups.push_back(devices(group));
    for (size_t i = 0; i < graph_.buffers.size(); ++i) buffers.push_back(buffer(BufferId(i)));
    for (size_t i = 0; i < graph_.size(); ++i) tasks.push_back(task(TaskId(i)));
    return {{"teams", std::move(teams)},
            {"memories", std::move(memories)},
            {"groups", std::move(groups)},
            {"buffers", std::move(buffers)},
            {"tasks", std::move(tasks)}};
  }

 private:
  ordered_json devices(const std::vector<DeviceId>& ids) const {
    ordered_json names = ordered_json::array();
    for (DeviceId id : ids) names.push_back(listing_.machine[id].name);
    return names;
  }
  static ordered_json or_null(int32_t value) {
    return value < 0 ? ordered_json() : ordered_json(value);
  }
  ordered_json tensor(TensorId id) const {
    if (!listing_.training || !id.valid()) return {};
    return (*listing_.training)[id].name;
  }
  ordered_json digits(int32_t set) const {
    ordered_json list = ordered_json::array();
    if (set <= 0) return list;  // nobody
    for (const MemberDigit& digit : graph_.digit_sets[static_cast<size_t>(set)])
      list.push_back({{"place", digit.place}, {"parts", digit.parts}});
    return list;
  }
  ordered_json layout(int32_t layout) const {
    if (layout < 0) return {};
    ordered_json list = ordered_json::array();
    for (const Digit& digit : graph_.layouts[static_cast<size_t>(layout)].digits) {
      ordered_json json = {{"kind", kind_name(digit)}, {"parts", digit.parts}};
      if (digit.kind == Digit::Kind::Axis) {
        json["axis"] = digit.axis;
        json["loop_size"] = digit.loop_size;
        json["blocks"] = digit.blocks;
        json["stride"] = digit.map.stride;
        json["offset"] = digit.map.offset;
        json["window"] = digit.map.window;
        json["tail"] = digit.tail;
        if (!digit.sizes.empty()) json["sizes"] = digit.sizes;
      }
      list.push_back(std::move(json));
    }
    return list;
  }
  static const char* kind_name(const Digit& digit) {
    if (digit.kind == Digit::Kind::Copy) return "copy";
    if (digit.kind == Digit::Kind::Axis) return "axis";
    return digit.combine == CombineFn::Sum   ? "sum"
           : digit.combine == CombineFn::Max ? "maximum"
                                             : "minimum";
  }

  ordered_json buffer(BufferId id) const {
    const Buffer& buffer = graph_[id];
    return {{"name",
             listing_.buffer_name ? ordered_json(listing_.buffer_name(id)) : tensor(buffer.tensor)},
            {"kind", buffer_kind_name(buffer.kind)},
            {"memory", buffer.memory.value},
            {"bytes", buffer.bytes.value},
            {"micro_batch", or_null(buffer.micro_batch)},
            {"group", or_null(buffer.group)},
            {"team", or_null(buffer.team.value)},
            {"layout", layout(buffer.layout)},
            {"share", digits(buffer.share)},
            {"at_start", buffer.at_start},
            {"at_end", buffer.at_end}};
  }

  ordered_json task(TaskId id) const {
    const Task& task = graph_[id];
    ordered_json json = {{"kind", task_kind_name(task.kind)}};
    if (task.begins) json["begins"] = true;
    if (listing_.task_name) json["name"] = listing_.task_name(id);
    if (listing_.training && task.op.valid()) json["op"] = (*listing_.training)[task.op].name;
    if (task.tensor.valid()) json["tensor"] = tensor(task.tensor);
    json["micro_batch"] = or_null(task.micro_batch);
    json["group"] = or_null(task.group);
    if (task.how >= 0) how(task, json);
    if (task.how == kFirstMember) json["first_member"] = true;
    json["lanes"] = lanes(id);
    json["after"] = ordered_json::array();
    for (TaskId before : graph_.predecessors_of(id)) json["after"].push_back(before.value);
    json["uses"] = ordered_json::array();
    for (const Use& use : graph_.uses_of(id)) json["uses"].push_back(this->use(use));
    const auto price = static_cast<size_t>(task.price);
    if (moves(task.kind))
      json["traffic"] = traffic(graph_.traffics[price]);
    else
      json["work"] = work(graph_.works[price]);
    return json;
  }
  void how(const Task& task, ordered_json& json) const {
    const auto index = static_cast<size_t>(task.how);
    switch (task.kind) {
      case TaskKind::Forward:
      case TaskKind::Recompute:
      case TaskKind::Backward: json["sharding"] = sharding(graph_.shardings[index]); break;
      case TaskKind::Norm:
      case TaskKind::Update:
      case TaskKind::HostUpdate: json["share"] = digits(task.how); break;
      case TaskKind::Compress:
      case TaskKind::Decompress: json["bits"] = task.how; break;
      case TaskKind::SwapOut:
      case TaskKind::SwapIn: json["share"] = digits(task.how); break;
      default: json["movement"] = movement(graph_.movements[index]);
    }
  }
  static ordered_json sharding(const Sharding& sharding) {
    ordered_json list = ordered_json::array();
    for (const Split& split : sharding.splits) {
      list.push_back(
          {{"loop", or_null(split.loop)}, {"parts", split.parts}, {"blocks", split.blocks}});
      if (!split.sizes.empty()) list.back()["sizes"] = split.sizes;
    }
    return list;
  }
  ordered_json movement(const Movement& movement) const {
    return {{"collective", movement.pairwise ? ordered_json()
                                             : ordered_json(collective_name(movement.collective))},
            {"sums", movement.sums},
            {"digits", digits(movement.digits)},
            {"from_group", or_null(movement.from_group)},
            {"to_group", or_null(movement.to_group)},
            {"from_layout", layout(movement.from_layout)},
            {"to_layout", layout(movement.to_layout)}};
  }
  ordered_json lanes(TaskId id) const {
    ordered_json list = ordered_json::array();
    for (LaneId lane : graph_.lanes_of(id)) {
      ordered_json json = {{"kind", lane_kind_name(graph_[lane].kind)},
                           {"team", or_null(graph_[lane].team.value)}};
      if (graph_[lane].receiver.valid()) json["receiver"] = graph_[lane].receiver.value;
      list.push_back(std::move(json));
    }
    return list;
  }
  ordered_json use(const Use& use) const {
    ordered_json json = {{"buffer", use.buffer.value},
                         {"as", use_kind_name(use.kind)},
                         {"index", use.index},
                         {"write", use.write},
                         {"adds", use.adds}};
    for (int32_t v = use.view; v >= 0; v = graph_.views[static_cast<size_t>(v)].of) {
      const View& view = graph_.views[static_cast<size_t>(v)];
      json["views"].push_back({{"tensor", tensor(view.tensor)}, {"layout", layout(view.layout)}});
    }
    return json;
  }
  static ordered_json traffic(const Traffic& traffic) {
    return {{"algorithm", algorithm_name(traffic.algorithm)},
            {"latency_s", traffic.latency.value},
            {"bytes", traffic.volume.value}};
  }
  static ordered_json work(const Work& work) {
    ordered_json kernels = ordered_json::array();
    for (const Kernel& kernel : work.kernels)
      kernels.push_back({{"multiply_adds", kernel.multiply_adds},
                         {"pointwise", kernel.pointwise},
                         {"read_bytes", kernel.read.value},
                         {"written_bytes", kernel.written.value}});
    return kernels;
  }

  const TaskListing& listing_;
  const TaskGraph& graph_;
};

}  // namespace

ordered_json tasks_json(const TaskListing& listing) { return TaskJson(listing).json(); }

}  // namespace windlass
