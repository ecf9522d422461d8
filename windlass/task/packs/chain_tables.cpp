#include "windlass/task/packs/chain_tables.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {
namespace {

void check_size(const PassProfile& pass, int64_t size, const char* which) {
  if (!pass.covers(size))
    fail_input("a {} pass over {} samples was not measured: the profile knows {} to {}", which,
               size, pass.sizes.front(), pass.sizes.back());
}

}  // namespace

ChainTables::ChainTables(const LayerProfile& profile) : profile_(profile) {
  state_.push_back(0);
  weights_.push_back(0);
  update_.push_back(0);
  for (size_t l = 0; l < profile.layers(); ++l) {
    state_.push_back(state_.back() + profile.weights[l] + profile.buffers[l]);
    weights_.push_back(weights_.back() + profile.weights[l]);
    update_.push_back(update_.back() + profile.host_update[l]);
  }
}

PassTable ChainTables::sum_up(const PassCosts& costs, int64_t micro_batch) const {
  PassTable table{{0}, {0}};
  for (size_t l = 0; l < costs.seconds.size(); ++l) {
    table.seconds.push_back(table.seconds.back() + costs.seconds[l]);
    table.memory.push_back(table.memory.back() + costs.peak[l] -
                           profile_.input_bytes(l, micro_batch));
  }
  return table;
}

const PassTable& ChainTables::forward(int64_t micro_batch) {
  const auto found = forward_.find(micro_batch);
  if (found != forward_.end()) return found->second;
  return forward_[micro_batch] = sum_up(profile_.forward.at(micro_batch), micro_batch);
}

const PassTable& ChainTables::backward(int64_t micro_batch) {
  const auto found = backward_.find(micro_batch);
  if (found != backward_.end()) return found->second;
  return backward_[micro_batch] = sum_up(profile_.backward.at(micro_batch), micro_batch);
}

void check_pack_strategy(const LayerProfile& profile, const PackStrategy& strategy,
                         int64_t minibatch, int64_t devices) {
  check_packs(strategy, static_cast<int64_t>(profile.layers()), minibatch, devices);
  const int64_t samples = (minibatch + strategy.replicas - 1) / strategy.replicas;
  for (bool backward : {false, true}) {
    if (!backward && strategy.forward_packs.empty()) continue;
    const int64_t size = backward ? strategy.backward_microbatch : strategy.forward_microbatch;
    for (int64_t part : {std::min(size, samples), samples % size}) {
      if (part == 0) continue;
      check_size(profile.forward, part, "forward");
      if (backward) check_size(profile.backward, part, "backward");
    }
  }
}

}  // namespace windlass
