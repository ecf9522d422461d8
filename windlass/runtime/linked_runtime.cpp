#include "windlass/runtime/linked_runtime.h"

#include "windlass/base/version.h"
#include "windlass/runtime/measure.h"
#include "windlass/runtime/trainer.h"

namespace windlass {
namespace {

class LinkedRuntime final : public Runtime {
 public:
  KernelPrice measure_op(const KernelRun& run, int threads, int devices) override {
    return windlass::measure_op(run, threads, devices);
  }
  Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads,
                             int devices) override {
    return windlass::measure_update(variant, elements, threads, devices);
  }
  std::unique_ptr<Training> train(const Model& model, const TrainingGraph& training,
                                  const SimulatedStep& step, const Machine& machine,
                                  const TrainerOptions& options) override {
    return std::make_unique<Trainer>(model, training, step, machine, options);
  }
};

}  // namespace

Runtime& linked_runtime() {
  static LinkedRuntime runtime;
  return runtime;
}

extern "C" Runtime* windlass_runtime_entry(const char* version) {
  return version == kVersion ? &linked_runtime() : nullptr;
}

}  // namespace windlass
