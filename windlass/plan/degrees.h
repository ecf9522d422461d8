// A strategy in the words of other systems: how many ways data, tensors, layers, sequences and
// experts are split, what is shared out, what is computed again or moved to the host.
#pragma once

#include <cstdint>
#include <string>

#include "windlass/graph/batch.h"
#include "windlass/plan/step.h"

namespace windlass {

// Strategies of windlass decide op by op; these are the numbers that most of the arithmetic
// with weights follows. Within a group, dp x tp x cp x copies is the number of its devices; ep
// divides dp.
struct Degrees {
  int64_t dp = 1;          // parts of the samples
  int64_t tp = 1;          // parts of channels or heads
  int64_t pp = 1;          // groups that stages run on one after the other; of packs: the depth
  int64_t cp = 1;          // parts of the positions of a sample
  int64_t ep = 1;          // replicas that share the experts
  int64_t copies = 1;      // devices that do the same
  int64_t interleave = 1;  // stages of each group
  double share = 1;        // of the arithmetic that is split like this
  bool even = true;        // parts of the samples are equal
  int zero_least = 0, zero = 0;  // stages of ZeRO over the weights: least and most
  int64_t micro_batches = 1;     // of packs: of the backward pass
  int64_t micro_samples = 0;     // of one replica in a micro-batch; 0: replicas differ
  bool packs = false;
  // Bytes of saved tensors, of all micro-batches. Of packs nothing is said.
  int64_t saved = 0, recomputed = 0, offloaded = 0, compressed = 0;
  int64_t weights = 0, host_weights = 0, host_updates = 0;  // bytes of trained weights

  bool operator==(const Degrees&) const = default;
};

// `training` is what the strategy is for; `batch` is find_batch() of the network, `samples` its
// batch.
Degrees degrees_of(const TrainingGraph& training, const BatchAxes& batch, const Strategy& strategy,
                   int64_t samples);

// What a plan is, for its title: "2-way data parallel x 4-stage pipeline with ZeRO 1, recompute".
// What concerns less than a hundredth of the saved bytes is left out.
std::string degrees_title(const Degrees& degrees);
// "dp 2, tp 4, pp 1, ZeRO 1, 8 micro-batches of 2 samples a replica". Degrees of 1 beyond dp, tp
// and pp are left out.
std::string degrees_text(const Degrees& degrees);
// "recompute 40 %, offload none of what the backward pass reads; optimizer on the host all".
std::string memory_methods_text(const Degrees& degrees);

// How much of what devices could multiply a step does.
struct Utilisation {
  Flops model;          // of forward and backward pass, causal attention in full, nothing twice
  Flops hardware;       // with what is computed again, in the same measure
  FlopsPerSecond peak;  // of all devices that take part, in the precision of most products
  Precision precision = Precision::Fp32;
  double mfu = 0, hfu = 0;  // shares of the peak over the step
};
Utilisation utilisation_of(const SimulatedStep& step, const Machine& machine, Flops model);

}  // namespace windlass
