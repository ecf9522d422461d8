#include "windlass/runtime/evaluation.h"

#include <optional>

#include "windlass/runtime/forward_pass.h"
#include "windlass/runtime/memory/torch_allocator.h"

namespace windlass {

double evaluate_loss(const TrainingGraph& training, Executor& executor,
                     const std::function<void(TensorId, std::span<std::byte>)>& load,
                     const std::vector<double>& mean_counts, int32_t micro_batch) {
  std::optional<ArenaScope> scope;
  if (Arena* arena = executor.device_arena()) scope.emplace(*arena);
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  return ForwardPass(training, executor, load, mean_counts, ForwardMode::Use, micro_batch).run();
}

}  // namespace windlass
