// A bound on the step of every strategy that splits ops into equal parts over devices that are
// alike, tighter than that of work alone (work_bound.h): pieces take what they take at the size
// they have, and exchange what they have to.
//
// Three kinds of strategies are told apart, and the least of their bounds counts:
//
// One group of g devices. Its compute lanes run one op after the other, m times: work of the
//   largest pieces, statistics that pieces of coupled loops exchange (the lane waits for them), and
//   what moves between an op and the next one that reads it, each op cut as suits it and its
//   neighbours best (split_costs.h). Gradients are final after the last forward pass, so that the
//   forward pass and reducing all gradients, one after the other, is another bound; so is the
//   forward pass and all updates on hosts. Any mean of these three is a bound for every choice.
//
// Several groups with a stage each. Let w(k) be the time of stage k for one micro-batch. Group k
//   has nothing to do before a micro-batch has gone through the stages before it, nor after its
//   last one until that one has gone back: T >= w(1) + ... + w(k-1) + m w(k). The sum of these with
//   weights a(k) that add up to 1 is a bound in which op i of stage k counts a(k) m + a(k+1) + ...
//   Weights of a group of g devices are the sum of g terms of a geometric series with the ratio
//   q = 1 - 1/m, first groups least, by which each op counts, wherever its stage is, at least
//       C (1 + q^(n-g) (m (1 - q^g) - 1)),     C = 1 / (1 - q^n).
//   Each op then has the group that suits it best. Ops that need not wait for the stages before
//   them, because they are not between two cuts of the network, or those cuts are in different
//   stages, count C m q^(n-g) (1 - q^g).
//
// Packs of layers: every layer is computed in both passes on parts of so many samples (the forward
//   pass once more where activations are not kept), a device does as much as all do on average, and
//   one part goes through all layers and back.
//
// Numbers of micro-batches are those that search tries, or the one that is asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/bounds/split_costs.h"

namespace windlass {

class SplitBound {
 public:
  // `device_updates` and `host_updates`: seconds of all updates on one device, on one host queue.
  // `micro_batches`: the only number; 0: all that divide the batch. `training`
  // is the step of the whole batch and must outlive it, as the problem must.
  SplitBound(const Problem& problem, const TrainingGraph& training, double device_updates,
             double host_updates, int64_t micro_batches = 0);

  // Whether it is known to hold for this strategy: one stage a group, no device in two groups,
  // equal parts, no paging, one of the numbers of micro-batches.
  bool covers(const Strategy& strategy) const;
  // Machines it is made for: devices that are alike, and not too many.
  static bool suits(const Problem& problem);

  double one_group();
  double several_groups();
  double packs();
  // The least of these, in seconds.
  double operator()();

 private:
  double rough_group(int64_t devices, int64_t micro_batches) const;
  double group_of(int64_t devices, int64_t micro_batches);
  double with_updates(double all) const;
  double pipelines(int64_t micro_batches);
  void find_blocks_in_order();

  SplitCosts costs_;
  const TrainingGraph& training_;
  const double devices_;
  std::vector<int64_t> micro_batches_;
  const double device_updates_, host_updates_;
  // By forward op: the block between two cuts that it belongs to and that it can neither leave
  // forward nor backward; -1: none.
  std::vector<int32_t> block_of_;
  size_t blocks_ = 0;
};

}  // namespace windlass
