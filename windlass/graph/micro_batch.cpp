#include "windlass/graph/micro_batch.h"

namespace windlass {

MicroBatch cut_training(const Graph& network, const BatchAxes& batch, int64_t parts,
                        const TrainingOptions& options) {
  if (parts == 1) return {differentiate(network, options), batch};
  const Graph part = cut_batch(network, batch, parts);
  return {differentiate(part, options), find_batch(part)};
}

}  // namespace windlass
