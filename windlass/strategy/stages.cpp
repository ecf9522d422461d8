#include "windlass/strategy/stages.h"

#include <algorithm>
#include <cmath>
#include <numeric>

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

// So many of the cuts, evenly chosen, the last one among them.
std::vector<size_t> thinned(const std::vector<size_t>& cuts, size_t most) {
  std::vector<size_t> fewer;
  for (size_t i = 0; i < most; ++i) fewer.push_back(cuts[(i + 1) * cuts.size() / most - 1]);
  return fewer;
}

// Where a stretch of ops is cut into segments that are computed again one after the other.
class SegmentFinder {
 public:
  SegmentFinder(const TrainingGraph& training, const Graph& forward)
      : saved_(training.forward_ops, 0) {
    for (const SavedTensor& tensor : training.saved)
      if (tensor.producer.valid() && tensor.producer.index() < training.forward_ops)
        saved_[tensor.producer.index()] += static_cast<double>(tensor.bytes.value);
    for (size_t cut : cut_points(forward)) cuts_.push_back(cut + 1);
    if (heaviest_gap() > kMostUncut * std::accumulate(saved_.begin(), saved_.end(), 0.0))
      cuts_ = kept_cuts(training);
  }

  // Where [begin, end) can be cut, its ends left out.
  std::vector<size_t> candidates(size_t begin, size_t end) const {
    std::vector<size_t> result;
    for (size_t cut : cuts_)
      if (cut > begin && cut < end) result.push_back(cut);
    return result;
  }

  // So many pieces of [begin, end), or as many as there can be, about even in saved bytes: where
  // they end, `end` itself left out.
  std::vector<size_t> pieces(size_t begin, size_t end, size_t count) const {
    std::vector<size_t> inside = candidates(begin, end);
    inside.push_back(end);
    if (inside.size() > kMostCuts) inside = thinned(inside, kMostCuts);
    std::vector<double> weights = saved_;
    std::fill(weights.begin(), weights.begin() + static_cast<std::ptrdiff_t>(begin), 0);
    std::vector<size_t> ends =
        balance(inside, weights, std::clamp<size_t>(count, 1, inside.size()));
    ends.pop_back();
    return ends;
  }

 private:
  // Of all that is saved, what may lie between two cut points; more than that, and other cuts are
  // looked for.
  static constexpr double kMostUncut = 0.5;
  // Pieces of a stretch are found in the square of its cuts.
  static constexpr size_t kMostCuts = 4000;

  double heaviest_gap() const {
    double most = 0;
    size_t op = 0;
    for (size_t cut : cuts_) {
      double sum = 0;
      for (; op < cut; ++op) sum += saved_[op];
      most = std::max(most, sum);
    }
    return most;
  }

  // Ends of pieces such that whatever is read across them is saved anyway: networks whose layers
  // read those of long before (U-Net, DenseNet) have few points where one tensor alone is passed
  // on.
  static std::vector<size_t> kept_cuts(const TrainingGraph& training) {
    const Graph& graph = training.graph;
    const std::vector<TensorId> roots = storage_roots(graph);
    std::vector<bool> kept(graph.tensors.size(), false);
    for (const SavedTensor& tensor : training.saved) kept[tensor.tensor.index()] = true;
    // By position: tensors that are made before and read after and are not kept.
    std::vector<int64_t> change(training.forward_ops + 2, 0);
    for (size_t i = 0; i < training.forward_ops; ++i)
      for (TensorId id : graph.ops[i].inputs) {
        if (!id.valid() || kept[roots[id.index()].index()]) continue;
        const OpId producer = graph[roots[id.index()]].producer;
        if (!producer.valid()) continue;
        ++change[producer.index() + 1];
        --change[i + 1];
      }
    std::vector<size_t> result;
    int64_t open = 0;
    for (size_t p = 0; p <= training.forward_ops; ++p) {
      open += change[p];
      if (p > 0 && open == 0) result.push_back(p);
    }
    return result;
  }

  std::vector<double> saved_;  // bytes, by op that makes them
  std::vector<size_t> cuts_;
};

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
  constexpr size_t kMostCandidates = 1500;
  if (cuts.size() > kMostCandidates) cuts = thinned(cuts, kMostCandidates);
  return balance(cuts, weights_of_ops(training), count);
}

size_t most_pieces(const TrainingGraph& training) {
  return cut_ends(forward_part(training)).size();
}

Checkpoints block_checkpoints(const TrainingGraph& training) {
  const Graph forward = forward_part(training);
  const std::vector<Block> blocks = find_blocks(forward);
  Checkpoints result;
  size_t least = 0;  // ops of the smallest repeated block
  for (const Block& block : blocks) {
    if (block.repetitions < 2 || block.ops < kSmallestBlock) continue;
    const auto repetitions = static_cast<size_t>(block.repetitions);
    if (least == 0) result.first = block.first_op;
    least = least == 0 ? block.ops : std::min(least, block.ops);
    result.last = block.first_op + repetitions * block.ops;
    for (size_t k = 0; k <= repetitions; ++k) result.ends.push_back(block.first_op + k * block.ops);
  }
  if (result.ends.empty()) return sqrt_checkpoints(training);
  // Stretches between repeated blocks, and before and after them, that are no smaller than a block.
  const SegmentFinder finder(training, forward);
  const std::vector<size_t> known = result.ends;
  const auto add = [&](size_t begin, size_t end) {
    for (size_t cut : finder.pieces(begin, end, (end - begin) / least)) result.ends.push_back(cut);
  };
  const auto in_a_block = [&](size_t op) {
    return std::ranges::any_of(blocks, [&](const Block& block) {
      return block.repetitions > 1 && block.ops >= kSmallestBlock && op >= block.first_op &&
             op < block.first_op + static_cast<size_t>(block.repetitions) * block.ops;
    });
  };
  for (size_t i = 0; i + 1 < known.size(); ++i)
    if (known[i + 1] - known[i] >= 2 * least && !in_a_block(known[i])) add(known[i], known[i + 1]);
  if (result.first >= least) {
    add(0, result.first);
    result.first = 0;
  }
  if (training.forward_ops - result.last >= least) {
    add(result.last, training.forward_ops);
    result.last = training.forward_ops;
  }
  std::ranges::sort(result.ends);
  result.ends.erase(std::unique(result.ends.begin(), result.ends.end()), result.ends.end());
  return result;
}

Checkpoints sqrt_checkpoints(const TrainingGraph& training) {
  const Graph forward = forward_part(training);
  const SegmentFinder finder(training, forward);
  const size_t cuts = finder.candidates(0, training.forward_ops).size() + 1;
  const auto count =
      static_cast<size_t>(std::max(1.0, std::round(std::sqrt(static_cast<double>(cuts)))));
  Checkpoints result;
  result.last = training.forward_ops;
  result.ends = finder.pieces(0, training.forward_ops, count);
  result.ends.push_back(training.forward_ops);
  return result;
}

}  // namespace windlass
