// What the ops of a step take at least on one group of devices that are alike, for each way to cut
// their loops: work of the largest piece, what pieces of coupled loops exchange, and what has to
// move between an op and the one before it.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <map>
#include <span>
#include <tuple>
#include <vector>

#include "windlass/graph/batch.h"
#include "windlass/search/bounds/least_traffic.h"
#include "windlass/search/search.h"
#include "windlass/task/facts.h"

namespace windlass {

// The part of a tensor that a device has or wants, as shares of the whole.
struct TensorShare {
  double samples = 1, inner = 1;  // it lies within so many of the samples, and so much of each
  double all = 1;                 // elements
  std::array<double, 5> axes = {1, 1, 1, 1, 1};  // of each axis; of tensors with more: 1
  bool partial = false;                          // terms of sums that have to be added up first
  auto operator<=>(const TensorShare&) const = default;
};

// An op of either pass under one cut of its loops. Seconds of one micro-batch.
struct CutCosts {
  double forward = 0, backward = 0;
  double reduce = 0;  // of the gradients of its weights, once a step
  // What it wants of the op before it and leaves of its gradient there; what it leaves the next op
  // and wants of the gradient from there. Indices of OpCuts::ins and outs.
  size_t in = 0, out = 0;
};

// Ops that are alike, with all their cuts.
struct OpCuts {
  std::vector<TensorShare> ins, outs;
  std::vector<CutCosts> cuts;
};

class SplitCosts {
 public:
  // `training` is the step of the whole batch. Both must outlive it. All devices are alike.
  SplitCosts(const Problem& problem, const TrainingGraph& training);

  // The least sum over all cuts for a group of so many devices, of `micro_batches` passes:
  // the forward pass counts `forward`, the backward pass `backward`, reducing gradients `reduce`.
  struct Counts {
    double forward = 1, backward = 1, reduce = 0;
  };
  double least(int64_t devices, int64_t micro_batches, const Counts& counts);
  // By forward op: the least of both passes over one micro-batch, each op for itself.
  std::vector<double> each(int64_t devices, int64_t micro_batches);
  // By forward op: both passes over so many of the samples, on one device; 0 for ops that do not
  // see samples apart.
  std::vector<double> of_samples(int64_t samples);

  bool can_cut_batch() const { return batch_.obstacle.empty() && batch_.samples > 1; }
  int64_t samples() const { return batch_.samples; }
  // Of an op in one pass: no piece of a share s of it takes less than of(s), however it is cut.
  struct Rough {
    double fixed = 0, tail = 0, work = 0;
    double of(double share) const { return std::max(fixed, tail + share * work); }
  };
  struct PassPair {
    Rough forward, backward;
    double of(double share) const { return forward.of(share) + backward.of(share); }
  };
  // By forward op; nothing for views.
  std::span<const PassPair> rough() const { return rough_; }

 private:
  struct Kind {
    size_t op = 0;              // one of them
    int32_t in = -1, out = -1;  // inputs and outputs that the op before and the next one have too
    bool viewed = false;        // the input is a view of what the op before made
  };
  const Graph& graph() const { return training_.graph; }
  void sort_kinds();
  void find_rough();
  std::vector<double> of_ops(const std::vector<double>& of_kinds) const;
  const OpCuts& cuts_of(size_t kind, int64_t devices, int64_t micro_batches);
  OpCuts make_cuts(const Kind& kind, int64_t devices, int64_t micro_batches);
  double time_of(OpId op, const LoopNest& nest, const std::vector<int64_t>& parts,
                 const std::vector<int64_t>& local);
  TensorShare share_of(TensorId tensor, const OperandMap& map, const LoopNest& nest,
                       const std::vector<int64_t>& parts, const std::vector<int64_t>& local) const;
  double move(const TensorShare& from, const TensorShare& to, double bytes, bool viewed) const;
  // By share that one op leaves and share that the next one wants: forward and back.
  struct Moves {
    std::vector<double> forward, backward;
  };
  const Moves& moves_between(OpId from, OpId to, int64_t devices, int64_t micro_batches);

  const Problem& problem_;
  const TrainingGraph& training_;
  const DeviceType& type_;
  const TrainingFacts facts_;
  BatchAxes batch_;
  LeastTraffic traffic_;
  std::vector<OpId> backward_of_;  // by forward op
  std::vector<Kind> kinds_;
  std::vector<int32_t> kind_of_;  // by forward op; -1: no work
  std::vector<PassPair> rough_;   // by forward op
  std::map<std::tuple<size_t, int64_t, int64_t>, OpCuts> cuts_;
  std::map<std::tuple<int32_t, int32_t, int64_t, int64_t>, Moves> moves_;  // by kinds
};

}  // namespace windlass
