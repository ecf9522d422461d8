// The state of an executor, which its threads share.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "windlass/runtime/device.h"
#include "windlass/runtime/executor.h"
#include "windlass/runtime/jobs.h"
#include "windlass/runtime/ownership.h"
#include "windlass/runtime/slots.h"
#include "windlass/runtime/standstill.h"
#include "windlass/runtime/step_inputs.h"
#include "windlass/runtime/task_runner.h"
#include "windlass/runtime/watchdog.h"

namespace windlass {

// What Executor::State::before holds of a job that runs, and of one that has ended.
inline constexpr int32_t kUnderWay = -1, kEnded = -2;

struct Executor::State {
  using Clock = DeviceLane::Clock;

  State(const TrainingGraph& training_graph, const TaskGraph& graph, const TaskTimes& times,
        const SimResult& simulated, const Machine& machine, const ExecutorOptions& given,
        std::shared_ptr<State> other, const RowShape& row, const DeviceMaker& make_device);

  static void start_lanes(const std::shared_ptr<State>& state);
  // Ends the threads, or leaves them alone if some do not come back.
  void close();
  void work(DeviceLane& lane, LaneWork& how, int32_t job, Clock::time_point ready);
  void make_memory(const DeviceMaker& make_device);
  void take_memory(const State& other);
  void begin();
  void wait_for_end();
  // Whether the step that is waited for is over; of the last one, all threads must be done.
  bool step_ended() const;
  StepOutcome outcome_of(size_t step);
  StepState look_at(std::vector<int32_t>& running) const;
  // `job`: whose error it is; -1: none's.
  void set_error(std::exception_ptr thrown, int32_t job = -1);
  // `run` calls what it is given, on the calling thread, and returns when that ended by the clock
  // of its device.
  template <class Run>
  void run_job(int32_t id, Run&& run);
  void come_ready(int32_t id);
  void dispatch(int32_t id);
  bool chain(int32_t id);
  void end_active();
  // `when`: what they waited for was there, by the clocks of devices, as of finish().
  void admit(const std::vector<int32_t>& admitted, Nanoseconds when);
  void finish(int32_t id, Nanoseconds when);
  void wait_until(int32_t id, Nanoseconds when);
  // Of several processes: what each has seen of a step, put together in all of them.
  void tell_outcome(StepOutcome& outcome);
  std::string list_alive(size_t memory) const;
  // That ended last, or whose error ended the run.
  size_t last_step() const { return failed ? failed_step : waited == 0 ? 0 : waited - 1; }
  // Whose part it is; none of what several do together, or a host.
  DeviceId device_of(const Job& job) const {
    if (job.part < 0) return {};
    const ProgramTask& task = program.tasks[job.task.index()];
    const int32_t memory = task.parts[static_cast<size_t>(job.part)].memory;
    return program.memories[static_cast<size_t>(memory)].device;
  }
  // Where the time of a job is told of: at its device; or, if several processes do it together, at
  // those of this one that have a part in it.
  std::vector<DeviceId> told_at(const Job& job) const;
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
  const std::shared_ptr<State> beside;               // whose memory it works in; null: in its own
  std::vector<std::shared_ptr<RealDevice>> devices;  // by memory of the program
  std::shared_ptr<Slots> slots;
  std::unique_ptr<TaskRunner> runner;
  std::unique_ptr<StepInputs> inputs;

  std::unique_ptr<std::atomic<int32_t>[]> before;  // by job: those that have not ended, or kEnded
  std::unique_ptr<std::atomic<int32_t>[]> asking;  // by job: memories that have not let it in
  // By job: when all that it waited for was there, by the clocks of devices.
  std::unique_ptr<std::atomic<Nanoseconds>[]> due;
  std::vector<Nanoseconds> start, end;   // by job
  std::atomic<int64_t> active = 0;       // jobs that are ready or run
  std::atomic<int64_t> moves_ready = 0;  // that no thread has begun, of lanes that do not compute
  std::atomic<int64_t> left = 0;         // jobs that have not ended
  std::vector<std::atomic<int64_t>> left_of;  // by step of the row
  std::atomic<bool> failed = false;
  std::mutex mutex;  // of what ends a step
  std::condition_variable step_over;
  std::exception_ptr error;
  std::string failed_at;      // the task whose error it is
  size_t failed_step = 0;     // of the row
  size_t waited = 0;          // the step of the row that is waited for
  Nanoseconds ended_at = 0;   // the step before that
  double shared_began = 0;    // when the row began, by the clock of all processes
  double next_alignment = 0;  // of rank 0: when that is set anew
  bool abandoned = false;     // threads did not come back
  Watchdog watchdog;
  Clock::time_point began;

  std::vector<std::unique_ptr<DeviceLane>> lanes;  // by worker of the job graph
  std::vector<bool> is_short;                      // by job: a move between devices
  static thread_local DeviceLane* this_lane;
};

}  // namespace windlass
