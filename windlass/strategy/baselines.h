// Strategies by name: what a user would have done without a planner.
//
//   data-parallel                       the batch split over all devices
//   zero:stage=1|2|3                    and optimizer state, gradients, weights shared out
//   megatron:tp=8,pp=8,interleave=3     tensor and pipeline parallel, sequence-parallel=on|off
//   megatron:cp=8                       positions of sequences split, keys and values gathered
//   megatron:ep=8                       experts split over replicas, rows sent to them
//   one-weird-trick                     convolutions data parallel, dense layers split by outputs
//   gpipe:stages=4,micro=8              pipeline, all forward passes first
//   1f1b:stages=4,micro=8               pipeline, one forward and one backward in turn
//   recompute-all, recompute-sqrt       data parallel, activations computed again
//   offload-all                         data parallel, activations kept in host memory
//   lru, lru:pp=4,micro=8               data parallel, or a pipeline, on virtual memory: what was
//                                       used last stays on the device
//   harmony:mode=pp|dp,packs=N,micro=2  even packs of layers, as Harmony's runtime passes them on
//   single                              one device, nothing else
//
// Parameters combine: megatron:tp=2,pp=2,zero=1,recompute=full. compress=8|4|2 stores saved floats
// in so many bits, which changes the mathematics. Replicas have as many samples each,
// but with balance=speed faster devices have more, and parts=2:2:1:1 says in which proportion; both
// in whole samples.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

enum class RecomputePolicy : uint8_t {
  None,
  Selective,  // the scores of attention and what follows up to the product with the values
  Full,       // everything but the input of each repeated block
  Sqrt,       // everything but about the square root of the number of cuts
};

// Parameters of a named strategy. 0 means: what is left, or the default.
struct BaselineSpec {
  std::string name;  // as written
  int64_t dp = 0, tp = 1, pp = 1, cp = 1, ep = 1, interleave = 1;
  int64_t stripes = 0;        // that sequences are cut into by cp; 0: as many as make work even
  int64_t micro = 0;          // samples of one replica in a micro-batch; of unequal ones the least
  int64_t micro_batches = 0;  // the other way to say it
  int zero = 0;
  RecomputePolicy recompute = RecomputePolicy::None;
  bool sequence_parallel = false;
  bool offload = false;  // activations
  // Floats that ops have made are stored in so many bits, wherever they are not recomputed; 0: as
  // they are. Changes the mathematics.
  int compress = 0;
  bool host_weights = false;  // weights live on the host
  bool host_update = false;   // the host updates
  bool gpipe = false;
  bool whole_layers = false;  // stages end between layers only; has no word
  bool one_weird_trick = false;
  bool virtualise = false;  // least recently used, at run time
  bool harmony_packs = false;
  int64_t packs = 0;
  Bytes bucket{25 << 20};
  bool balance = false;             // samples of replicas in proportion to how fast they are
  std::vector<int32_t> parts = {};  // or to these, in each stage
};

// Reads "name:key=value,...". Throws Error{Input} with the known names or keys.
BaselineSpec parse_baseline(std::string_view text);
std::vector<std::string_view> baseline_names();

// Devices of each kind filled in, and the number of micro-batches for a batch of so many samples.
// Throws Error{Input} if the devices do not suffice, or if the smallest micro-batch has fewer
// samples than there are replicas.
void resolve(BaselineSpec& spec, const Machine& machine, int64_t samples);

// For the training graph of one micro-batch; packs of layers are for that of the batch. Throws
// Error{Input} with the reason if the strategy is not possible for this model or machine.
Strategy make_baseline(const BaselineSpec& spec, const TrainingGraph& training,
                       const BatchAxes& batch, const Machine& machine);

// What users of a machine with so many devices try, as parse_baseline() takes it.
std::vector<std::string> usual_strategies(size_t devices);

// A network, cut into the micro-batches that a named strategy asks for, differentiated, and the
// strategy for it.
struct PreparedStep {
  BaselineSpec spec;  // resolved
  int64_t samples = 0;
  TrainingGraph training;  // that the strategy is for: of one micro-batch, for packs of the batch
  Strategy strategy;
};
PreparedStep prepare_step(const Graph& graph, const BaselineSpec& spec, const Machine& machine,
                          const TrainingOptions& options);

}  // namespace windlass
