// Random changes of a strategy, the steps of a Markov chain.
//
// clang-format off
//   one op         another sharding of its group
//   ops alike      the same for all ops of the same kind and shapes, or for those in a run of blocks
//   propagation    an op's sharding is carried on to its neighbours, so that nothing moves between
//   one tensor     keep, gather again, recompute, offload (or compress, if allowed)
//   tensors alike  the same for its counterparts in all blocks, or for a run of blocks
//   exchange       two tensors swap what becomes of them
//   weights        shared out over replicas, in host memory, updated there: one, or all
//   border         of two pipeline stages, to the next cut of the network
//   pace           how early copies start, how large batches of gradients are
// clang-format on
#pragma once

#include <cstdint>
#include <map>
#include <unordered_map>
#include <utility>
#include <vector>

#include "windlass/base/rng.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/op_info.h"
#include "windlass/machine/machine.h"
#include "windlass/search/mcmc/proposal.h"
#include "windlass/strategy/strategy.h"
#include "windlass/task/facts.h"

namespace windlass {

// Which changes there are; shares are relative to each other.
struct MoveMix {
  double one_op = 4, ops_alike = 2, propagation = 3;
  double one_tensor = 3, tensors_alike = 2, exchange = 2;
  double weights = 1, border = 1, pace = 0.5;
  bool regather = true, recompute = true, offload = true;     // of saved tensors
  int compress = 0;                                           // fewest bits, or 0
  bool zero = true, host_weights = true, host_update = true;  // of weights
  bool batch_only = false;  // ops are split over samples, and dense layers over outputs, only
};

class Moves {
 public:
  // Strategies of one training graph on one machine. `training` must outlive it.
  Moves(const TrainingGraph& training, const Machine& machine, const MoveMix& mix);

  // Makes a strategy one that can be changed: its list of shardings becomes that of all strategies.
  // Every strategy must be adopted before the first one is changed.
  void adopt(Strategy& strategy);
  // Strategies adopted earlier learn of shardings that came later.
  void refresh(Strategy& strategy) const { strategy.shardings = table_; }

  // Changes the strategy. False if the draw led to nothing (the strategy is as it was).
  bool propose(Strategy& strategy, Rng& rng, Proposal& proposal);

 private:
  using Options = std::vector<std::vector<int32_t>>;  // by forward op: of table_
  struct Edge {
    size_t from = 0, to = 0;  // forward ops
    size_t output = 0, input = 0;
    TensorId tensor;
  };

  int32_t intern(const Sharding& sharding);
  const Options& options(size_t group_size);
  size_t group_size(const Strategy& strategy, size_t op) const;

  bool change_op(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool change_ops_alike(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool propagate(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool change_tensor(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool change_tensors_alike(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool exchange(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool change_weights(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool move_border(Strategy& strategy, Rng& rng, Proposal& proposal);
  bool change_pace(Strategy& strategy, Rng& rng, Proposal& proposal);
  MemoryAction draw_action(size_t s, Rng& rng) const;
  const std::vector<int32_t>& matching(size_t edge, bool forward, int32_t sharding, size_t size);
  // How the tensor of an edge lies at one of its ends: under a sharding of the op there, and under
  // each of the op's options.
  Layout layout_at(const Edge& edge, bool producer, int32_t sharding) const;
  const std::vector<Layout>& layouts_at(size_t edge, bool producer, size_t size);
  std::pair<size_t, size_t> draw_blocks(Rng& rng) const;

  const TrainingGraph& training_;
  const TrainingFacts facts_;
  MoveMix mix_;
  std::vector<Sharding> table_;
  std::map<Sharding, int32_t> index_;
  std::map<size_t, Options> options_;  // by size of group
  std::vector<LoopNest> nests_;
  std::vector<std::vector<int32_t>> hints_;
  std::vector<size_t> cuts_;                        // first ops of blocks, and the end
  std::vector<int32_t> kind_of_;                    // by forward op
  std::vector<std::vector<size_t>> alike_;          // by kind: ops
  std::vector<MemoryAction> actions_;               // that there are
  std::vector<size_t> tensors_;                     // saved tensors that may go
  std::vector<std::vector<size_t>> tensors_alike_;  // parallel to tensors_: saved tensors
  std::vector<Edge> edges_;
  std::vector<std::vector<size_t>> edges_of_;  // by forward op
  std::unordered_map<uint64_t, std::vector<int32_t>> matching_;
  std::map<size_t, std::vector<std::vector<Layout>>> edge_layouts_;  // by size of group
  size_t most_group_ = 1;
};

}  // namespace windlass
