#include "windlass/search/exact/sharding/sharding_options.h"

#include <algorithm>

#include "windlass/strategy/windows.h"

namespace windlass {
namespace {

constexpr size_t kMostShardings = 160;
constexpr int64_t kLeastSum = 16;
// Uneven pieces of many devices hardly pay, and every one of them is priced by itself.
constexpr int64_t kManyDevices = 16;
constexpr double kMostUneven = 1.25, kMostUnevenOfMany = 1.02;

class Enumeration {
 public:
  Enumeration(const LoopNest& nest, const std::vector<int32_t>& blocks, int64_t devices,
              size_t most_splits)
      : nest_(nest), blocks_(blocks), devices_(devices), most_splits_(most_splits) {
    extend(0, devices);
  }
  std::vector<Sharding> take() { return std::move(found_); }

 private:
  void extend(size_t loop, int64_t left) {
    if (loop == nest_.loops.size()) {
      if (left > 1 && splits_.size() > 2) return;
      Sharding sharding = {splits_};
      if (left > 1) sharding.splits.push_back({-1, static_cast<int32_t>(left)});
      if (sharding.splits.empty()) sharding.splits.push_back({-1, 1});
      found_.push_back(std::move(sharding));
      return;
    }
    extend(loop + 1, left);
    const LoopDim& dim = nest_.loops[loop];
    if (dim.role == LoopRole::Whole || splits_.size() == most_splits_) return;
    if (dim.role == LoopRole::Reduced && dim.size < kLeastSum) return;
    for (int64_t parts = 2; parts <= left; ++parts) {
      if (left % parts != 0) continue;
      add(loop, parts, 1, left);
      if (blocks_[loop] > 1 && windows_tile(nest_, static_cast<int32_t>(loop)))
        add(loop, parts, blocks_[loop], left);
    }
  }

  void add(size_t loop, int64_t parts, int32_t blocks, int64_t left) {
    const int64_t size = nest_.loops[loop].size;
    if (size % blocks != 0 || size / blocks < parts) return;
    const int64_t largest = largest_part(size / blocks, parts) * parts * blocks;
    const double most = devices_ > kManyDevices ? kMostUnevenOfMany : kMostUneven;
    if (static_cast<double>(largest) > most * static_cast<double>(size)) return;
    splits_.push_back({static_cast<int32_t>(loop), static_cast<int32_t>(parts), blocks});
    extend(loop + 1, left / parts);
    splits_.pop_back();
  }

  const LoopNest& nest_;
  const std::vector<int32_t>& blocks_;
  int64_t devices_;
  size_t most_splits_;
  std::vector<Split> splits_;
  std::vector<Sharding> found_;
};

}  // namespace

std::vector<std::vector<int32_t>> block_hints(const Graph& graph, size_t forward_ops) {
  std::vector<std::vector<int32_t>> result(forward_ops);
  // By tensor and axis, from what its readers said; ops are visited backwards.
  std::vector<std::vector<int32_t>> wanted(graph.tensors.size());
  const auto want = [&](TensorId tensor, size_t axis, int64_t blocks) {
    std::vector<int32_t>& axes = wanted[tensor.index()];
    if (axes.size() <= axis) axes.resize(axis + 1, 1);
    axes[axis] = std::max(axes[axis], static_cast<int32_t>(blocks));
  };
  for (size_t i = forward_ops; i-- > 0;) {
    const Op& op = graph.ops[i];
    const LoopNest nest = loops_of(graph, op);
    std::vector<int32_t>& hints = result[i];
    hints.assign(nest.loops.size(), 1);
    for (size_t o = 0; o < op.outputs.size(); ++o) {
      if (!op.outputs[o].valid()) continue;
      const std::vector<int32_t>& axes = wanted[op.outputs[o].index()];
      for (size_t a = 0; a < axes.size() && a < nest.outputs[o].size(); ++a) {
        const AxisMap& map = nest.outputs[o][a];
        if (axes[a] > 1 && map.loop >= 0 && map.blocks == 1 && map.stride == 1 && map.window == 1)
          hints[static_cast<size_t>(map.loop)] = axes[a];
      }
    }
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (!op.inputs[k].valid() || !graph[op.inputs[k]].producer.valid()) continue;
      for (size_t a = 0; a < nest.inputs[k].size(); ++a) {
        const AxisMap& map = nest.inputs[k][a];
        if (map.loop < 0 || map.stride != 1 || map.window != 1) continue;
        const int64_t blocks = map.blocks * hints[static_cast<size_t>(map.loop)];
        if (blocks > 1) want(op.inputs[k], a, blocks);
      }
    }
  }
  return result;
}

std::vector<Sharding> shardings_of(const LoopNest& nest, const std::vector<int32_t>& blocks,
                                   int64_t devices) {
  std::vector<Sharding> found = Enumeration(nest, blocks, devices, 3).take();
  if (found.size() > kMostShardings) found = Enumeration(nest, blocks, devices, 2).take();
  return found;
}

}  // namespace windlass
