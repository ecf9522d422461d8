#include "windlass/runtime/executor.h"

#include <algorithm>
#include <cstring>

#include "windlass/base/error.h"
#include "windlass/runtime/compute_pacer.h"
#include "windlass/runtime/executor_state.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/resting_tensors.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

// The allocator of libtorch's data in a device rounds as lower() assumes; the host's does not.
constexpr int64_t kHostUnit = 1;

// A move that takes less than it takes to wake up threads is not worth another one.
constexpr Nanoseconds kShort = 100'000;

// By job: what the simulation says that it takes.
std::vector<Nanoseconds> predicted_times(const JobGraph& graph, const SimResult& simulated) {
  std::vector<Nanoseconds> times;
  for (const Job& job : graph.jobs)
    times.push_back(simulated.end[job.task.index()] - simulated.start[job.task.index()]);
  return times;
}

JobGraph jobs_of(const TaskGraph& tasks, Program& program, const MemoryOrder& order,
                 const Ownership& own) {
  if (own.alone()) let_swaps_go_apart(program);
  return make_jobs(tasks, program, order, own);
}

}  // namespace

thread_local DeviceLane* Executor::State::this_lane = nullptr;

Executor::State::State(const TrainingGraph& training_graph, const TaskGraph& graph,
                       const TaskTimes& times, const SimResult& simulated, const Machine& machine,
                       const ExecutorOptions& given, std::shared_ptr<State> other,
                       const RowShape& row, const DeviceMaker& make_device)
    : training(training_graph),
      tasks(graph),
      options(given),
      machine_devices(machine.devices.size()),
      program(make_program(training_graph, machine, graph, given.sample_axes, row)),
      own(share_out(program, machine, given.ranks == nullptr ? 0 : given.ranks->rank(),
                    given.ranks == nullptr ? 1 : given.ranks->size())),
      graph_of_jobs(jobs_of(graph, program, memory_order(graph, times, simulated), own)),
      beside(std::move(other)),
      left_of(static_cast<size_t>(row.steps)),
      watchdog(given.watch, predicted_times(graph_of_jobs, simulated)) {
  ensure(program.steps == 1 || (own.alone() && program.carries.empty()),
         "steps that hand on pages, or of several processes, are in a row");
  install_allocator();
  if (options.paranoid) report_bad_accesses();
  // With several devices BLAS has one thread: products are divided by windlass, on the device's
  // own.
  set_blas_threads(program.devices > 1 ? 1 : options.threads);
  if (beside)
    take_memory(*beside);
  else
    make_memory(make_device);
  runner = std::make_unique<TaskRunner>(training, tasks, program, *slots, own, machine, options);
  inputs = std::make_unique<StepInputs>(training, tasks, program, *slots, own);
  runner->bring = [this](BufferId buffer, TaskId task, int32_t part) {
    inputs->bring(runner->request(program.step_of(task)), buffer, task, part);
  };
  for (const auto& gate : graph_of_jobs.gates)
    if (gate)
      gate->release = [this](const MemoryGate::Life& life) {
        for (int32_t slot : life.slots) slots->release(slot);
      };
  const std::vector<Nanoseconds> predicted = predicted_times(graph_of_jobs, simulated);
  for (size_t j = 0; j < predicted.size(); ++j) {
    const Job& job = graph_of_jobs.jobs[j];
    // What waits for other processes keeps no thread from its own work.
    is_short.push_back(job.part < 0 && exchanges(tasks[job.task].kind) && predicted[j] < kShort &&
                       !runner->crosses(job.task, job.part));
  }
  const size_t jobs = graph_of_jobs.jobs.size();
  before = std::make_unique<std::atomic<int32_t>[]>(jobs);
  asking = std::make_unique<std::atomic<int32_t>[]>(jobs);
  due = std::make_unique<std::atomic<Nanoseconds>[]>(jobs);
  for (const Worker& worker : graph_of_jobs.workers)
    lanes.push_back(
        std::make_unique<DeviceLane>(*devices[static_cast<size_t>(worker.memory)], worker.kind));
}

// Devices inside of the limits, with all that lasts, filled with zeros.
void Executor::State::make_memory(const DeviceMaker& make_device) {
  std::vector<RealDevice*> by_memory;
  const double sharing =
      options.pace ? core_sharing(static_cast<int>(program.devices), options.threads) : 1;
  for (const RealMemory& memory : program.memories) {
    devices.push_back(make_device({.name = memory.name,
                                   .limit = memory.limit.value,
                                   .unit = memory.device.valid() ? kAllocationUnit : kHostUnit,
                                   .threads = options.threads,
                                   .sharing = sharing,
                                   .guarded = options.paranoid}));
    by_memory.push_back(devices.back().get());
  }
  slots = std::make_shared<Slots>(program, by_memory);
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    if (!program.rests[b]) continue;
    for (int32_t slot : program.slots_of[b]) {
      if (!own.mine(slot) || slots->holds(slot)) continue;
      slots->allocate(slot);
      const std::span<std::byte> bytes = slots->bytes(slot);
      std::memset(bytes.data(), 0, bytes.size());
    }
  }
  for (size_t m = 0; m < devices.size(); ++m)
    devices[m]->set_context([this, m] { return list_alive(m); });
}

// Slots are the same where buffers are; those of a shorter row are the first ones of a longer one.
void Executor::State::take_memory(const State& other) {
  const auto alike = [](const Slot& a, const Slot& b) {
    return a.buffer == b.buffer && a.memory == b.memory && a.bytes == b.bytes;
  };
  const std::span<const Slot> theirs = other.program.slots;
  ensure(theirs.size() >= program.slots.size() &&
             std::ranges::equal(program.slots, theirs.first(program.slots.size()), alike),
         "programs that share memory have other slots");
  devices = other.devices;
  slots = other.slots;
}

void Executor::State::close() {
  for (const auto& lane : lanes) lane->close();
  for (const auto& lane : lanes)
    if (abandoned)
      lane->leave();
    else
      lane->join();
}

void Executor::State::work(DeviceLane& lane, LaneWork& how, int32_t job, Clock::time_point ready) {
  this_lane = &lane;
  // A system may let a thread that has become ready wait for the end of a slice, some milliseconds,
  // where all cores compute. What moves data is soon done, and kernels wait for it.
  if (!lane.computes())
    --moves_ready;
  else if (moves_ready > 0)
    std::this_thread::yield();
  if (!failed) run_job(job, [&](const auto& what) { return how.run(what, ready); });
  while (lane.chained >= 0) {
    const int32_t chained = std::exchange(lane.chained, -1);
    if (!failed)
      run_job(chained, [&](const auto& what) {
        how.run_for_another(what);
        return Clock::now();
      });
    end_active();
  }
  end_active();
}

// One that was ready is done with.
void Executor::State::end_active() {
  if (active.fetch_sub(1) != 1) return;
  const std::lock_guard lock(mutex);
  step_over.notify_all();
}

template <class Run>
void Executor::State::run_job(int32_t id, Run&& run) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  before[static_cast<size_t>(id)] = kUnderWay;
  try {
    start[static_cast<size_t>(id)] = now();
    if (options.paranoid) doing(runner->label(job.task, job.part));
    const Clock::time_point done = run([&] { runner->run(job.task, job.part); });
    if (options.paranoid)
      for (const auto& device : devices) device->check();
    end[static_cast<size_t>(id)] = now();
    before[static_cast<size_t>(id)] = kEnded;
    finish(id, std::chrono::duration_cast<std::chrono::nanoseconds>(done - began).count());
  } catch (...) {
    set_error(std::current_exception(), id);
  }
}

// All jobs before it have ended.
void Executor::State::come_ready(int32_t id) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  if (job.asks.empty()) return dispatch(id);
  for (const Job::Ask& ask : job.asks) {
    std::vector<int32_t> admitted;
    graph_of_jobs.gates[static_cast<size_t>(ask.gate)]->ask(ask.rank, admitted);
    admit(admitted, due[static_cast<size_t>(id)]);
  }
}

void Executor::State::admit(const std::vector<int32_t>& admitted, Nanoseconds when) {
  for (int32_t id : admitted) {
    wait_until(id, when);
    if (asking[static_cast<size_t>(id)].fetch_sub(1) == 1) dispatch(id);
  }
}

void Executor::State::wait_until(int32_t id, Nanoseconds when) {
  std::atomic<Nanoseconds>& latest = due[static_cast<size_t>(id)];
  Nanoseconds known = latest;
  while (known < when && !latest.compare_exchange_weak(known, when)) {
  }
}

// Whether the calling thread does it itself, next.
bool Executor::State::chain(int32_t id) {
  if (!is_short[static_cast<size_t>(id)] || this_lane == nullptr || this_lane->chained >= 0 ||
      !this_lane->idle())
    return false;
  this_lane->chained = id;
  return true;
}

void Executor::State::dispatch(int32_t id) {
  ++active;
  if (chain(id)) return;
  const int32_t worker = graph_of_jobs.jobs[static_cast<size_t>(id)].worker;
  if (!lanes[static_cast<size_t>(worker)]->computes()) ++moves_ready;
  const std::chrono::nanoseconds since(due[static_cast<size_t>(id)].load());
  lanes[static_cast<size_t>(worker)]->post(id, began + since);
}

void Executor::State::finish(int32_t id, Nanoseconds when) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  std::vector<int32_t> admitted;
  for (const Job::Leave& leave : job.leaves)
    graph_of_jobs.gates[static_cast<size_t>(leave.gate)]->leave(leave.workspace, leave.lives,
                                                                leave.peak_over, admitted);
  for (int32_t next : job.next) {
    wait_until(next, when);
    if (before[static_cast<size_t>(next)].fetch_sub(1) == 1) come_ready(next);
  }
  admit(admitted, when);
  --left;
  std::atomic<int64_t>& of_step = left_of[program.step_of(job.task)];
  if (of_step.fetch_sub(1) != 1) return;
  const std::lock_guard lock(mutex);
  step_over.notify_all();
}

Executor::Executor(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times,
                   const SimResult& simulated, const Machine& machine,
                   const ExecutorOptions& options, const Executor* beside,
                   const DeviceMaker& make_device)
    : state_(std::make_shared<State>(training, tasks, times, simulated, machine, options,
                                     beside == nullptr ? nullptr : beside->state_, RowShape{},
                                     make_device)) {
  State::start_lanes(state_);
}

Executor::Executor(const TrainingGraph& training, const StepRow& row, const Machine& machine,
                   const ExecutorOptions& options, const Executor* beside,
                   const DeviceMaker& make_device)
    : state_(std::make_shared<State>(training, row.tasks, row.times, row.result, machine, options,
                                     beside == nullptr ? nullptr : beside->state_, row.shape,
                                     make_device)) {
  State::start_lanes(state_);
}

// A thread that does not come back keeps what it works on.
void Executor::State::start_lanes(const std::shared_ptr<State>& state) {
  for (const auto& lane : state->lanes)
    lane->start([state](DeviceLane& on, LaneWork& how, int32_t job, Clock::time_point ready) {
      state->work(on, how, job, ready);
    });
}

Executor::~Executor() { state_->close(); }

std::vector<PersistentTensor> Executor::persistent(int32_t reader) {
  return resting_tensors(state_->training, state_->tasks, state_->program,
                         {.slots = *state_->slots,
                          .own = state_->own,
                          .ranks = state_->options.ranks,
                          .reader = reader});
}

void collect(const GradientPiece& piece, const Shape& shape, std::vector<std::byte>& whole) {
  if (piece.mine.size() == 0) return;
  const size_t each = piece.bytes.size() / static_cast<size_t>(piece.mine.size());
  whole.resize(static_cast<size_t>(element_count(shape)) * each);
  for (int64_t i = piece.mine.begin; i < piece.mine.end; ++i)
    std::memcpy(whole.data() + static_cast<size_t>(whole_element(piece.region, i)) * each,
                piece.bytes.data() + static_cast<size_t>(i - piece.mine.begin) * each, each);
}

bool Executor::carries() const { return !state_->program.carries.empty(); }

int64_t Executor::micro_batches() const { return state_->program.micro_batches; }

bool Executor::needs_counts() const { return state_->program.needs_counts(); }

const std::string& Executor::failed_task() const { return state_->failed_at; }

size_t Executor::failed_step() const { return state_->failed_step; }

int32_t Executor::row_steps() const { return state_->program.steps; }

std::vector<double> Executor::micro_batch_losses() const {
  return state_->runner->losses(state_->last_step());
}

void Executor::give_back() {
  State& state = *state_;
  for (size_t b = 0; b < state.tasks.buffers.size(); ++b)
    if (!state.program.rests[b])
      for (int32_t slot : state.program.slots_of[b]) state.slots->release(slot);
}

double Executor::last_loss() const { return state_->runner->loss(state_->last_step()); }

void Executor::watch_gradients(std::function<void(const GradientPiece&)> watch) {
  state_->runner->watch = std::move(watch);
}

Arena* Executor::device_arena() {
  if (!state_->own.alone()) return nullptr;
  Arena* found = nullptr;
  for (size_t m = 0; m < state_->devices.size(); ++m)
    if (state_->program.memories[m].device.valid()) {
      if (found != nullptr) return nullptr;
      found = state_->devices[m]->arena();
    }
  return found;
}

std::vector<int64_t> Executor::live_bytes() const {
  std::vector<int64_t> bytes;
  for (const auto& device : state_->devices) bytes.push_back(device->statistics().live);
  return bytes;
}

}  // namespace windlass
