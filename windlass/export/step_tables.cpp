// A simulated step as CSV, DOT and allocations.

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/export/exporters.h"

namespace windlass {
namespace {

// A cell of CSV: in quotes where it has to be. What a spreadsheet would take for a formula begins
// with an apostrophe.
std::string csv_cell(std::string text) {
  if (!text.empty() && std::string_view("=+-@").find(text[0]) != std::string_view::npos)
    text.insert(0, "'");
  if (text.find_first_of(",\"\n\r") == std::string::npos) return text;
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"') quoted += '"';
    quoted += c;
  }
  return quoted + "\"";
}

std::string dot_text(std::string_view text) {
  std::string quoted;
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += static_cast<unsigned char>(c) < 32 ? ' ' : c;
  }
  return quoted;
}

std::string name_of_task(const TaskGraph& graph, const Graph& training, TaskId id) {
  const Task& task = graph[id];
  if (task.op.valid()) return training[task.op].name;
  if (task.tensor.valid()) return training[task.tensor].name;
  return "";
}

// Addresses of one memory: holes are filled by first fit.
class Addresses {
 public:
  int64_t take(int64_t bytes) {
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second < bytes) continue;
      const auto [address, size] = *hole;
      holes_.erase(hole);
      if (size > bytes) holes_[address + bytes] = size - bytes;
      return address;
    }
    const int64_t address = end_;
    end_ += bytes;
    return address;
  }
  void give(int64_t address, int64_t bytes) {
    auto next = holes_.lower_bound(address);
    if (next != holes_.end() && next->first == address + bytes) {
      bytes += next->second;
      next = holes_.erase(next);
    }
    if (next != holes_.begin()) {
      const auto before = std::prev(next);
      if (before->first + before->second == address) {
        before->second += bytes;
        return;
      }
    }
    holes_[address] = bytes;
  }
  int64_t end() const { return end_; }
  const std::map<int64_t, int64_t>& holes() const { return holes_; }

 private:
  std::map<int64_t, int64_t> holes_;
  int64_t end_ = 0;
};

}  // namespace

std::string tasks_csv(const SimulatedStep& step, const Graph& training) {
  const TaskGraph& graph = step.tasks;
  std::string text = "task,kind,name,micro_batch,memory,lanes,start_s,end_s\n";
  for (size_t i = 0; i < graph.size(); ++i) {
    std::string lanes, memory;
    for (LaneId lane : graph.lanes_of(TaskId(i))) {
      lanes += (lanes.empty() ? "" : " ") + std::string(lane_kind_name(graph[lane].kind));
      if (memory.empty() && graph[lane].team.valid())
        memory = graph[graph[graph[lane].team].memory].name;
    }
    const SimResult& result = step.whole();
    text +=
        fmt::format("{},{},{},{},{},{},{:.9f},{:.9f}\n", i, task_kind_name(graph.tasks[i].kind),
                    csv_cell(name_of_task(graph, training, TaskId(i))), graph.tasks[i].micro_batch,
                    csv_cell(memory), csv_cell(lanes), static_cast<double>(result.start[i]) * 1e-9,
                    static_cast<double>(result.end[i]) * 1e-9);
  }
  return text;
}

std::string strategy_dot(const TrainingGraph& training, const Strategy& strategy) {
  if (strategy.packs) fail_unsupported("--to dot: packs of layers decide nothing for single ops");
  const Graph& graph = training.graph;
  std::map<OpId, MemoryAction> actions;
  for (size_t s = 0; s < strategy.saved.size(); ++s)
    if (const OpId producer = training.saved[s].producer; producer.valid())
      actions[producer] = std::max(actions[producer], strategy.saved[s]);
  const std::vector<int32_t> stages = stage_of_ops(strategy, training.forward_ops);
  std::string text = "digraph plan {\n  node [shape=box, style=filled, colorscheme=set312];\n";
  for (size_t i = 0; i < training.forward_ops; ++i) {
    const Op& op = graph.ops[i];
    Sharding sharding = strategy.shardings[static_cast<size_t>(strategy.ops[i])];
    std::erase_if(sharding.splits, [](const Split& split) { return split.parts == 1; });
    const std::string split =
        sharding.splits.empty() ? "whole" : format_sharding(sharding, loops_of(graph, op));
    const auto action = actions.find(OpId(i));
    text += fmt::format(
        "  op{} [label=\"{}\\n{} {}{}\", fillcolor={}];\n", i, dot_text(op.name),
        op_info(op.kind).name, dot_text(split),
        action == actions.end() ? "" : fmt::format("\\n{}", action_name(action->second)),
        stages[i] % 12 + 1);
    std::set<int64_t> from;
    for (TensorId id : op.inputs)
      if (id.valid() && graph[id].producer.valid()) from.insert(graph[id].producer.value);
    for (int64_t producer : from) text += fmt::format("  op{} -> op{};\n", producer, i);
  }
  return text + "}\n";
}

std::string memory_snapshot(const SimulatedStep& step, const Graph& training) {
  using nlohmann::ordered_json;
  const TaskGraph& graph = step.tasks;
  const SimResult& result = step.whole();
  struct Event {
    Nanoseconds time;
    bool alloc;
    size_t buffer;
  };
  std::vector<Nanoseconds> begin(graph.buffers.size(), -1), end(graph.buffers.size(), -1);
  for (size_t i = 0; i < graph.size(); ++i) {
    if (result.end[i] < 0) continue;
    for (const Use& use : graph.uses_of(TaskId(i))) {
      Nanoseconds& first = begin[use.buffer.index()];
      if (first < 0 || result.start[i] < first) first = result.start[i];
      end[use.buffer.index()] = std::max(end[use.buffer.index()], result.end[i]);
    }
  }
  ordered_json segments = ordered_json::array(), traces = ordered_json::array();
  int device = 0;
  for (size_t m = 0; m < graph.memories.size(); ++m) {
    if (!graph.memories[m].team.valid()) continue;
    std::vector<Event> events;
    for (size_t b = 0; b < graph.buffers.size(); ++b) {
      const Buffer& buffer = graph.buffers[b];
      if (buffer.memory.index() != m || buffer.bytes.value <= 0) continue;
      if (!buffer.at_start && begin[b] < 0) continue;
      events.push_back({buffer.at_start ? -1 : begin[b], true, b});
      if (!buffer.at_end && end[b] >= 0) events.push_back({end[b], false, b});
    }
    // What is given back makes room for what is taken at the same moment.
    std::ranges::stable_sort(events, [](const Event& x, const Event& y) {
      return std::pair(x.time, x.alloc) < std::pair(y.time, y.alloc);
    });
    Addresses addresses;
    std::map<size_t, int64_t> live;
    ordered_json trace = ordered_json::array();
    const int64_t base = int64_t{1} << 40;
    const auto add = [&](std::string_view action, const Event& event) {
      const Buffer& buffer = graph.buffers[event.buffer];
      ordered_json frames = ordered_json::array();
      frames.push_back({{"filename", std::string(buffer_kind_name(buffer.kind))},
                        {"line", event.buffer},
                        {"name", buffer.tensor.valid() ? training[buffer.tensor].name
                                                       : std::string("statistics")}});
      trace.push_back({{"action", action},
                       {"addr", base + live[event.buffer]},
                       {"size", buffer.bytes.value},
                       {"stream", 0},
                       {"time_us", std::max<Nanoseconds>(0, event.time) / 1000},
                       {"frames", std::move(frames)}});
    };
    for (const Event& event : events) {
      const int64_t bytes = graph.buffers[event.buffer].bytes.value;
      if (event.alloc) {
        live[event.buffer] = addresses.take(bytes);
        add("alloc", event);
      } else {
        add("free_requested", event);
        add("free_completed", event);
        addresses.give(live[event.buffer], bytes);
        live.erase(event.buffer);
      }
    }
    std::map<int64_t, std::pair<int64_t, bool>> blocks;  // address: bytes, whether they are used
    for (const auto& [address, bytes] : addresses.holes()) blocks[address] = {bytes, false};
    int64_t active = 0;
    for (const auto& [buffer, address] : live) {
      blocks[address] = {graph.buffers[buffer].bytes.value, true};
      active += graph.buffers[buffer].bytes.value;
    }
    ordered_json tiles = ordered_json::array();
    for (const auto& [address, block] : blocks)
      tiles.push_back({{"address", base + address},
                       {"size", block.first},
                       {"requested_size", block.first},
                       {"state", block.second ? "active_allocated" : "inactive"},
                       {"frames", ordered_json::array()}});
    segments.push_back({{"device", device},
                        {"address", base},
                        {"total_size", addresses.end()},
                        {"allocated_size", active},
                        {"active_size", active},
                        {"requested_size", active},
                        {"stream", 0},
                        {"segment_type", "large"},
                        {"segment_pool_id", {0, 0}},
                        {"is_expandable", false},
                        {"frames", ordered_json::array()},
                        {"blocks", std::move(tiles)}});
    ordered_json all = ordered_json::array();
    all.push_back({{"action", "segment_alloc"},
                   {"addr", base},
                   {"size", addresses.end()},
                   {"stream", 0},
                   {"time_us", 0},
                   {"frames", ordered_json::array()}});
    for (ordered_json& entry : trace) all.push_back(std::move(entry));
    traces.push_back(std::move(all));
    ++device;
  }
  const ordered_json json = {{"segments", segments}, {"device_traces", traces}};
  return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

}  // namespace windlass
