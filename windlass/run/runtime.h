// The door to the runtime: all that runs kernels, and so needs libtorch, lies behind it, in a
// shared library that is opened when it is needed. A verb that runs no kernel does not wait for
// libtorch.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "windlass/graph/differentiate.h"
#include "windlass/machine/machine.h"
#include "windlass/model/model.h"
#include "windlass/plan/step.h"
#include "windlass/run/kernel_run.h"
#include "windlass/run/ranks.h"
#include "windlass/run/rehearsal.h"
#include "windlass/run/training.h"
#include "windlass/sim/simulate.h"

namespace windlass {

struct KernelPrice {
  Nanoseconds time = 0;
  int64_t workspace = 0;  // most that it held beside operands and results
};

// What the time of an update depends on beside its size.
struct UpdateVariant {
  OptimizerKind optimizer = OptimizerKind::Adam;
  DType weight = DType::F32, gradient = DType::F32;
  bool master = false;
  auto operator<=>(const UpdateVariant&) const = default;
};

// What the time of compressing a saved tensor depends on beside its size.
struct CompressionVariant {
  DType dtype = DType::F32;
  int bits = 4;
  bool back = false;  // decompresses
  auto operator<=>(const CompressionVariant&) const = default;
};

class Runtime {
 public:
  virtual ~Runtime() = default;

  // Runs a kernel on so many devices at the same time, as far as there are cores, each with
  // operands of its own and so many threads: what the slowest of them takes.
  virtual KernelPrice measure_op(const KernelRun& run, int threads, int devices) = 0;

  // Updates one weight with so many elements, likewise. Its tensors are not in the caches, as when
  // a step updates one weight after the other.
  virtual Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads,
                                     int devices) = 0;

  // Compresses so many elements, or gets them back, likewise.
  virtual Nanoseconds measure_compression(const CompressionVariant& variant, int64_t elements,
                                          int threads, int devices) = 0;

  // Paths of the libraries whose code kernels run, as they are loaded.
  virtual std::vector<std::string> libraries() { return {}; }

  // A Trainer (runtime/trainer.h), which says what is expected of the arguments.
  virtual std::unique_ptr<Training> train(const Model& model, const TrainingGraph& training,
                                          const SimulatedStep& step, const Machine& machine,
                                          const TrainerOptions& options) = 0;

  // Meets the other processes of a run (runtime/join_ranks.h).
  virtual std::unique_ptr<Ranks> join(const RankPlace& place);
  // Walks over the programs of so many processes (runtime/rehearse.h).
  virtual RehearsalReport rehearse(const TrainingGraph& training, const SimulatedStep& step,
                                   const Machine& machine, const std::vector<int32_t>& sample_axes,
                                   int32_t ranks);
};

// The runtime of this program, opened by the first call. It stays open. The library lies in the
// program's own folder (a build) or in the folder of libraries beside it (an installed tree), and
// takes from the program what is not its own. Throws Error{Runtime} if it cannot be opened.
Runtime& open_runtime();

// What open_runtime() looks for in the library: the function of this name and type. It returns null
// if the library is not of the program's version.
inline constexpr const char* kRuntimeEntry = "windlass_runtime_entry";
using RuntimeEntry = Runtime*(const char* version);

}  // namespace windlass
