#include "windlass/strategy/stages.h"

#include <algorithm>
#include <cmath>

#include "windlass/base/error.h"
#include "windlass/graph/blocks.h"
#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

// Blocks of fewer ops are single layers, not worth a checkpoint each.
constexpr size_t kSmallestBlock = 4;

Graph forward_part(const TrainingGraph& training) {
  Graph graph = training.graph;
  graph.ops.resize(training.forward_ops);
  return graph;
}

// The repeated block with most ops in all.
const Block* main_block(const std::vector<Block>& blocks) {
  const Block* best = nullptr;
  for (const Block& block : blocks) {
    if (block.repetitions < 2 || block.ops < kSmallestBlock) continue;
    const auto size = [](const Block& b) { return b.ops * static_cast<size_t>(b.repetitions); };
    if (best == nullptr || size(block) > size(*best)) best = &block;
  }
  return best;
}

// Work of each forward op, forward and backward: multiply-adds, with bytes for those without.
std::vector<double> weights_of_ops(const TrainingGraph& training) {
  constexpr double kOperationsPerByte = 50;
  std::vector<double> result(training.forward_ops, 0);
  for (size_t i = 0; i < training.forward_ops + training.backward_ops; ++i) {
    const Op& op = training.graph.ops[i];
    const size_t forward = op.forward.valid() ? op.forward.index() : i;
    if (forward >= training.forward_ops) continue;
    result[forward] +=
        2 * arithmetic_of(training.graph, op).multiply_adds +
        kOperationsPerByte * static_cast<double>(traffic_of(training.graph, op).value);
  }
  return result;
}

// Least heaviest piece when the cuts (ends of pieces) are cut into `count` runs; exact, on prefix
// sums.
std::vector<size_t> balance(const std::vector<size_t>& cuts, const std::vector<double>& weights,
                            size_t count) {
  std::vector<double> prefix(cuts.size() + 1, 0);
  size_t op = 0;
  for (size_t c = 0; c < cuts.size(); ++c) {
    prefix[c + 1] = prefix[c];
    for (; op < cuts[c]; ++op) prefix[c + 1] += weights[op];
  }
  const size_t n = cuts.size();
  std::vector<std::vector<double>> best(count + 1, std::vector<double>(n + 1, INFINITY));
  std::vector<std::vector<size_t>> from(count + 1, std::vector<size_t>(n + 1, 0));
  best[0][0] = 0;
  for (size_t k = 1; k <= count; ++k)
    for (size_t j = k; j <= n; ++j)
      for (size_t i = k - 1; i < j; ++i) {
        const double cost = std::max(best[k - 1][i], prefix[j] - prefix[i]);
        if (cost < best[k][j]) {
          best[k][j] = cost;
          from[k][j] = i;
        }
      }
  std::vector<size_t> ends;
  for (size_t k = count, j = n; k > 0; --k) {
    ends.push_back(cuts[j - 1]);
    j = from[k][j];
  }
  std::ranges::reverse(ends);
  return ends;
}

std::vector<size_t> cut_ends(const Graph& forward) {
  std::vector<size_t> ends;
  for (size_t cut : cut_points(forward)) ends.push_back(cut + 1);
  return ends;
}

}  // namespace

std::vector<size_t> cut_evenly(const TrainingGraph& training, size_t count) {
  if (count == 1) return {training.forward_ops};
  const Graph forward = forward_part(training);
  const std::vector<Block> blocks = find_blocks(forward);
  if (const Block* block = main_block(blocks)) {
    const auto repetitions = static_cast<size_t>(block->repetitions);
    if (repetitions % count == 0) {
      std::vector<size_t> ends;
      for (size_t k = 1; k < count; ++k)
        ends.push_back(block->first_op + k * (repetitions / count) * block->ops);
      ends.push_back(training.forward_ops);
      return ends;
    }
  }
  std::vector<size_t> cuts = cut_ends(forward);
  if (cuts.size() < count)
    fail_input("the network can be cut into at most {} pieces, {} are wanted", cuts.size(), count);
  // Many cuts and many pieces: keep the number of candidates moderate.
  constexpr size_t kMostCuts = 1500;
  if (cuts.size() > kMostCuts) {
    std::vector<size_t> fewer;
    for (size_t i = 0; i < kMostCuts; ++i)
      fewer.push_back(cuts[(i + 1) * cuts.size() / kMostCuts - 1]);
    cuts = std::move(fewer);
  }
  return balance(cuts, weights_of_ops(training), count);
}

size_t most_pieces(const TrainingGraph& training) {
  return cut_ends(forward_part(training)).size();
}

Checkpoints block_checkpoints(const TrainingGraph& training) {
  const Graph forward = forward_part(training);
  const std::vector<Block> blocks = find_blocks(forward);
  Checkpoints result;
  result.first = training.forward_ops;
  for (const Block& block : blocks) {
    if (block.repetitions < 2 || block.ops < kSmallestBlock) continue;
    const auto repetitions = static_cast<size_t>(block.repetitions);
    result.first = std::min(result.first, block.first_op);
    result.last = std::max(result.last, block.first_op + repetitions * block.ops);
    for (size_t k = 0; k <= repetitions; ++k) result.ends.push_back(block.first_op + k * block.ops);
  }
  if (result.ends.empty()) return sqrt_checkpoints(training);
  std::ranges::sort(result.ends);
  result.ends.erase(std::unique(result.ends.begin(), result.ends.end()), result.ends.end());
  return result;
}

Checkpoints sqrt_checkpoints(const TrainingGraph& training) {
  const std::vector<size_t> cuts = cut_ends(forward_part(training));
  std::vector<double> saved(training.forward_ops, 0);
  for (const SavedTensor& tensor : training.saved)
    if (tensor.producer.valid() && tensor.producer.index() < training.forward_ops)
      saved[tensor.producer.index()] += static_cast<double>(tensor.bytes.value);
  const auto count =
      static_cast<size_t>(std::max(1.0, std::round(std::sqrt(static_cast<double>(cuts.size())))));
  Checkpoints result;
  result.last = training.forward_ops;
  result.ends = balance(cuts, saved, std::min(count, cuts.size()));
  return result;
}

}  // namespace windlass
