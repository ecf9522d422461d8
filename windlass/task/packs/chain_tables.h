// Sums over the layers of a profile, so that any pack of them is priced at once.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "windlass/cost/layer_profile.h"
#include "windlass/strategy/packs.h"

namespace windlass {

// A pass at one micro-batch size as sums over the first layers: entry l is of layers [0, l).
struct PassTable {
  std::vector<double> seconds;
  std::vector<int64_t> memory;  // of peaks without the layers' inputs
};

// Sums over a profile, so that a pack is priced by two reads. Tables by micro-batch size are made
// when first asked for and stay where they are; not shared between threads. The profile must
// outlive it.
class ChainTables {
 public:
  explicit ChainTables(const LayerProfile& profile);

  const LayerProfile& profile() const { return profile_; }
  int32_t layers() const { return static_cast<int32_t>(profile_.layers()); }
  // Throw Error{Input} outside of the measured sizes.
  const PassTable& forward(int64_t micro_batch);
  const PassTable& backward(int64_t micro_batch);

  // Of a pack: weights and buffers, and seconds of its host update.
  int64_t state_bytes(Pack pack) const { return state_[end(pack)] - state_[begin(pack)]; }
  int64_t weight_bytes(Pack pack) const { return weights_[end(pack)] - weights_[begin(pack)]; }
  double update_seconds(Pack pack) const { return update_[end(pack)] - update_[begin(pack)]; }
  // Input of a layer; 0 after the last one.
  int64_t input(int32_t layer, int64_t micro_batch) const {
    return layer < layers() ? profile_.input[static_cast<size_t>(layer)] * micro_batch : 0;
  }
  static double seconds(const PassTable& table, Pack pack) {
    return table.seconds[end(pack)] - table.seconds[begin(pack)];
  }
  // Peak of a pack that runs alone: the peaks of its layers, each input counted once.
  int64_t memory(const PassTable& table, Pack pack, int64_t micro_batch) const {
    return table.memory[end(pack)] - table.memory[begin(pack)] + input(pack.first, micro_batch);
  }

  // Bytes of a forward task as Harmony prints them: the pack, its input in a second buffer, its
  // output, and the inputs of the layers in it that are stashed (`stash` samples' bytes in all).
  int64_t forward_task_bytes(const PassTable& table, Pack pack, int64_t micro_batch,
                             int64_t stash) const {
    return input(pack.first, micro_batch) + memory(table, pack, micro_batch) +
           input(pack.last + 1, micro_batch) + stash;
  }
  // Bytes of a backward task: the pack, its stashed input twice over, the gradients of output (none
  // at the loss) and input (none at layer 0).
  int64_t backward_task_bytes(const PassTable& table, Pack pack, int64_t micro_batch) const {
    return 2 * input(pack.first, micro_batch) + input(pack.last + 1, micro_batch) +
           memory(table, pack, micro_batch) +
           (pack.first == 0 ? 0 : input(pack.first, micro_batch));
  }

 private:
  static size_t begin(Pack pack) { return static_cast<size_t>(pack.first); }
  static size_t end(Pack pack) { return static_cast<size_t>(pack.last) + 1; }
  PassTable sum_up(const PassCosts& costs, int64_t micro_batch) const;

  const LayerProfile& profile_;
  std::vector<int64_t> state_, weights_;
  std::vector<double> update_;
  std::map<int64_t, PassTable> forward_, backward_;
};

// check_packs(), and that the profile knows the micro-batch sizes, that of the remaining samples
// included. Throws Error{Input}.
void check_pack_strategy(const LayerProfile& profile, const PackStrategy& strategy,
                         int64_t minibatch, int64_t devices);

}  // namespace windlass
