// What a simulated step comes to, as plain data: how long, where the time goes, what fills each
// memory, what crosses each link. Text and JSON are written from this.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "windlass/cost/runner.h"
#include "windlass/plan/degrees.h"
#include "windlass/plan/step.h"
#include "windlass/sim/summary.h"

namespace windlass {

// What a report says about the step but cannot see in it.
struct StepFacts {
  std::string model, machine, strategy;  // as the user named them
  std::string provenance;                // of the prices: "analytic"
  Runner runner = {};                    // who carries it out
  int64_t samples = 0;                   // a step
  int64_t micro_batches = 1;
  std::optional<int64_t> tokens_per_sample = std::nullopt;
  // Of the step's time on calibrated devices: between what their kernels take at the lower and at
  // the upper end.
  std::optional<std::pair<Seconds, Seconds>> range = std::nullopt;
  Flops model_flops = {};  // of forward and backward pass, nothing computed twice
  int64_t parameters = 0;  // trained; 0: not known
  std::optional<Degrees> degrees = std::nullopt;
};

// Bytes alive together under one name: a tensor of all micro-batches that hold it, and of all
// layers that are numbered in its name ("transformer.h.*.ln_1").
struct AliveTensor {
  std::string name;
  BufferKind kind = BufferKind::Transient;
  int64_t buffers = 0;
  Bytes bytes;  // of all of them
};

// The memory of each of some devices that hold the same, or of each of some hosts.
struct MemoryReport {
  std::string name;
  std::vector<DeviceId> devices;  // empty for hosts
  std::vector<NodeId> hosts;
  Bytes limit, peak;
  Bytes footprint;  // that a card shows at the peak: with context, communicators, fragmentation
  Seconds peak_time;
  std::string peak_task;                      // that started then; empty: the state at the start
  std::array<Bytes, kBufferKinds> at_peak{};  // by BufferKind
  Bytes workspace;                            // at the peak
  std::vector<AliveTensor> largest;           // at the peak, descending
  std::array<Bytes, kBufferKinds> most{};     // by BufferKind, each at its own moment
  Bytes kept;                                 // the most that was kept between the passes
};

struct TeamReport {
  std::string name;
  size_t devices = 0;
  Breakdown time;
};

// Links that always carry the same.
struct LinkReport {
  std::string name;  // of the first
  std::vector<LinkDirection> directions;
  std::vector<Bytes> bytes;  // parallel: that cross each in the step
  BytesPerSecond bandwidth;  // of each
  double busy = 0;           // share of the step during which something is under way on it
  double utilisation = 0;    // bytes over what it could carry in the step
};

// Why a step does not fit.
struct MemoryFailure {
  std::string memory;
  std::string task;  // empty: what is there before the step begins is too much
  Bytes missing;     // beyond the limit
  Bytes limit;
  Seconds time;
  std::vector<AliveTensor> alive;      // then and there, descending
  std::optional<Bytes> minimum_limit;  // of each device, at which this strategy runs
};

struct SimulationReport {
  StepFacts facts;
  // If set, everything else is of the same step without limits.
  std::optional<MemoryFailure> failure;
  Seconds step_time;
  Seconds overhead;        // of it, on the host beside all tasks
  size_t devices = 0;      // that take part
  size_t all_devices = 0;  // of the machine
  size_t tasks = 0;
  Utilisation use;
  Breakdown mean;                      // over the devices
  std::vector<TeamReport> teams;       // the least share of computing first
  std::vector<MemoryReport> memories;  // in the order of the task graph
  std::vector<LinkReport> links;       // descending by utilisation

  double samples_per_second() const;
  // Of the fullest device at its peak; 0 if parameters are not known.
  double bytes_per_parameter() const;
};

// `training` gives tasks and tensors their names. `largest`: how many tensors are listed.
SimulationReport report_simulation(const SimulatedStep& step, const Graph* training,
                                   const Machine& machine, StepFacts facts, size_t largest = 8);

// For each device of the machine, the index of its memory in the report; -1 if the strategy does
// not use it.
std::vector<int32_t> memory_of_devices(const SimulationReport& report, const Machine& machine);

// One line for the reader who asks why: "gpu0: 3.20 GiB are missing for forward ...".
std::string failure_reason(const MemoryFailure& failure);

}  // namespace windlass
