// The forward pass of one micro-batch, op by op, outside of any plan.
#pragma once

#include <cstddef>
#include <functional>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>

#include "windlass/graph/differentiate.h"
#include "windlass/runtime/executor.h"

namespace windlass {

enum class ForwardMode : uint8_t {
  Use,    // as a trained model is used: no dropout, running statistics
  Train,  // statistics of the batch; dropout is left out all the same, and nothing is updated
};

// Tensors live op by op, as short as they can, in the arena of the calling thread; weights that do
// not lie whole on the only device are brought for the ops that read them. No step may run at the
// same time.
class ForwardPass {
 public:
  // `load` writes an input or label. `mean_counts` is by op, or empty (load_counts.h). The sizes
  // are those of the micro-batch.
  ForwardPass(const TrainingGraph& training, Executor& executor,
              const std::function<void(TensorId, std::span<std::byte>)>& load,
              const std::vector<double>& mean_counts, ForwardMode mode = ForwardMode::Use,
              int32_t micro_batch = 0);

  // Sees every tensor when it is first read or made, and the op that does so; false ends the pass.
  using Watch = std::function<bool(TensorId, const at::Tensor&, const Op&)>;
  // The loss; zero if the watch ended the pass.
  double run(const Watch& watch = {});

 private:
  at::Tensor view(TensorId id) const;
  bool bring(TensorId id, const Op& reader, const Watch& watch);
  void hold(TensorId root, at::Tensor made);
  bool run(OpId id, const Watch& watch);
  void drop_after(size_t index);

  // What a mean divides by; -1: what is there.
  double mean_count(OpId id) const;

  const TrainingGraph& training_;
  const int32_t micro_batch_;
  const Graph& graph_;
  const std::function<void(TensorId, std::span<std::byte>)>& load_;
  const std::vector<double>& mean_counts_;
  ForwardMode mode_;
  std::vector<void*> values_;  // by tensor; of views, that of the root
  std::vector<TensorId> root_;
  std::vector<size_t> last_;  // by root: the op that reads it last
  std::vector<std::function<void(std::span<std::byte>)>> resting_;  // how to bring it, if it rests
  std::vector<bool> seen_;  // by root: the watch has seen it
  std::vector<std::pair<TensorId, at::Tensor>> held_;
};

}  // namespace windlass
