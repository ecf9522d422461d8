#include "windlass/runtime/executor.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <exception>
#include <mutex>
#include <sys/prctl.h>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>

#include "windlass/base/error.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/memory_order.h"
#include "windlass/runtime/task_runner.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// The allocator of libtorch's data in a device rounds as lower() assumes; the host's does not.
constexpr int64_t kHostUnit = 1;

bool copies(TaskKind kind) {
  return kind == TaskKind::SwapIn || kind == TaskKind::SwapOut || kind == TaskKind::Compress ||
         kind == TaskKind::Decompress;
}

std::string list_alive(const TaskGraph& tasks, const Graph& graph,
                       const std::vector<uint8_t>& alive, MemoryId memory) {
  std::vector<BufferId> buffers;
  for (size_t i = 0; i < alive.size(); ++i)
    if (alive[i] != 0 && tasks.buffers[i].memory == memory) buffers.emplace_back(i);
  std::ranges::stable_sort(buffers, std::greater<>{},
                           [&](BufferId id) { return tasks[id].bytes.value; });
  std::string text = "alive there:";
  constexpr size_t kListed = 12;
  for (size_t i = 0; i < std::min(buffers.size(), kListed); ++i) {
    const Buffer& buffer = tasks[buffers[i]];
    text += fmt::format("\n  {:>12}  {} ({})", format_bytes(buffer.bytes),
                        buffer.tensor.valid() ? graph[buffer.tensor].name : "",
                        buffer_kind_name(buffer.kind));
  }
  if (buffers.size() > kListed) text += fmt::format("\n  and {} more", buffers.size() - kListed);
  return text;
}

}  // namespace

struct Executor::State {
  State(const TrainingGraph& training_graph, const TaskGraph& graph, const TaskTimes& times,
        const SimResult& simulated, const Machine& machine, const ExecutorOptions& given);
  ~State();

  void run_lane(size_t lane);
  bool run_tasks(size_t lane);
  bool ready(TaskId task) const;
  void grant(TaskId task);
  void finish(TaskId task);
  bool releasable(BufferId buffer) const;
  void release_deferred(MemoryId memory);
  void release(BufferId buffer);
  void load_inputs(const StepRequest& request);
  std::vector<int64_t> statistics(int64_t ArenaStatistics::*field) const;

  const TrainingGraph& training;
  const TaskGraph& tasks;
  const ExecutorOptions options;
  const Program program;
  const MemoryOrder order;
  std::vector<std::unique_ptr<Arena>> arenas;  // by memory
  std::unique_ptr<Slots> slots;
  std::unique_ptr<TaskRunner> runner;
  std::vector<std::vector<TaskId>> lane_tasks;  // by lane, in the order they run

  // All below is guarded by `mutex`.
  std::mutex mutex;
  std::condition_variable changed;
  int64_t generation = 0;  // of the step to be run
  bool closing = false;
  size_t lanes_busy = 0;
  std::exception_ptr error;
  std::vector<uint8_t> done;                    // by task
  std::vector<uint8_t> alive;                   // by buffer
  std::vector<int32_t> uses_left;               // by buffer
  std::vector<int32_t> granted;                 // by memory
  std::vector<int64_t> live;                    // by memory: what was granted and not yet released
  std::vector<std::vector<BufferId>> deferred;  // by memory
  Clock::time_point begin;
  StepOutcome outcome;

  std::vector<std::thread> threads;
};

Executor::State::State(const TrainingGraph& training_graph, const TaskGraph& graph,
                       const TaskTimes& times, const SimResult& simulated, const Machine& machine,
                       const ExecutorOptions& given)
    : training(training_graph),
      tasks(graph),
      options(given),
      program(make_program(training_graph, graph)),
      order(memory_order(graph, times, simulated)) {
  if (tasks.teams.size() != 1 || tasks.teams[0].devices.size() != 1)
    fail_unsupported("{} devices: training runs on one device so far", machine.devices.size());
  install_allocator();
  if (options.paranoid) report_bad_accesses();
  set_blas_threads(options.threads);
  std::vector<Arena*> by_memory;
  for (const Memory& memory : tasks.memories) {
    arenas.push_back(std::make_unique<Arena>(memory.name, memory.limit.value,
                                             memory.team.valid() ? kAllocationUnit : kHostUnit,
                                             options.paranoid));
    by_memory.push_back(arenas.back().get());
  }
  slots = std::make_unique<Slots>(tasks, by_memory);
  runner = std::make_unique<TaskRunner>(training, tasks, program, *slots, options);
  const bool copies_itself = machine.type_of(tasks.teams[0].devices[0]).copies_itself;
  if (options.pace_copies && !copies_itself) {
    const EndpointId device = machine[tasks.teams[0].devices[0]].endpoint;
    const EndpointId host = machine[machine[tasks.teams[0].devices[0]].node].endpoint;
    runner->set_bandwidth(find_route(machine, host, device).bandwidth,
                          find_route(machine, device, host).bandwidth);
  }
  alive.assign(tasks.buffers.size(), 0);
  for (size_t i = 0; i < tasks.buffers.size(); ++i) {
    if (!tasks.buffers[i].at_start || !tasks.buffers[i].at_end) continue;
    slots->allocate(BufferId(i));
    alive[i] = 1;
    const std::span<std::byte> bytes = slots->bytes(BufferId(i));
    std::memset(bytes.data(), 0, bytes.size());
  }
  lane_tasks.resize(tasks.lanes.size());
  for (size_t i = 0; i < tasks.size(); ++i) {
    const auto lanes = tasks.lanes_of(TaskId(i));
    ensure(lanes.size() == 1, "a task of one device is on several lanes");
    lane_tasks[lanes.front().index()].push_back(TaskId(i));
  }
  for (size_t m = 0; m < arenas.size(); ++m)
    arenas[m]->set_context([this, m] {
      const std::lock_guard lock(mutex);
      return list_alive(tasks, training.graph, alive, MemoryId(m));
    });
  for (size_t lane = 0; lane < lane_tasks.size(); ++lane)
    if (!lane_tasks[lane].empty()) threads.emplace_back([this, lane] { run_lane(lane); });
}

Executor::State::~State() {
  {
    const std::lock_guard lock(mutex);
    closing = true;
  }
  changed.notify_all();
  for (std::thread& thread : threads) thread.join();
}

void Executor::State::run_lane(size_t lane) {
  const Lane& here = tasks.lanes[lane];
  const bool computes = here.kind == LaneKind::Compute || here.kind == LaneKind::Host;
  use_threads(computes ? options.threads : 1);
  // Paced copies wake up on time rather than some 50 us later: a small copy takes less.
  if (!computes) prctl(PR_SET_TIMERSLACK, 1000UL);
  const MemoryId memory =
      here.kind == LaneKind::Host ? MemoryId(tasks.memories.size() - 1) : tasks[here.team].memory;
  const ArenaScope scope(*arenas[memory.index()]);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  int64_t seen = 0;
  while (true) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return closing || generation > seen; });
      if (closing) return;
      seen = generation;
    }
    try {
      run_tasks(lane);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
    const std::lock_guard lock(mutex);
    --lanes_busy;
    changed.notify_all();
  }
}

// False if another lane failed.
bool Executor::State::run_tasks(size_t lane) {
  for (TaskId task : lane_tasks[lane]) {
    {
      std::unique_lock lock(mutex);
      changed.wait(lock, [&] { return error || ready(task); });
      if (error) return false;
      grant(task);
      outcome.start[task.index()] =
          std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
    }
    if (threads.size() > 1) changed.notify_all();
    if (options.paranoid) doing(runner->label(task));
    runner->run(task);
    if (options.paranoid)
      for (const auto& arena : arenas) arena->check_guards();
    {
      const std::lock_guard lock(mutex);
      outcome.end[task.index()] =
          std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
      finish(task);
    }
    if (threads.size() > 1) changed.notify_all();
  }
  return true;
}

bool Executor::State::ready(TaskId task) const {
  for (TaskId before : tasks.predecessors_of(task))
    if (done[before.index()] == 0) return false;
  for (const MemoryGrant& grant : order.grants[task.index()]) {
    const size_t m = grant.memory.index();
    if (granted[m] != grant.rank) return false;
    if (live[m] + grant.bytes + grant.workspace > order.cap[m]) return false;
  }
  return true;
}

void Executor::State::grant(TaskId task) {
  for (const Use& use : tasks.uses_of(task)) alive[use.buffer.index()] = 1;
  // Where copies go; kernels make their results themselves.
  const ProgramTask& made = program.tasks[task.index()];
  if (copies(made.kind))
    for (const Operand& target : made.writes)
      if (!slots->holds(target.buffer)) slots->allocate(target.buffer);
  if (made.kind == TaskKind::Norm && !made.squares[0].adds) slots->allocate(made.squares[0].buffer);
  // The host makes 16-bit weights from their masters.
  for (const WeightUpdate& update : made.updates)
    if (update.weight.valid() && !slots->holds(update.weight)) slots->allocate(update.weight);
  for (const MemoryGrant& grant : order.grants[task.index()]) {
    const size_t m = grant.memory.index();
    ++granted[m];
    live[m] += grant.bytes + grant.workspace;
    release_deferred(grant.memory);
  }
}

void Executor::State::finish(TaskId task) {
  done[task.index()] = 1;
  for (const MemoryGrant& grant : order.grants[task.index()])
    live[grant.memory.index()] -= grant.workspace;
  for (BufferId buffer : order.releases[task.index()]) {
    if (--uses_left[buffer.index()] > 0) continue;
    if (releasable(buffer))
      release(buffer);
    else
      deferred[tasks[buffer].memory.index()].push_back(buffer);
  }
  for (size_t m = 0; m < order.peak_task.size(); ++m)
    if (order.peak_task[m] == task) release_deferred(MemoryId(m));
}

bool Executor::State::releasable(BufferId buffer) const {
  const TaskId holder = order.held_by[buffer.index()];
  return order.release_rank[buffer.index()] <= granted[tasks[buffer].memory.index()] &&
         (!holder.valid() || done[holder.index()] != 0);
}

void Executor::State::release_deferred(MemoryId memory) {
  std::erase_if(deferred[memory.index()], [&](BufferId buffer) {
    if (!releasable(buffer)) return false;
    release(buffer);
    return true;
  });
}

void Executor::State::release(BufferId buffer) {
  slots->release(buffer);
  alive[buffer.index()] = 0;
  live[tasks[buffer].memory.index()] -= tasks[buffer].bytes.value;
}

void Executor::State::load_inputs(const StepRequest& request) {
  for (size_t i = 0; i < tasks.buffers.size(); ++i) {
    const Buffer& buffer = tasks.buffers[i];
    if (!buffer.at_start || buffer.at_end) continue;
    slots->allocate(BufferId(i));
    alive[i] = 1;
    const auto size = static_cast<size_t>(byte_size(training.graph[buffer.tensor].type).value);
    ensure(request.load != nullptr, "a step has no data");
    request.load(buffer.tensor, buffer.micro_batch, slots->bytes(BufferId(i)).first(size));
  }
}

std::vector<int64_t> Executor::State::statistics(int64_t ArenaStatistics::*field) const {
  std::vector<int64_t> bytes;
  for (const auto& arena : arenas) bytes.push_back(arena->statistics().*field);
  return bytes;
}

Executor::Executor(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times,
                   const SimResult& simulated, const Machine& machine,
                   const ExecutorOptions& options)
    : state_(std::make_unique<State>(training, tasks, times, simulated, machine, options)) {}

Executor::~Executor() = default;

std::vector<PersistentTensor> Executor::persistent() {
  std::vector<PersistentTensor> list;
  const TaskGraph& tasks = state_->tasks;
  for (size_t i = 0; i < tasks.buffers.size(); ++i) {
    const Buffer& buffer = tasks.buffers[i];
    if (!buffer.at_start || !buffer.at_end) continue;
    std::span<std::byte> bytes = state_->slots->bytes(BufferId(i));
    if (buffer.kind == BufferKind::Weight)
      bytes = bytes.first(
          static_cast<size_t>(byte_size(state_->training.graph[buffer.tensor].type).value));
    const bool on_device = tasks[buffer.memory].team.valid();
    list.push_back({buffer.kind, buffer.tensor, on_device, bytes});
  }
  return list;
}

StepOutcome Executor::run(const StepRequest& request) {
  State& state = *state_;
  if (state.error) fail(ErrorKind::Runtime, "the run has failed already");
  for (const auto& arena : state.arenas) arena->reset_peak();
  state.begin = Clock::now();
  state.runner->begin_step(request);
  state.load_inputs(request);
  std::unique_lock lock(state.mutex);
  state.done.assign(state.tasks.size(), 0);
  state.uses_left = state.order.uses;
  state.granted.assign(state.tasks.memories.size(), 0);
  state.live = state.order.at_start;
  state.deferred.assign(state.tasks.memories.size(), {});
  state.outcome = {};
  state.outcome.start.assign(state.tasks.size(), -1);
  state.outcome.end.assign(state.tasks.size(), -1);
  state.lanes_busy = state.threads.size();
  ++state.generation;
  state.changed.notify_all();
  state.changed.wait(lock, [&] { return state.lanes_busy == 0; });
  if (state.error) std::rethrow_exception(state.error);
  state.outcome.time =
      std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - state.begin).count();
  state.outcome.loss = state.runner->loss();
  state.outcome.gradient_norm = state.runner->gradient_norm();
  state.outcome.peaks = state.statistics(&ArenaStatistics::peak);
  return state.outcome;
}

double Executor::last_loss() const { return state_->runner->loss(); }

void Executor::watch_gradients(std::function<void(TensorId, std::span<const std::byte>)> watch) {
  state_->runner->watch = std::move(watch);
}

Arena& Executor::device_arena() { return *state_->arenas[state_->tasks.teams[0].memory.index()]; }

std::vector<int64_t> Executor::live_bytes() const {
  return state_->statistics(&ArenaStatistics::live);
}

}  // namespace windlass
