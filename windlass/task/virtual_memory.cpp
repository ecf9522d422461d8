// Tasks are taken in the order of their ids, which is the order of their lanes. Steps without
// output are walked over until one ends with the pages on the devices that it began with; the last
// walk writes the graph.

#include "windlass/task/virtual_memory.h"

#include <algorithm>
#include <list>
#include <map>
#include <set>
#include <tuple>

#include "windlass/base/error.h"
#include "windlass/task/holdings.h"

namespace windlass {
namespace {

class Pager {
 public:
  Pager(const TaskGraph& graph, const Machine& machine) : graph_(graph), machine_(machine) {
    last_use_.assign(graph.buffers.size(), -1);
    for (size_t i = 0; i < graph.size(); ++i)
      for (const Use& use : graph.uses_of(TaskId(i)))
        last_use_[use.buffer.index()] = static_cast<int32_t>(i);
    memories_.resize(graph.memories.size());
  }

  TaskGraph run() {
    // Pages at rest mostly are the same from the second step on. Where they are not, the step ends
    // with bringing them to where it began.
    constexpr int kSteps = 8;
    for (int step = 0; step < kSteps; ++step) {
      const std::vector<int32_t> before = at_rest_;
      begin();
      for (size_t i = 0; i < graph_.size(); ++i) visit(TaskId(i));
      at_rest_ = resting();
      if (at_rest_ == before) break;
    }
    out_ = graph_;
    out_.clear_tasks();
    out_.views = graph_.views;
    emit_ = true;
    begin();
    for (size_t b = 0; b < pages_.size(); ++b)
      if (!paged(BufferId(b))) pages_[b].instance = out_.add(graph_.buffers[b]);
    for (size_t i = 0; i < graph_.size(); ++i) visit(TaskId(i));
    finish();
    share_links(out_, machine_);
    return std::move(out_);
  }

 private:
  struct Page {
    bool rests = false;  // on the device between steps
    bool resident = false;
    bool written = false;  // has content in this step
    int32_t layout = -1;
    BufferId first;     // of a page that rests: where the step finds it
    BufferId instance;  // in the new graph
    BufferId host;
    TaskId ready;  // task that brought it in
    TaskId user;   // last task that used it
    TaskId out;    // task that wrote it back
    std::list<int32_t>::iterator place;
  };
  struct Residents {
    std::list<int32_t> order;  // least recently used first
    int64_t bytes = 0;
    TaskId last;  // that used it
  };

  bool paged(BufferId id) const { return graph_[graph_[id].memory].team.valid(); }
  // A quarter of a device, and at most 64 MiB, is left for workspace.
  int64_t room(MemoryId id) const {
    constexpr int64_t kReserve = 64 << 20;
    const int64_t limit = graph_[id].limit.value;
    return limit - std::min(kReserve, limit / 4);
  }
  Page& page_of(int32_t b) { return pages_[static_cast<size_t>(b)]; }
  const Buffer& buffer_of(int32_t b) const { return graph_.buffers[static_cast<size_t>(b)]; }
  Residents& memory_of(int32_t b) { return memories_[buffer_of(b).memory.index()]; }

  void begin() {
    for (auto& memory : memories_) memory = {};
    pages_.assign(graph_.buffers.size(), {});
    for (size_t b = 0; b < pages_.size(); ++b) {
      pages_[b].layout = graph_.buffers[b].layout;
      pages_[b].written = graph_.buffers[b].at_start;
    }
    for (int32_t b : at_rest_) {
      Page& page = page_of(b);
      page.rests = true;
      list(b);
      if (emit_) page.first = page.instance = add_instance(b);
    }
    new_id_.assign(graph_.size(), {});
    last_on_lane_.assign(graph_.lanes.size(), {});
  }

  // Pages that are on a device when a step has ended, least recently used first.
  std::vector<int32_t> resting() const {
    std::vector<int32_t> found;
    for (const Residents& memory : memories_)
      for (int32_t b : memory.order)
        if (buffer_of(b).at_start && buffer_of(b).at_end) found.push_back(b);
    return found;
  }

  BufferId add_instance(int32_t b) {
    Buffer made = buffer_of(b);
    made.at_start = page_of(b).rests && !page_of(b).first.valid();
    made.at_end = false;
    made.layout = page_of(b).layout;
    return out_.add(made);
  }

  void list(int32_t b) {
    Residents& memory = memory_of(b);
    page_of(b).place = memory.order.insert(memory.order.end(), b);
    page_of(b).resident = true;
    memory.bytes += buffer_of(b).bytes.value;
  }

  void drop(int32_t b) {
    Residents& memory = memory_of(b);
    memory.order.erase(page_of(b).place);
    page_of(b).resident = false;
    memory.bytes -= buffer_of(b).bytes.value;
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

  // Where a page is on the host: that of every member, whether they differ or not.
  BufferId host_copy(int32_t b) {
    Page& page = page_of(b);
    if (!page.host.valid()) {
      Buffer copy = buffer_of(b);
      const TeamId team = graph_[copy.memory].team;
      copy.memory = host_of(team);
      copy.team = team;
      int64_t members = 0;
      for (DeviceId device : graph_[team].devices)
        members += machine_[device].node == machine_[graph_[team].devices[0]].node ? 1 : 0;
      copy.bytes = Bytes(copy.bytes.value * members);
      copy.of_each = true;
      copy.layout = page.layout;
      if (page.rests) copy.at_start = copy.at_end = false;
      page.host = out_.add(copy);
    }
    return page.host;
  }

  // Adds a copy of a page to the host or back.
  TaskId swap(TaskKind kind, int32_t b, std::vector<TaskId> after) {
    const Buffer& buffer = buffer_of(b);
    const TeamId team = graph_[buffer.memory].team;
    const bool out = kind == TaskKind::SwapOut;
    const LaneId lane = swap_lane(team, out ? LaneKind::SwapOut : LaneKind::SwapIn);
    const BufferId host = host_copy(b), device = page_of(b).instance;
    const std::vector<Use> uses = {
        {.buffer = out ? device : host, .kind = UseKind::From},
        {.buffer = out ? host : device, .write = true, .kind = UseKind::To}};
    tidy(after);
    return out_.add({.kind = kind,
                     .price = traffic(team, buffer.bytes, out),
                     .micro_batch = buffer.micro_batch,
                     .op = {},
                     .tensor = buffer.tensor,
                     .group = buffer.group},
                    std::span(&lane, 1), after, uses);
  }

  static void tidy(std::vector<TaskId>& after) {
    std::erase_if(after, [](TaskId task) { return !task.valid(); });
    std::ranges::sort(after);
    after.erase(std::unique(after.begin(), after.end()), after.end());
  }

  // What is least recently used goes out until there is room. Statistics that pieces exchange are
  // small, and stay.
  std::vector<TaskId> make_room(int32_t b, const std::set<int32_t>& in_use) {
    Residents& residents = memory_of(b);
    const MemoryId memory = buffer_of(b).memory;
    std::vector<TaskId> outs;
    while (residents.bytes + buffer_of(b).bytes.value > room(memory)) {
      const auto victim = std::ranges::find_if(residents.order, [&](int32_t other) {
        return !in_use.contains(other) && buffer_of(other).tensor.valid();
      });
      if (victim == residents.order.end())
        fail_input("{}: one task alone needs more than the {} that paging has on this device",
                   graph_[memory].name, format_bytes(Bytes(room(memory))));
      outs.push_back(evict(*victim));
    }
    return outs;
  }

  TaskId evict(int32_t b) {
    Page& page = page_of(b);
    if (emit_) page.out = swap(TaskKind::SwapOut, b, {page.user, page.ready});
    drop(b);
    return page.out;
  }

  // A fault: what makes room goes out, then the page comes in, once all that used the memory before
  // has been done.
  void bring_in(int32_t b, const std::set<int32_t>& in_use, std::vector<TaskId> after) {
    const std::vector<TaskId> outs = make_room(b, in_use);
    Page& page = page_of(b);
    list(b);
    const bool has_content = page.written;
    page.written = true;
    if (!emit_) return;
    page.instance = add_instance(b);
    page.ready = {};
    if (!has_content) return;
    after.insert(after.end(), outs.begin(), outs.end());
    after.push_back(page.out);
    after.push_back(memory_of(b).last);
    page.ready = swap(TaskKind::SwapIn, b, std::move(after));
  }

  void visit(TaskId id) {
    std::set<int32_t> in_use;
    for (const Use& use : graph_.uses_of(id)) {
      if (!paged(use.buffer)) continue;
      in_use.insert(use.buffer.value);
      const Page& page = pages_[use.buffer.index()];
      // Most recently used: the last of the order.
      auto& order = memory_of(use.buffer.value).order;
      if (page.resident) order.splice(order.end(), order, page.place);
    }
    std::vector<TaskId> lanes;  // a fault happens when the lanes have come to the task
    if (emit_)
      for (LaneId lane : graph_.lanes_of(id)) lanes.push_back(last_on_lane_[lane.index()]);
    std::vector<TaskId> after;
    for (const Use& use : graph_.uses_of(id)) {
      if (!paged(use.buffer) || pages_[use.buffer.index()].resident) continue;
      bring_in(use.buffer.value, in_use, lanes);
      after.push_back(memory_of(use.buffer.value).last);
    }
    if (emit_) add(id, std::move(after));
    for (int32_t b : in_use)
      if (last_use_[static_cast<size_t>(b)] == id.value && !buffer_of(b).at_end) drop(b);
  }

  void add(TaskId id, std::vector<TaskId> after) {
    for (TaskId before : graph_.predecessors_of(id)) after.push_back(new_id_[before.index()]);
    std::vector<Use> uses;
    for (const Use& use : graph_.uses_of(id)) {
      const Page& page = pages_[use.buffer.index()];
      uses.push_back(use);
      uses.back().buffer = page.instance;
      after.push_back(page.ready);
    }
    tidy(after);
    const TaskId made = out_.add(graph_[id], graph_.lanes_of(id), after, uses);
    new_id_[id.index()] = made;
    for (LaneId lane : graph_.lanes_of(id)) last_on_lane_[lane.index()] = made;
    for (const Use& use : graph_.uses_of(id)) {
      pages_[use.buffer.index()].user = made;
      if (paged(use.buffer)) memory_of(use.buffer.value).last = made;
    }
    change_layouts(id);
  }

  // Moves in place: what comes back later lies as they left it.
  void change_layouts(TaskId id) {
    const Task& task = graph_[id];
    if (!exchanges(task.kind) || task.op.valid()) return;
    const Movement& movement = graph_.movements[static_cast<size_t>(task.how)];
    for (const Use& use : graph_.uses_of(id)) {
      if (use.kind != UseKind::From || !use.write) continue;
      Page& page = pages_[use.buffer.index()];
      const Layout& now = out_.layouts[static_cast<size_t>(page.layout)];
      const Layout then = layout_after(graph_, movement, now);
      if (then == now) continue;
      const auto found = std::ranges::find(out_.layouts, then);
      page.layout = static_cast<int32_t>(found - out_.layouts.begin());
      if (found == out_.layouts.end()) out_.layouts.push_back(then);
      page.host = {};
    }
  }

  void finish() {
    const std::set<int32_t> rest(at_rest_.begin(), at_rest_.end());
    std::vector<TaskId> outs;
    for (int32_t b : resting())
      if (!rest.contains(b)) outs.push_back(evict(b));
    for (int32_t b : at_rest_) {
      if (!page_of(b).resident) bring_in(b, rest, outs);
      Page& page = page_of(b);
      out_.buffers[page.instance.index()].at_end = true;
      if (page.first != page.instance) out_.carried.push_back({page.instance, page.first});
    }
    // What no task uses is on the host.
    for (size_t b = 0; b < pages_.size(); ++b)
      if (paged(BufferId(b)) && last_use_[b] < 0 && !pages_[b].rests)
        host_copy(static_cast<int32_t>(b));
  }

  const TaskGraph& graph_;
  const Machine& machine_;
  std::vector<int32_t> last_use_;  // by buffer: task
  std::vector<int32_t> at_rest_;   // pages that are on devices between steps
  std::vector<Page> pages_;        // by buffer
  std::vector<Residents> memories_;
  std::vector<TaskId> new_id_;
  std::vector<TaskId> last_on_lane_;
  std::map<std::tuple<int32_t, int64_t, bool>, int32_t> traffics_;
  TaskGraph out_;
  bool emit_ = false;
};

}  // namespace

TaskGraph page_on_demand(const TaskGraph& graph, const Machine& machine) {
  return Pager(graph, machine).run();
}

}  // namespace windlass
