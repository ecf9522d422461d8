#include "windlass/runtime/linked_runtime.h"

#include <filesystem>
#include <link.h>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/version.h"
#include "windlass/runtime/join_ranks.h"
#include "windlass/runtime/measure.h"
#include "windlass/runtime/rehearse.h"
#include "windlass/runtime/trainer.h"

namespace windlass {
namespace {

// Of libtorch and what it computes with, and of this runtime.
std::vector<std::string> kernel_libraries() {
  std::set<std::string> found;
  dl_iterate_phdr(
      [](dl_phdr_info* info, size_t, void* out) {
        const std::string_view path = info->dlpi_name;
        for (const char* part : {"libtorch", "libc10", "libwindlass_runtime", "blas", "libmkl",
                                 "libdnnl", "libmkldnn", "libgomp"}) {
          if (path.find(part) == std::string_view::npos) continue;
          std::error_code failed;
          const std::filesystem::path real = std::filesystem::canonical(path, failed);
          if (!failed) static_cast<std::set<std::string>*>(out)->insert(real.string());
        }
        return 0;
      },
      &found);
  return {found.begin(), found.end()};
}

class LinkedRuntime final : public Runtime {
 public:
  KernelPrice measure_op(const KernelRun& run, int threads, int devices) override {
    return windlass::measure_op(run, threads, devices);
  }
  Nanoseconds measure_update(const UpdateVariant& variant, int64_t elements, int threads,
                             int devices) override {
    return windlass::measure_update(variant, elements, threads, devices);
  }

  Nanoseconds measure_compression(const CompressionVariant& variant, int64_t elements, int threads,
                                  int devices) override {
    return windlass::measure_compression(variant, elements, threads, devices);
  }
  std::vector<std::string> libraries() override { return kernel_libraries(); }
  std::unique_ptr<Training> train(const Model& model, const TrainingGraph& training,
                                  const SimulatedStep& step, const Machine& machine,
                                  const TrainerOptions& options) override {
    return std::make_unique<Trainer>(model, training, step, machine, options);
  }
  RehearsalReport rehearse(const TrainingGraph& training, const SimulatedStep& step,
                           const Machine& machine, const std::vector<int32_t>& sample_axes,
                           int32_t ranks) override {
    return windlass::rehearse(training, step, machine, sample_axes, ranks);
  }
  std::unique_ptr<Ranks> join(const RankPlace& place) override { return join_ranks(place); }
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
