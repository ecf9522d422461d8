#include "windlass/runtime/executor.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <sys/prctl.h>

#include <ATen/core/LegacyTypeDispatch.h>

#include "windlass/base/error.h"
#include "windlass/model/convert.h"
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

}  // namespace

thread_local WorkerThread* Executor::State::this_worker = nullptr;

Executor::State::State(const TrainingGraph& training_graph, const TaskGraph& graph,
                       const TaskTimes& times, const SimResult& simulated, const Machine& machine,
                       const ExecutorOptions& given, std::shared_ptr<State> other)
    : training(training_graph),
      tasks(graph),
      options(given),
      machine_devices(machine.devices.size()),
      program(make_program(training_graph, machine, graph, given.sample_axes)),
      own(share_out(program, machine, given.ranks == nullptr ? 0 : given.ranks->rank(),
                    given.ranks == nullptr ? 1 : given.ranks->size())),
      graph_of_jobs(make_jobs(graph, program, memory_order(graph, times, simulated), own)),
      beside(std::move(other)),
      watchdog(given.watch, predicted_times(graph_of_jobs, simulated)) {
  install_allocator();
  if (options.paranoid) report_bad_accesses();
  // With several devices BLAS has one thread: products are divided by windlass, on the device's
  // own.
  set_blas_threads(program.devices > 1 ? 1 : options.threads);
  if (beside)
    take_memory(*beside);
  else
    make_memory();
  runner = std::make_unique<TaskRunner>(training, tasks, program, *slots, own, machine, options);
  for (const auto& gate : graph_of_jobs.gates)
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
  for (size_t w = 0; w < graph_of_jobs.workers.size(); ++w)
    workers.push_back(std::make_unique<WorkerThread>());
}

// Arenas inside of the limits, with all that lasts, filled with zeros.
void Executor::State::make_memory() {
  std::vector<Arena*> by_memory;
  for (const RealMemory& memory : program.memories) {
    arenas.push_back(std::make_shared<Arena>(memory.name, memory.limit.value,
                                             memory.device.valid() ? kAllocationUnit : kHostUnit,
                                             options.paranoid));
    by_memory.push_back(arenas.back().get());
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
  for (size_t m = 0; m < arenas.size(); ++m)
    arenas[m]->set_context([this, m] { return list_alive(m); });
}

// Slots are the same where buffers are.
void Executor::State::take_memory(const State& other) {
  const auto alike = [](const Slot& a, const Slot& b) {
    return a.buffer == b.buffer && a.memory == b.memory && a.bytes == b.bytes;
  };
  ensure(std::ranges::equal(program.slots, other.program.slots, alike),
         "programs that share memory have other slots");
  arenas = other.arenas;
  slots = other.slots;
}

void Executor::State::close() {
  for (const auto& worker : workers) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->closing = true;
    }
    worker->changed.notify_all();
  }
  for (const auto& worker : workers)
    if (abandoned)
      worker->thread.detach();
    else
      worker->thread.join();
}

void Executor::State::work(size_t index) {
  const Worker& what = graph_of_jobs.workers[index];
  WorkerThread& here = *workers[index];
  const bool computes = what.kind == LaneKind::Compute || what.kind == LaneKind::Host;
  use_threads(computes ? options.threads : 1);
  // Whoever is paced wakes up on time rather than some 50 us later: a small copy takes less.
  prctl(PR_SET_TIMERSLACK, 1000UL);
  std::optional<ArenaScope> scope;
  if (what.memory >= 0) scope.emplace(*arenas[static_cast<size_t>(what.memory)]);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  ComputePacer pacer(computes && options.pace
                         ? core_sharing(static_cast<int>(program.devices), options.threads)
                         : 1);
  while (true) {
    WorkerThread::Ready next;
    {
      std::unique_lock lock(here.mutex);
      here.changed.wait(lock, [&] { return here.closing || !here.ready.empty(); });
      if (here.closing) return;
      next = here.ready.front();
      here.ready.pop_front();
    }
    this_worker = &here;
    if (!failed) run_job(next.job, pacer, next.since);
    while (here.chained >= 0) {
      const ArenaScope none;
      const int32_t chained = std::exchange(here.chained, -1);
      ComputePacer unpaced(1);
      if (!failed) run_job(chained, unpaced, Clock::now());
      end_active();
    }
    end_active();
  }
}

// One that was ready is done with.
void Executor::State::end_active() {
  if (active.fetch_sub(1) != 1) return;
  const std::lock_guard lock(mutex);
  step_over.notify_all();
}

void Executor::State::run_job(int32_t id, ComputePacer& pacer, Clock::time_point ready) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  before[static_cast<size_t>(id)] = kUnderWay;
  try {
    start[static_cast<size_t>(id)] = now();
    if (options.paranoid) doing(runner->label(job.task, job.part));
    if (pacer.paces()) pacer.begin();
    runner->run(job.task, job.part);
    if (pacer.paces()) pacer.end(ready);
    if (options.paranoid)
      for (const auto& arena : arenas) arena->check_guards();
    end[static_cast<size_t>(id)] = now();
    before[static_cast<size_t>(id)] = kEnded;
    finish(id);
  } catch (...) {
    set_error(std::current_exception(), runner->label(job.task, job.part));
  }
}

// All jobs before it have ended.
void Executor::State::come_ready(int32_t id) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  if (job.asks.empty()) return dispatch(id);
  for (const Job::Ask& ask : job.asks) {
    std::vector<int32_t> admitted;
    graph_of_jobs.gates[static_cast<size_t>(ask.gate)]->ask(ask.rank, admitted);
    admit(admitted);
  }
}

void Executor::State::admit(const std::vector<int32_t>& admitted) {
  for (int32_t id : admitted)
    if (asking[static_cast<size_t>(id)].fetch_sub(1) == 1) dispatch(id);
}

// Whether the calling thread does it itself, next.
bool Executor::State::chain(int32_t id) {
  if (!is_short[static_cast<size_t>(id)] || this_worker == nullptr || this_worker->chained >= 0)
    return false;
  {
    const std::lock_guard lock(this_worker->mutex);
    if (!this_worker->ready.empty()) return false;
  }
  this_worker->chained = id;
  return true;
}

void Executor::State::dispatch(int32_t id) {
  WorkerThread& worker =
      *workers[static_cast<size_t>(graph_of_jobs.jobs[static_cast<size_t>(id)].worker)];
  ++active;
  if (chain(id)) return;
  const std::lock_guard lock(worker.mutex);
  worker.ready.push_back({id, Clock::now()});
  worker.changed.notify_one();
}

void Executor::State::finish(int32_t id) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  std::vector<int32_t> admitted;
  for (const Job::Leave& leave : job.leaves)
    graph_of_jobs.gates[static_cast<size_t>(leave.gate)]->leave(leave.workspace, leave.lives,
                                                                leave.peak_over, admitted);
  for (int32_t next : job.next)
    if (before[static_cast<size_t>(next)].fetch_sub(1) == 1) come_ready(next);
  admit(admitted);
  --left;
}

void Executor::State::load_inputs(const StepRequest& request) {
  ensure(request.load != nullptr, "a step has no data");
  std::map<std::pair<TensorId, int32_t>, std::vector<std::byte>> loaded;
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    const Buffer& buffer = tasks.buffers[b];
    if (!buffer.at_start || program.rests[b]) continue;
    const Graph& graph = training.of(buffer.micro_batch).graph;
    const TensorType& type = graph[buffer.tensor].type;
    const auto size = static_cast<size_t>(byte_size(type).value);
    const int32_t constant = graph[buffer.tensor].constant;
    const auto load = [&](std::span<std::byte> out) {
      // One that differs by sample is brought like data.
      if (constant >= 0)
        store_values(graph.constants[static_cast<size_t>(constant)].values, type.dtype, out);
      else
        request.load(buffer.tensor, buffer.micro_batch, out);
    };
    bool wanted = false;
    for (int32_t slot : program.slots_of[b])
      if (own.mine(slot)) {
        slots->allocate(slot);
        wanted = true;
      }
    if (!wanted) continue;
    if (program.devices == 1) {
      load(slots->bytes(program.slots_of[b][0]).first(size));
      continue;
    }
    const auto [entry, fresh] = loaded.try_emplace({buffer.tensor, buffer.micro_batch});
    if (fresh) {
      entry->second.resize(size);
      load(entry->second);
    }
    scatter(*slots, program, own, BufferId(b), type.dtype, entry->second);
  }
}

Executor::Executor(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times,
                   const SimResult& simulated, const Machine& machine,
                   const ExecutorOptions& options, const Executor* beside)
    : state_(std::make_shared<State>(training, tasks, times, simulated, machine, options,
                                     beside == nullptr ? nullptr : beside->state_)) {
  // A thread that does not come back keeps what it works on.
  for (size_t w = 0; w < state_->workers.size(); ++w)
    state_->workers[w]->thread = std::thread([state = state_, w] { state->work(w); });
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

std::vector<double> Executor::micro_batch_losses() const { return state_->runner->losses(); }

void Executor::give_back() {
  State& state = *state_;
  for (size_t b = 0; b < state.tasks.buffers.size(); ++b)
    if (!state.program.rests[b])
      for (int32_t slot : state.program.slots_of[b]) state.slots->release(slot);
}

double Executor::last_loss() const { return state_->runner->loss(); }

void Executor::watch_gradients(std::function<void(const GradientPiece&)> watch) {
  state_->runner->watch = std::move(watch);
}

Arena* Executor::device_arena() {
  if (!state_->own.alone()) return nullptr;
  Arena* found = nullptr;
  for (size_t m = 0; m < state_->arenas.size(); ++m)
    if (state_->program.memories[m].device.valid()) {
      if (found != nullptr) return nullptr;
      found = state_->arenas[m].get();
    }
  return found;
}

std::vector<int64_t> Executor::live_bytes() const {
  std::vector<int64_t> bytes;
  for (const auto& arena : state_->arenas) bytes.push_back(arena->statistics().live);
  return bytes;
}

}  // namespace windlass
