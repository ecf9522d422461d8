// What is known of streamed packs before any simulation: the time of computing, and cuts that fit.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/machine/machine.h"
#include "windlass/search/packs/stash_partition.h"
#include "windlass/search/peers/harmony/harmony_plan.h"

namespace windlass {

// `replicas` pipelines of `depth` devices each.
struct PipelineShape {
  int32_t replicas = 1, depth = 1;

  // Samples of the busiest pipeline.
  int64_t share(int64_t minibatch) const { return (minibatch + replicas - 1) / replicas; }
};

class StreamBounds {
 public:
  // The chain and the machine must outlive it.
  StreamBounds(ChainTables& chain, const Machine& machine, int64_t minibatch, int64_t limit)
      : chain_(chain), machine_(machine), minibatch_(minibatch), limit_(limit) {}

  // Of all samples of a device: forward over the layers before `end`, and backward with recompute
  // over all.
  double forward_seconds(int64_t samples, int64_t size, int32_t end);
  double backward_seconds(int64_t samples, int64_t size);
  // No plan of a shape and of these micro-batch sizes, for all samples of a pipeline, has shorter
  // steps. Layers are computed forward twice but for those of the loss pack, which fits into memory
  // with all it saves, and those whose activations are kept: until the backward pass begins, as
  // much as fits into memory and has left for the host. And a micro-batch is at one place at a
  // time.
  double least_step(PipelineShape shape, const MicroBatchSizes& sizes);
  // Bytes of a device while it runs a backward pack, gradients at the borders of all samples
  // included.
  int64_t pack_bytes(const PassTable& table, Pack pack, int64_t samples, int64_t size) const;
  // Backward packs of at most `cap` such bytes: the least traffic of inputs, and, if wanted, the
  // largest loss pack that pays, since it is not computed twice. Empty if there are none. Exact.
  std::vector<Pack> cut(int64_t samples, int64_t size, int64_t cap, bool large_loss);
  // The same with inputs that wait on the device as far as `cap` goes. A byte that crosses to or
  // from the host counts `byte_seconds`, a layer of the loss pack saves its forward pass.
  StashPartition cut_and_place(int64_t samples, int64_t size, int64_t cap, double byte_seconds);

 private:
  // Weights, gradients and activations of a pack.
  int64_t pack_peak(const PassTable& table, Pack pack) const;

  // The first layer of the largest loss pack that could fit.
  int32_t first_of_loss(int64_t size);
  class Savings;

  // Bytes a second from the devices of a pipeline to the host, if all replicas send as much.
  double to_host(PipelineShape shape) const;

  ChainTables& chain_;
  const Machine& machine_;
  int64_t minibatch_, limit_;
};

}  // namespace windlass
