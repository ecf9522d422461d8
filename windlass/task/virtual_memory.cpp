// Tasks are taken in the order of their ids, which is the order of their lanes. One pass without
// output finds what is on the devices when a step ends; the second one starts from there.

#include "windlass/task/virtual_memory.h"

#include <algorithm>
#include <list>
#include <map>

#include "windlass/base/error.h"

namespace windlass {
namespace {

class Pager {
 public:
  Pager(const TaskGraph& graph, const Machine& machine, Bytes reserve)
      : graph_(graph), machine_(machine), reserve_(reserve.value) {
    last_use_.assign(graph.buffers.size(), -1);
    for (size_t i = 0; i < graph.size(); ++i)
      for (const Use& use : graph.uses_of(TaskId(i)))
        last_use_[use.buffer.index()] = static_cast<int32_t>(i);
  }

  TaskGraph run() {
    pages_.assign(graph_.buffers.size(), {});
    memories_.assign(graph_.memories.size(), {});
    walk(false);
    // A new step: what is left over is where it is, everything else is gone.
    for (size_t b = 0; b < pages_.size(); ++b) {
      Page& page = pages_[b];
      const bool stays = page.resident;
      page = {};
      page.resident = stays;
    }
    out_ = graph_;
    out_.clear_tasks();
    out_.views = graph_.views;
    walk(true);
    share_links(out_, machine_);
    return std::move(out_);
  }

 private:
  struct Page {
    bool resident = false;
    bool known = false;    // has an instance or a host copy in this step
    bool on_host = false;  // written back in this step
    BufferId instance;     // in the new graph
    BufferId host;
    TaskId ready;  // task that brought it in
    TaskId user;   // last task that used it
    TaskId out;    // task that wrote it back
    std::list<int32_t>::iterator place;
    bool listed = false;
  };
  struct Residents {
    std::list<int32_t> order;  // least recently used first
    int64_t bytes = 0;
  };

  bool paged(BufferId id) const { return graph_[graph_[id].memory].team.valid(); }
  int64_t room(MemoryId id) const { return graph_[id].limit.value - reserve_; }

  void walk(bool emit) {
    for (auto& memory : memories_) memory.bytes = 0, memory.order.clear();
    for (size_t b = 0; b < pages_.size(); ++b) {
      Page& page = pages_[b];
      page.listed = false;
      if (page.resident && graph_.buffers[b].at_start) {
        list(static_cast<int32_t>(b));
        if (emit) {
          page.instance = out_.add(device_copy(b, true));
          page.known = true;
        }
      } else {
        page.resident = false;
      }
    }
    if (emit)
      for (size_t b = 0; b < pages_.size(); ++b)
        if (!paged(BufferId(b))) pages_[b].instance = out_.add(graph_.buffers[b]);
    new_id_.assign(graph_.size(), {});
    for (size_t i = 0; i < graph_.size(); ++i) step(TaskId(i), emit);
    if (emit) finish();
  }

  static std::vector<Use> copy(BufferId from, BufferId to) {
    return {{.buffer = from, .kind = UseKind::From},
            {.buffer = to, .write = true, .kind = UseKind::To}};
  }

  Buffer device_copy(size_t b, bool at_start) const {
    Buffer copy = graph_.buffers[b];
    copy.at_start = at_start;
    copy.at_end = false;
    return copy;
  }

  void list(int32_t b) {
    Residents& memory = memories_[graph_.buffers[static_cast<size_t>(b)].memory.index()];
    Page& page = pages_[static_cast<size_t>(b)];
    page.place = memory.order.insert(memory.order.end(), b);
    page.listed = true;
    memory.bytes += graph_.buffers[static_cast<size_t>(b)].bytes.value;
  }

  void drop(int32_t b) {
    Residents& memory = memories_[graph_.buffers[static_cast<size_t>(b)].memory.index()];
    Page& page = pages_[static_cast<size_t>(b)];
    memory.order.erase(page.place);
    page.listed = false;
    page.resident = false;
    memory.bytes -= graph_.buffers[static_cast<size_t>(b)].bytes.value;
  }

  LaneId swap_lane(TeamId team, LaneKind kind) {
    for (size_t l = 0; l < out_.lanes.size(); ++l)
      if (out_.lanes[l].kind == kind && out_.lanes[l].team == team) return LaneId(l);
    out_.lanes.push_back({kind, team, {}});
    return LaneId(out_.lanes.size() - 1);
  }

  int32_t traffic(TeamId team, Bytes bytes, bool to_host) {
    const auto [entry, fresh] = traffics_.try_emplace({team.value, bytes.value, to_host}, -1);
    if (fresh) {
      std::vector<Copy> copies;
      for (DeviceId device : graph_[team].devices) {
        const EndpointId at = machine_[device].endpoint;
        const EndpointId host = machine_[machine_[device].node].endpoint;
        copies.push_back(to_host ? Copy{at, host, bytes} : Copy{host, at, bytes});
      }
      entry->second = static_cast<int32_t>(out_.traffics.size());
      out_.traffics.push_back(plan_copies(machine_, copies));
    }
    return entry->second;
  }

  MemoryId host_of(TeamId team) const {
    const NodeId node = machine_[graph_[team].devices[0]].node;
    for (size_t m = 0; m < graph_.memories.size(); ++m)
      if (std::ranges::find(graph_.memories[m].hosts, node) != graph_.memories[m].hosts.end())
        return MemoryId(m);
    return {};
  }

  BufferId host_copy(int32_t b) {
    Page& page = pages_[static_cast<size_t>(b)];
    if (!page.host.valid()) {
      Buffer copy = graph_.buffers[static_cast<size_t>(b)];
      const TeamId team = graph_[copy.memory].team;
      copy.memory = host_of(team);
      copy.team = team;
      int64_t members = 0;
      for (DeviceId device : graph_[team].devices)
        members += machine_[device].node == machine_[graph_[team].devices[0]].node ? 1 : 0;
      copy.bytes = Bytes(copy.bytes.value * members);
      copy.kind = BufferKind::Stash;
      page.host = out_.add(copy);
    }
    return page.host;
  }

  void evict(int32_t b, bool emit) {
    Page& page = pages_[static_cast<size_t>(b)];
    const bool dead =
        last_use_[static_cast<size_t>(b)] < now_ && !graph_.buffers[static_cast<size_t>(b)].at_end;
    if (emit && !dead) {
      const Buffer& buffer = graph_.buffers[static_cast<size_t>(b)];
      const TeamId team = graph_[buffer.memory].team;
      const LaneId lane = swap_lane(team, LaneKind::SwapOut);
      std::vector<TaskId> after;
      for (TaskId task : {page.user, page.ready})
        if (task.valid()) after.push_back(task);
      const std::vector<Use> uses = copy(page.instance, host_copy(b));
      page.out = out_.add({.kind = TaskKind::SwapOut,
                           .price = traffic(team, buffer.bytes, true),
                           .micro_batch = buffer.micro_batch,
                           .op = {},
                           .tensor = buffer.tensor},
                          std::span(&lane, 1), after, uses);
    }
    page.on_host = true;
    drop(b);
  }

  // Brings the buffers of a task in, least recently used ones out.
  void step(TaskId id, bool emit) {
    now_ = id.value;
    const auto uses = graph_.uses_of(id);
    for (const Use& use : uses) {
      if (!paged(use.buffer)) continue;
      Page& page = pages_[use.buffer.index()];
      if (page.listed) {
        // Most recently used: the last of the order.
        auto& order = memories_[graph_[use.buffer].memory.index()].order;
        order.splice(order.end(), order, page.place);
      }
    }
    for (const Use& use : uses) {
      if (!paged(use.buffer) || pages_[use.buffer.index()].listed) continue;
      make_room(id, use.buffer, emit);
      bring_in(id, use.buffer, emit);
    }
    if (emit) add(id);
    for (const Use& use : uses) {
      if (!paged(use.buffer)) continue;
      const bool dead = last_use_[use.buffer.index()] == id.value && !graph_[use.buffer].at_end;
      if (dead && pages_[use.buffer.index()].listed) drop(use.buffer.value);
    }
  }

  void make_room(TaskId id, BufferId buffer, bool emit) {
    const MemoryId memory = graph_[buffer].memory;
    Residents& residents = memories_[memory.index()];
    const auto uses = graph_.uses_of(id);
    const auto in_use = [&](int32_t b) {
      return std::ranges::any_of(uses, [&](const Use& use) { return use.buffer.value == b; });
    };
    while (residents.bytes + graph_[buffer].bytes.value > room(memory)) {
      const auto victim =
          std::ranges::find_if(residents.order, [&](int32_t b) { return !in_use(b); });
      if (victim == residents.order.end())
        fail_input("{}: one task alone needs more than the {} that paging has on this device",
                   graph_[memory].name, format_bytes(Bytes(room(memory))));
      evict(*victim, emit);
    }
  }

  void bring_in(TaskId id, BufferId buffer, bool emit) {
    Page& page = pages_[buffer.index()];
    const bool has_content = page.on_host || (graph_[buffer].at_start && !page.known);
    page.resident = true;
    list(buffer.value);
    if (!emit) {
      page.known = true;
      return;
    }
    page.known = true;
    page.instance = out_.add(device_copy(buffer.index(), false));
    page.ready = {};
    if (!has_content) return;
    // A fault: the copy starts when the lane has come to the task.
    const TeamId team = graph_[graph_[buffer].memory].team;
    const LaneId lane = swap_lane(team, LaneKind::SwapIn);
    std::vector<TaskId> after;
    if (page.out.valid()) after.push_back(page.out);
    for (LaneId l : graph_.lanes_of(id))
      if (l.index() < last_on_lane_.size() && last_on_lane_[l.index()].valid())
        after.push_back(last_on_lane_[l.index()]);
    const std::vector<Use> uses = copy(host_copy(buffer.value), page.instance);
    page.ready = out_.add({.kind = TaskKind::SwapIn,
                           .price = traffic(team, graph_[buffer].bytes, false),
                           .micro_batch = graph_[buffer].micro_batch,
                           .op = {},
                           .tensor = graph_[buffer].tensor},
                          std::span(&lane, 1), after, uses);
  }

  void add(TaskId id) {
    std::vector<TaskId> after;
    for (TaskId before : graph_.predecessors_of(id)) after.push_back(new_id_[before.index()]);
    std::vector<Use> uses;
    for (const Use& use : graph_.uses_of(id)) {
      const Page& page = pages_[use.buffer.index()];
      uses.push_back(use);
      uses.back().buffer = page.instance;
      if (page.ready.valid()) after.push_back(page.ready);
    }
    std::ranges::sort(after);
    after.erase(std::unique(after.begin(), after.end()), after.end());
    const TaskId made = out_.add(graph_[id], graph_.lanes_of(id), after, uses);
    new_id_[id.index()] = made;
    last_on_lane_.resize(std::max(last_on_lane_.size(), graph_.lanes.size()));
    for (LaneId lane : graph_.lanes_of(id)) last_on_lane_[lane.index()] = made;
    for (const Use& use : graph_.uses_of(id)) pages_[use.buffer.index()].user = made;
  }

  void finish() {
    for (size_t b = 0; b < pages_.size(); ++b)
      if (paged(BufferId(b)) && pages_[b].listed && graph_.buffers[b].at_end)
        out_.buffers[pages_[b].instance.index()].at_end = true;
  }

  const TaskGraph& graph_;
  const Machine& machine_;
  int64_t reserve_;
  std::vector<int32_t> last_use_;  // by buffer: task
  std::vector<Page> pages_;        // by buffer
  std::vector<Residents> memories_;
  std::vector<TaskId> new_id_;
  std::vector<TaskId> last_on_lane_;
  std::map<std::tuple<int32_t, int64_t, bool>, int32_t> traffics_;
  TaskGraph out_;
  int32_t now_ = 0;
};

}  // namespace

TaskGraph page_on_demand(const TaskGraph& graph, const Machine& machine, Bytes reserve) {
  return Pager(graph, machine, reserve).run();
}

}  // namespace windlass
