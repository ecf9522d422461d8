// The state of an executor, which its threads share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "windlass/runtime/compute_pacer.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/jobs.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/slots.h"
#include "windlass/runtime/standstill.h"
#include "windlass/runtime/task_runner.h"
#include "windlass/runtime/watchdog.h"

namespace windlass {

// What Executor::State::before holds of a job that runs, and of one that has ended.
inline constexpr int32_t kUnderWay = -1, kEnded = -2;

// A thread and the jobs that are ready for it.
struct WorkerThread {
  // A short move that became ready while nothing else was: done here instead of waking up the
  // thread of its lane. Of the thread's own.
  int32_t chained = -1;
  std::mutex mutex;
  std::condition_variable changed;
  struct Ready {
    int32_t job = -1;
    std::chrono::steady_clock::time_point since;
  };
  std::deque<Ready> ready;
  bool closing = false;
  std::thread thread;
};

struct Executor::State {
  using Clock = std::chrono::steady_clock;

  State(const TrainingGraph& training_graph, const TaskGraph& graph, const TaskTimes& times,
        const SimResult& simulated, const Machine& machine, const ExecutorOptions& given,
        std::shared_ptr<State> other);

  // Ends the threads, or leaves them alone if some do not come back.
  void close();
  void work(size_t worker);
  void make_memory();
  void take_memory(const State& other);
  void begin();
  void wait_for_end();
  StepState look_at(std::vector<int32_t>& running) const;
  void set_error(std::exception_ptr thrown, std::string at);
  void run_job(int32_t id, ComputePacer& pacer, Clock::time_point ready);
  void come_ready(int32_t id);
  void dispatch(int32_t id);
  bool chain(int32_t id);
  void end_active();
  void admit(const std::vector<int32_t>& admitted);
  void finish(int32_t id);
  void load_inputs(const StepRequest& request);
  // Of several processes: what each has seen of a step, put together in all of them. `shared_now`:
  // when it began here, by the clock of all.
  void tell_outcome(StepOutcome& outcome, double shared_now);
  std::string list_alive(size_t memory) const;
  // Whose part it is; none of what several do together, or a host.
  DeviceId device_of(const Job& job) const {
    if (job.part < 0) return {};
    const ProgramTask& task = program.tasks[job.task.index()];
    const int32_t memory = task.parts[static_cast<size_t>(job.part)].memory;
    return program.memories[static_cast<size_t>(memory)].device;
  }
  Nanoseconds now() const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - began).count();
  }

  const TrainingGraph& training;
  const TaskGraph& tasks;
  const ExecutorOptions options;
  const size_t machine_devices;
  Program program;
  const Ownership own;
  const JobGraph graph_of_jobs;
  const std::shared_ptr<State> beside;         // whose memory it works in; null: in its own
  std::vector<std::shared_ptr<Arena>> arenas;  // by memory of the program
  std::shared_ptr<Slots> slots;
  std::unique_ptr<TaskRunner> runner;

  std::unique_ptr<std::atomic<int32_t>[]> before;  // by job: those that have not ended, or kEnded
  std::unique_ptr<std::atomic<int32_t>[]> asking;  // by job: memories that have not let it in
  std::vector<Nanoseconds> start, end;             // by job
  std::atomic<int64_t> active = 0;                 // jobs that are ready or run
  std::atomic<int64_t> left = 0;                   // jobs that have not ended
  std::atomic<bool> failed = false;
  std::mutex mutex;  // of what ends a step
  std::condition_variable step_over;
  std::exception_ptr error;
  std::string failed_at;   // the task whose error it is
  bool abandoned = false;  // threads did not come back
  Watchdog watchdog;
  Clock::time_point began;

  std::vector<std::unique_ptr<WorkerThread>> workers;
  std::vector<bool> is_short;  // by job: a move between devices
  static thread_local WorkerThread* this_worker;
};

}  // namespace windlass
