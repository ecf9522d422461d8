#include "windlass/search/peers/harmony/harmony_plan.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {
namespace {

void check_cover(const std::vector<Pack>& packs, int32_t end, const char* which) {
  int32_t next = 0;
  for (const Pack& pack : packs) {
    if (pack.first != next || pack.last < pack.first || pack.last >= end)
      fail_input(
          "{} packs: [{}, {}] does not follow, expected a pack that begins at layer {} and "
          "ends before layer {}",
          which, pack.first, pack.last, next, end);
    next = pack.last + 1;
  }
  if (next != end) fail_input("{} packs end before layer {}, expected layer {}", which, next, end);
}

void check_size(const PassProfile& pass, int64_t size, const char* which) {
  if (!pass.covers(size))
    fail_input("a {} pass over {} samples was not measured: the profile knows {} to {}", which,
               size, pass.sizes.front(), pass.sizes.back());
}

}  // namespace

std::string_view harmony_mode_name(HarmonyMode mode) {
  return mode == HarmonyMode::Data ? "dp" : "pp";
}

void check_harmony_plan(const LayerProfile& profile, const HarmonyPlan& plan, int64_t minibatch) {
  if (plan.devices < 1) fail_input("{} devices, expected at least one", plan.devices);
  if (plan.forward_microbatch < 1 || plan.backward_microbatch < 1)
    fail_input("micro-batches of {} and {} samples, expected at least one", plan.forward_microbatch,
               plan.backward_microbatch);
  if (minibatch < 1 || (plan.mode == HarmonyMode::Data && minibatch < plan.devices))
    fail_input("a minibatch of {} samples for {} devices, expected at least one each", minibatch,
               plan.devices);
  if (plan.backward_packs.empty()) fail_input("no backward packs, expected at least one");
  const auto layers = static_cast<int32_t>(profile.layers());
  check_cover(plan.backward_packs, layers, "backward");
  check_cover(plan.forward_packs, plan.backward_packs.back().first, "forward");
  const int64_t samples = samples_of_device(plan.mode, minibatch, plan.devices);
  for (bool backward : {false, true}) {
    if (!backward && plan.forward_packs.empty()) continue;
    const int64_t size = backward ? plan.backward_microbatch : plan.forward_microbatch;
    for (int64_t part : {std::min(size, samples), samples % size}) {
      if (part == 0) continue;
      check_size(profile.forward, part, "forward");
      if (backward) check_size(profile.backward, part, "backward");
    }
  }
}

MicroBatchSizes micro_batch_sizes(const LayerProfile& profile, int64_t samples) {
  MicroBatchSizes result;
  const int64_t most = std::min(samples, profile.forward.sizes.back());
  for (int64_t size = 1; size <= most; ++size) {
    const int64_t parts = (samples + size - 1) / size;
    if ((samples + parts - 1) / parts != size) continue;
    const auto known = [&](const PassProfile& pass) {
      return pass.covers(size) && (samples % size == 0 || pass.covers(samples % size));
    };
    if (!known(profile.forward)) continue;
    result.forward.push_back(size);
    if (known(profile.backward)) result.backward.push_back(size);
  }
  return result;
}

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

int64_t harmony_peak_bytes(ChainTables& chain, const HarmonyPlan& plan) {
  int64_t peak = 0;
  const PassTable& backward = chain.backward(plan.backward_microbatch);
  for (const Pack& pack : plan.backward_packs)
    peak = std::max(peak, chain.backward_task_bytes(backward, pack, plan.backward_microbatch));
  if (plan.forward_packs.empty()) return peak;
  const PassTable& forward = chain.forward(plan.forward_microbatch);
  size_t next = 0;  // backward pack whose first layer comes next
  for (const Pack& pack : plan.forward_packs) {
    int64_t stash = 0;
    for (; next + 1 < plan.backward_packs.size() && plan.backward_packs[next].first <= pack.last;
         ++next)
      stash += chain.input(plan.backward_packs[next].first, plan.forward_microbatch);
    peak = std::max(peak, chain.forward_task_bytes(forward, pack, plan.forward_microbatch, stash));
  }
  return peak;
}

}  // namespace windlass
