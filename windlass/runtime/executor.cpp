#include "windlass/runtime/executor.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <sys/prctl.h>
#include <thread>

#include <ATen/core/LegacyTypeDispatch.h>

#include "windlass/base/error.h"
#include "windlass/model/convert.h"
#include "windlass/runtime/compute_pacer.h"
#include "windlass/runtime/jobs.h"
#include "windlass/runtime/memory/torch_allocator.h"
#include "windlass/runtime/resting_tensors.h"
#include "windlass/runtime/task_runner.h"
#include "windlass/runtime/threads.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

using Clock = std::chrono::steady_clock;

// The allocator of libtorch's data in a device rounds as lower() assumes; the host's does not.
constexpr int64_t kHostUnit = 1;

// A move that takes less than it takes to wake up threads is not worth another one.
constexpr Nanoseconds kShort = 100'000;

// A thread and the jobs that are ready for it.
struct WorkerThread {
  // A short move that became ready while nothing else was: done here instead of waking up the
  // thread of its lane. Of the thread's own.
  int32_t chained = -1;
  std::mutex mutex;
  std::condition_variable changed;
  struct Ready {
    int32_t job = -1;
    Clock::time_point since;
  };
  std::deque<Ready> ready;
  bool closing = false;
  std::thread thread;
};

}  // namespace

struct Executor::State {
  State(const TrainingGraph& training_graph, const TaskGraph& graph, const TaskTimes& times,
        const SimResult& simulated, const Machine& machine, const ExecutorOptions& given);
  ~State();

  void work(size_t worker);
  void begin();
  void run_job(int32_t id, ComputePacer& pacer, Clock::time_point ready);
  void come_ready(int32_t id);
  void dispatch(int32_t id);
  bool chain(int32_t id);
  void end_active();
  void admit(const std::vector<int32_t>& admitted);
  void finish(int32_t id);
  void load_inputs(const StepRequest& request);
  std::string list_alive(size_t memory) const;
  Nanoseconds now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began).count();
  }

  const TrainingGraph& training;
  const TaskGraph& tasks;
  const ExecutorOptions options;
  Program program;
  const JobGraph graph_of_jobs;
  std::vector<std::unique_ptr<Arena>> arenas;  // by memory of the program
  std::unique_ptr<Slots> slots;
  std::unique_ptr<TaskRunner> runner;

  std::unique_ptr<std::atomic<int32_t>[]> before;  // by job: those that have not ended
  std::unique_ptr<std::atomic<int32_t>[]> asking;  // by job: memories that have not let it in
  std::vector<Nanoseconds> start, end;             // by job
  std::atomic<int64_t> active = 0;                 // jobs that are ready or run
  std::atomic<int64_t> left = 0;                   // jobs that have not ended
  std::atomic<bool> failed = false;
  std::mutex mutex;  // of what ends a step
  std::condition_variable step_over;
  std::exception_ptr error;
  Clock::time_point began;

  std::vector<std::unique_ptr<WorkerThread>> workers;
  std::vector<bool> is_short;  // by job: a move between devices
  static thread_local WorkerThread* this_worker;
};

thread_local WorkerThread* Executor::State::this_worker = nullptr;

Executor::State::State(const TrainingGraph& training_graph, const TaskGraph& graph,
                       const TaskTimes& times, const SimResult& simulated, const Machine& machine,
                       const ExecutorOptions& given)
    : training(training_graph),
      tasks(graph),
      options(given),
      program(make_program(training_graph, machine, graph, given.sample_axes)),
      graph_of_jobs(make_jobs(graph, program, memory_order(graph, times, simulated))) {
  install_allocator();
  if (options.paranoid) report_bad_accesses();
  // With several devices BLAS has one thread: products are divided by windlass, on the device's
  // own.
  set_blas_threads(program.devices > 1 ? 1 : options.threads);
  std::vector<Arena*> by_memory;
  for (const RealMemory& memory : program.memories) {
    arenas.push_back(std::make_unique<Arena>(memory.name, memory.limit.value,
                                             memory.device.valid() ? kAllocationUnit : kHostUnit,
                                             options.paranoid));
    by_memory.push_back(arenas.back().get());
  }
  slots = std::make_unique<Slots>(program, by_memory);
  runner = std::make_unique<TaskRunner>(training, tasks, program, *slots, machine, options);
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    if (!program.rests[b]) continue;
    for (int32_t slot : program.slots_of[b]) {
      if (slots->holds(slot)) continue;
      slots->allocate(slot);
      const std::span<std::byte> bytes = slots->bytes(slot);
      std::memset(bytes.data(), 0, bytes.size());
    }
  }
  for (const auto& gate : graph_of_jobs.gates)
    gate->release = [this](const MemoryGate::Life& life) {
      for (int32_t slot : life.slots) slots->release(slot);
    };
  for (size_t m = 0; m < arenas.size(); ++m)
    arenas[m]->set_context([this, m] { return list_alive(m); });
  for (const Job& job : graph_of_jobs.jobs) {
    const size_t task = job.task.index();
    is_short.push_back(job.part < 0 && exchanges(tasks[job.task].kind) &&
                       simulated.end[task] - simulated.start[task] < kShort);
  }
  const size_t jobs = graph_of_jobs.jobs.size();
  before = std::make_unique<std::atomic<int32_t>[]>(jobs);
  asking = std::make_unique<std::atomic<int32_t>[]>(jobs);
  for (size_t w = 0; w < graph_of_jobs.workers.size(); ++w)
    workers.push_back(std::make_unique<WorkerThread>());
  for (size_t w = 0; w < workers.size(); ++w)
    workers[w]->thread = std::thread([this, w] { work(w); });
}

Executor::State::~State() {
  for (const auto& worker : workers) {
    {
      const std::lock_guard lock(worker->mutex);
      worker->closing = true;
    }
    worker->changed.notify_all();
  }
  for (const auto& worker : workers) worker->thread.join();
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
  if (active.fetch_sub(1) != 1 || !(failed || left == 0)) return;
  const std::lock_guard lock(mutex);
  step_over.notify_all();
}

void Executor::State::run_job(int32_t id, ComputePacer& pacer, Clock::time_point ready) {
  const Job& job = graph_of_jobs.jobs[static_cast<size_t>(id)];
  try {
    start[static_cast<size_t>(id)] = now();
    if (options.paranoid) doing(runner->label(job.task, job.part));
    if (options.delay) options.delay(job.task.value, job.part);
    if (pacer.paces()) pacer.begin();
    runner->run(job.task, job.part);
    if (pacer.paces()) pacer.end(ready);
    if (options.paranoid)
      for (const auto& arena : arenas) arena->check_guards();
    end[static_cast<size_t>(id)] = now();
    finish(id);
  } catch (...) {
    const std::lock_guard lock(mutex);
    if (!error) error = std::current_exception();
    failed = true;
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
    const TensorType& type = training.graph[buffer.tensor].type;
    const auto size = static_cast<size_t>(byte_size(type).value);
    const int32_t constant = training.graph[buffer.tensor].constant;
    const auto load = [&](std::span<std::byte> out) {
      // One that differs by sample is brought like data.
      if (constant >= 0)
        store_values(training.graph.constants[static_cast<size_t>(constant)].values, type.dtype,
                     out);
      else
        request.load(buffer.tensor, buffer.micro_batch, out);
    };
    for (int32_t slot : program.slots_of[b]) slots->allocate(slot);
    if (program.devices == 1) {
      load(slots->bytes(program.slots_of[b][0]).first(size));
      continue;
    }
    const auto [entry, fresh] = loaded.try_emplace({buffer.tensor, buffer.micro_batch});
    if (fresh) {
      entry->second.resize(size);
      load(entry->second);
    }
    scatter(*slots, program, BufferId(b), type.dtype, entry->second);
  }
}

// What lies in a memory, for messages. Other threads go on meanwhile: it is as good as a look.
std::string Executor::State::list_alive(size_t memory) const {
  std::vector<std::pair<int64_t, BufferId>> alive;
  for (size_t s = 0; s < program.slots.size(); ++s)
    if (program.slots[s].memory == static_cast<int32_t>(memory) &&
        slots->holds(static_cast<int32_t>(s)))
      alive.emplace_back(program.slots[s].bytes, program.slots[s].buffer);
  std::ranges::stable_sort(alive, std::greater<>{}, &std::pair<int64_t, BufferId>::first);
  std::string text = "alive there:";
  constexpr size_t kListed = 12;
  for (size_t i = 0; i < std::min(alive.size(), kListed); ++i) {
    const Buffer& buffer = tasks[alive[i].second];
    text += fmt::format("\n  {:>12}  {} ({})", format_bytes(Bytes(alive[i].first)),
                        buffer.tensor.valid() ? training.graph[buffer.tensor].name : "",
                        buffer_kind_name(buffer.kind));
  }
  if (alive.size() > kListed) text += fmt::format("\n  and {} more", alive.size() - kListed);
  return text;
}

Executor::Executor(const TrainingGraph& training, const TaskGraph& tasks, const TaskTimes& times,
                   const SimResult& simulated, const Machine& machine,
                   const ExecutorOptions& options)
    : state_(std::make_unique<State>(training, tasks, times, simulated, machine, options)) {}

Executor::~Executor() = default;

std::vector<PersistentTensor> Executor::persistent() {
  return resting_tensors(state_->training, state_->tasks, state_->program, *state_->slots);
}

void Executor::State::begin() {
  const auto& jobs = graph_of_jobs.jobs;
  start.assign(jobs.size(), -1);
  end.assign(jobs.size(), -1);
  for (const auto& gate : graph_of_jobs.gates) gate->begin_step();
  for (size_t j = 0; j < jobs.size(); ++j) {
    before[j] = jobs[j].before;
    asking[j] = static_cast<int32_t>(jobs[j].asks.size());
  }
  left = static_cast<int64_t>(jobs.size());
  // As one that is active, so that the step is not over before all have been told.
  ++active;
  for (size_t j = 0; j < jobs.size(); ++j)
    if (jobs[j].before == 0) come_ready(static_cast<int32_t>(j));
  --active;
}

StepOutcome Executor::run(const StepRequest& request) {
  State& state = *state_;
  if (state.failed) fail(ErrorKind::Runtime, "the run has failed already");
  for (const auto& arena : state.arenas) arena->reset_peak();
  state.began = Clock::now();
  state.runner->begin_step(request);
  state.load_inputs(request);
  state.begin();
  {
    std::unique_lock lock(state.mutex);
    state.step_over.wait(lock,
                         [&] { return state.active == 0 && (state.failed || state.left == 0); });
    if (state.error) std::rethrow_exception(state.error);
  }
  for (const Program::Carry& carry : state.program.carries) state.slots->pass(carry.from, carry.to);
  StepOutcome outcome;
  outcome.time = state.now();
  outcome.start.assign(state.tasks.size(), -1);
  outcome.end.assign(state.tasks.size(), -1);
  for (size_t j = 0; j < state.graph_of_jobs.jobs.size(); ++j) {
    const size_t task = state.graph_of_jobs.jobs[j].task.index();
    if (outcome.end[task] >= state.end[j]) continue;
    outcome.start[task] = state.start[j];
    outcome.end[task] = state.end[j];
  }
  outcome.loss = state.runner->loss();
  outcome.gradient_norm = state.runner->gradient_norm();
  outcome.peaks.assign(state.tasks.memories.size(), 0);
  for (size_t m = 0; m < state.arenas.size(); ++m) {
    int64_t& peak = outcome.peaks[state.program.memories[m].memory.index()];
    peak = std::max(peak, state.arenas[m]->statistics().peak);
  }
  return outcome;
}

void collect(const GradientPiece& piece, const Shape& shape, std::vector<std::byte>& whole) {
  if (piece.mine.size() == 0) return;
  const size_t each = piece.bytes.size() / static_cast<size_t>(piece.mine.size());
  whole.resize(static_cast<size_t>(element_count(shape)) * each);
  for (int64_t i = piece.mine.begin; i < piece.mine.end; ++i)
    std::memcpy(whole.data() + static_cast<size_t>(whole_element(piece.region, i)) * each,
                piece.bytes.data() + static_cast<size_t>(i - piece.mine.begin) * each, each);
}

bool Executor::needs_counts() const { return state_->program.needs_counts(); }

double Executor::last_loss() const { return state_->runner->loss(); }

void Executor::watch_gradients(std::function<void(const GradientPiece&)> watch) {
  state_->runner->watch = std::move(watch);
}

Arena* Executor::device_arena() {
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
