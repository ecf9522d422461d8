// An event loop over the moments when something ends.
//
// Lanes run in order, so only the next task of each lane can start: at any time there is at most
// one waiting or running task for each lane, and a task is known by its first lane. A task that
// waits for predecessors hangs on the first one that has not ended, and is looked at again when
// that one ends; its list of predecessors is walked once. The graph is read where it is: large ones
// are bound by memory, and lanes that run side by side read the same neighbourhood.
// Time: O(tasks x log lanes + lists), and rates of traffic as fair_share.h says.
#include "windlass/sim/simulate.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/sim/buffers.h"
#include "windlass/sim/end_times.h"
#include "windlass/sim/fair_share.h"
#include "windlass/sim/read_ahead.h"
#include "windlass/sim/recurrence.h"

namespace windlass {
namespace {

constexpr uint32_t kNone = UINT32_MAX;

// A lane, and what is known of the task that is next or runs on it, if this is its first lane.
struct LaneState {
  enum class Phase : uint8_t { Waiting, Fixed, Latency, Traffic };

  uint32_t position = 0;  // in order
  uint32_t task = kNone;  // there
  MemoryId memory;        // of the team
  Phase phase = Phase::Waiting;
  uint32_t predecessors_met = 0;  // index into predecessors
  uint32_t next_waiter = kNone;   // another lane whose task waits for the same predecessor
  MemoryId full;                  // that keeps it from starting
};

// Tasks that have not ended: no waiter, or the first of the lanes whose tasks wait for it.
constexpr Nanoseconds kNotEnded = -1;
constexpr Nanoseconds with_waiter(uint32_t lane) {
  return kNotEnded - 1 - static_cast<Nanoseconds>(lane);
}
constexpr uint32_t waiter_of(Nanoseconds end) {
  return end == kNotEnded ? kNone : static_cast<uint32_t>(kNotEnded - 1 - end);
}

// A task that starts now if it fits. Ordered by task.
struct Ready {
  uint32_t task = 0;
  uint32_t lane = 0;
};

}  // namespace

struct Simulator::State {
  const TaskGraph* graph = nullptr;
  const TaskTimes* times = nullptr;
  SimResult result;  // while it runs, `end` of tasks that have not ended holds their waiters
  Nanoseconds now = 0;

  std::vector<LaneState> lanes;
  std::vector<uint32_t> order;        // tasks by lane, kNone after those of each
  std::vector<uint32_t> order_begin;  // by lane
  std::vector<int64_t> volumes;       // by traffic; 0 if it moves nothing over links
  std::vector<Ready> ready;           // room for one a lane
  size_t ready_count = 0;             // of them, ascending
  std::vector<Ready> blocked;         // tasks that only memory keeps from starting
  EndTimes due;
  LiveBuffers buffers;
  ReadAhead ahead;
  FairShare traffic;
  bool traffic_changed = false;
  Recurrence recurrence;

  void run(const SimOptions& options);
  void prepare(const SimOptions& options);
  void lay_out();
  void find_volumes();

  std::span<const LaneId> lanes_of(uint32_t task) const {
    return graph->lanes_of(TaskId(size_t{task}));
  }

  void reached(uint32_t lane_id);
  void check_predecessors(uint32_t lane_id);
  void add_ready(Ready task);
  void advance(uint32_t lane_id);
  void start(Ready task);
  void come(uint32_t lane_id);
  void end(uint32_t lane_id);
  void recheck_blocked();
  LaneMoment moment(size_t lane_id) const;

  void forget_unended();
  void report_failure();
  void report_out_of_memory();
  void report_deadlock();
  uint32_t waits_for(uint32_t task) const;
};

void Simulator::State::find_volumes() {
  volumes.resize(graph->traffics.size());
  for (size_t i = 0; i < volumes.size(); ++i)
    volumes[i] = graph->loads[i].empty() ? 0 : graph->traffics[i].volume.value;
}

void Simulator::State::lay_out() {
  lanes.assign(graph->lanes.size(), {});
  for (LaneId lane : graph->task_lanes) ++lanes[lane.index()].position;
  order_begin.clear();
  uint32_t begin = 0;
  for (LaneState& lane : lanes) {
    order_begin.push_back(begin);
    begin += lane.position + 1;
    lane.position = order_begin.back();
  }
  order.resize(begin);
  const auto tasks = static_cast<uint32_t>(graph->size());
  for (uint32_t task = 0; task < tasks; ++task) {
    for (LaneId id : lanes_of(task)) {
      LaneState& lane = lanes[id.index()];
      if (lane.task == task) continue;  // named twice
      lane.task = task;
      order[lane.position++] = task;
    }
  }
  for (size_t i = 0; i < lanes.size(); ++i) {
    LaneState& lane = lanes[i];
    order[lane.position] = kNone;
    lane.position = order_begin[i];
    lane.task = order[lane.position];
    lane.memory = buffers.memory_of(*graph, graph->lanes[i]);
  }
}

void Simulator::State::prepare(const SimOptions& options) {
  const size_t count = graph->size();
  ensure(times->duration.size() == count && times->workspace.size() == count,
         "task times do not belong to the task graph");
  result.status = SimStatus::Done;
  result.makespan = 0;
  result.ended = 0;
  result.came_round = false;
  result.period = 0;
  result.start.resize(count);
  result.end.assign(count, kNotEnded);
  result.failed_task = {};
  result.failed_memory = {};
  result.missing_bytes = 0;
  result.cycle.clear();
  now = 0;
  buffers.reset(*graph, options.enforce_limits, result.peaks);
  lay_out();
  find_volumes();
  ready.resize(lanes.size());
  ready_count = 0;
  blocked.clear();
  due.reset(lanes.size());
  traffic.reset(graph->links, lanes.size());
  traffic_changed = false;
  ahead.reset(*graph, *times, result, buffers);
  recurrence.reset(options.repetition, count, lanes.size());
}

void Simulator::State::add_ready(Ready task) {
  size_t at = ready_count++;
  for (; at > 0 && ready[at - 1].task > task.task; --at) ready[at] = ready[at - 1];
  ready[at] = task;
}

// The lane is the first of its task, which is next on all its lanes.
void Simulator::State::check_predecessors(uint32_t lane_id) {
  LaneState& lane = lanes[lane_id];
  const uint32_t end = graph->predecessor_begin[lane.task + 1];
  for (uint32_t i = lane.predecessors_met; i < end; ++i) {
    Nanoseconds& ends = result.end[graph->predecessors[i].index()];
    if (ends >= 0) continue;
    lane.predecessors_met = i + 1;
    lane.next_waiter = waiter_of(ends);
    ends = with_waiter(lane_id);
    return;
  }
  add_ready({lane.task, lane_id});
}

// The lane has come to a task; goes on if all lanes of the task have.
void Simulator::State::reached(uint32_t lane_id) {
  const uint32_t task = lanes[lane_id].task;
  const auto all = lanes_of(task);
  if (all.size() > 1) {
    for (LaneId other : all)
      if (lanes[other.index()].task != task) return;
    lane_id = static_cast<uint32_t>(all.front().value);
  }
  lanes[lane_id].predecessors_met = graph->predecessor_begin[task];
  check_predecessors(lane_id);
}

void Simulator::State::advance(uint32_t lane_id) {
  LaneState& lane = lanes[lane_id];
  lane.task = order[++lane.position];
  if (lane.task != kNone) reached(lane_id);
}

void Simulator::State::start(Ready ready_task) {
  const uint32_t task = ready_task.task;
  LaneState& lane = lanes[ready_task.lane];
  lane.full = buffers.start(TaskId(size_t{task}), lane.memory, times->workspace[task], now);
  if (lane.full.valid()) {
    blocked.push_back(ready_task);
    return;
  }
  ahead.pass(task);
  result.start[task] = now;
  const Task& priced = graph->tasks[task];
  const bool shares = moves(priced.kind) && volumes[static_cast<size_t>(priced.price)] > 0;
  lane.phase = shares ? LaneState::Phase::Latency : LaneState::Phase::Fixed;
  const Nanoseconds duration = times->duration[task];
  if (shares && duration <= 0) {
    come(ready_task.lane);
  } else {
    due.set(ready_task.lane, now + std::max<Nanoseconds>(1, duration));
  }
}

void Simulator::State::come(uint32_t lane_id) {
  LaneState& lane = lanes[lane_id];
  lane.phase = LaneState::Phase::Traffic;
  const auto price = static_cast<size_t>(graph->tasks[lane.task].price);
  traffic.join(lane_id, volumes[price], graph->loads[price]);
  traffic_changed = true;
}

void Simulator::State::end(uint32_t lane_id) {
  LaneState& lane = lanes[lane_id];
  const uint32_t task = lane.task;
  if (lane.phase == LaneState::Phase::Traffic) {
    traffic.leave(lane_id);
    traffic_changed = true;
  }
  ++result.ended;
  recurrence.ended(task);
  buffers.end(TaskId(size_t{task}), lane.memory, times->workspace[task], now);
  uint32_t waiter = waiter_of(result.end[task]);
  result.end[task] = now;
  while (waiter != kNone) {
    const uint32_t next = lanes[waiter].next_waiter;
    check_predecessors(waiter);
    waiter = next;
  }
  const auto held = lanes_of(task);
  if (held.size() == 1) {
    advance(lane_id);
    return;
  }
  for (LaneId id : held)
    if (lanes[id.index()].task == task) advance(static_cast<uint32_t>(id.value));
}

void Simulator::State::recheck_blocked() {
  size_t kept = 0;
  for (const Ready& task : blocked) {
    if (buffers.released(lanes[task.lane].full, now)) {
      add_ready(task);
    } else {
      blocked[kept++] = task;
    }
  }
  blocked.resize(kept);
}

LaneMoment Simulator::State::moment(size_t lane_id) const {
  const LaneState& lane = lanes[lane_id];
  if (lane.task == kNone) {
    const bool unused = order[order_begin[lane_id]] == kNone;
    return {.task = unused ? LaneMoment::kNextRepetition : LaneMoment::kEnded};
  }
  LaneMoment found{.task =
                       static_cast<int64_t>(lane.task) - static_cast<int64_t>(recurrence.begin())};
  const Nanoseconds end = due.time(lane_id);
  if (end != EndTimes::kNever) {
    const bool moving = lane.phase == LaneState::Phase::Traffic;
    found.phase = static_cast<uint8_t>(lane.phase);
    found.left = moving ? traffic.remaining(static_cast<uint32_t>(lane_id), now) : end - now;
  } else if (lane.task == order[order_begin[lane_id]] + recurrence.end()) {
    for (TaskId before : graph->predecessors_of(TaskId(size_t{lane.task})))
      if (result.end[before.index()] < 0) found.task = LaneMoment::kNextRepetition;
  }
  return found;
}

void Simulator::State::run(const SimOptions& options) {
  prepare(options);
  result.failed_memory = buffers.too_small_at_start();
  if (result.failed_memory.valid()) {
    report_failure();
    return;
  }
  for (uint32_t i = 0; i < lanes.size(); ++i) {
    const uint32_t task = lanes[i].task;
    if (task == kNone) continue;
    if (graph->task_lanes[graph->lane_begin[task]].index() == i) reached(i);
  }
  while (true) {
    for (size_t i = 0; i < ready_count; ++i) start(ready[i]);
    ready_count = 0;
    if (traffic_changed) {
      traffic_changed = false;
      for (const FairShare::Due& flow : traffic.settle(now)) due.set(flow.slot, flow.end);
    }
    if (recurrence.pending()) {
      result.came_round = recurrence.look(now, [&](size_t lane) { return moment(lane); });
      result.period = recurrence.period();
      if (result.came_round) {
        forget_unended();
        return;
      }
    }
    if (due.empty()) break;
    now = due.time();
    do {
      const uint32_t lane = due.slot();
      due.clear(lane);
      if (lanes[lane].phase == LaneState::Phase::Latency) {
        come(lane);
      } else {
        end(lane);
        result.makespan = now;
      }
    } while (due.time() == now);
    if (!blocked.empty()) recheck_blocked();
  }
  if (result.ended != graph->size()) report_failure();
}

void Simulator::State::forget_unended() {
  for (size_t i = 0; i < graph->size(); ++i) {
    if (result.end[i] >= 0) continue;
    result.start[i] = -1;
    result.end[i] = -1;
  }
}

void Simulator::State::report_failure() {
  forget_unended();
  if (result.failed_memory.valid()) {
    result.status = SimStatus::OutOfMemory;
    result.missing_bytes = result.peaks[result.failed_memory.index()].bytes -
                           (*graph)[result.failed_memory].limit.value;
  } else if (!blocked.empty()) {
    report_out_of_memory();
  } else {
    report_deadlock();
  }
}

void Simulator::State::report_out_of_memory() {
  const Ready first =
      *std::min_element(blocked.begin(), blocked.end(),
                        [](const Ready& a, const Ready& b) { return a.task < b.task; });
  const LaneState& lane = lanes[first.lane];
  result.status = SimStatus::OutOfMemory;
  result.failed_task = TaskId(size_t{first.task});
  const auto [memory, bytes] =
      buffers.missing(result.failed_task, lane.memory, times->workspace[first.task]);
  result.failed_memory = memory;
  result.missing_bytes = bytes;
}

uint32_t Simulator::State::waits_for(uint32_t task) const {
  const TaskId id(size_t{task});
  for (TaskId before : graph->predecessors_of(id))
    if (result.end[before.index()] < 0) return static_cast<uint32_t>(before.value);
  for (LaneId lane : graph->lanes_of(id))
    if (lanes[lane.index()].task != task) return lanes[lane.index()].task;
  return kNone;
}

void Simulator::State::report_deadlock() {
  result.status = SimStatus::Deadlock;
  const auto stuck = std::find(result.end.begin(), result.end.end(), -1);
  auto task = static_cast<uint32_t>(stuck - result.end.begin());
  std::vector<uint32_t> step(graph->size(), kNone);
  std::vector<uint32_t> path;
  for (; step[task] == kNone; task = waits_for(task)) {
    step[task] = static_cast<uint32_t>(path.size());
    path.push_back(task);
  }
  for (size_t i = step[task]; i < path.size(); ++i) result.cycle.emplace_back(size_t{path[i]});
}

Simulator::Simulator() : state_(std::make_unique<State>()) {}
Simulator::~Simulator() = default;
Simulator::Simulator(Simulator&&) noexcept = default;
Simulator& Simulator::operator=(Simulator&&) noexcept = default;

const SimResult& Simulator::run(const TaskGraph& graph, const TaskTimes& times,
                                const SimOptions& options) {
  state_->graph = &graph;
  state_->times = &times;
  state_->run(options);
  return state_->result;
}

SimResult simulate(const TaskGraph& graph, const Machine& machine, const CostModel& cost,
                   const SimOptions& options) {
  const TaskTimes times = price_tasks(graph, machine, cost);
  return Simulator().run(graph, times, options);
}

}  // namespace windlass
