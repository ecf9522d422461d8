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

// The repeated block with most ops in all, of those with as many ops at least.
const Block* main_block(const std::vector<Block>& blocks, size_t least_ops = kSmallestBlock) {
  const Block* best = nullptr;
  for (const Block& block : blocks) {
    if (block.repetitions < 2 || block.ops < least_ops) continue;
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

// Where a stretch of ops is cut into segments that are computed again one after the other. What is
// passed on at a cut must be saved anyway: else there is nothing to keep, and whoever computes the
// segment again must compute the one before as well.
class SegmentFinder {
 public:
  SegmentFinder(const TrainingGraph& training, const Graph& forward)
      : kept_(kept_positions(training)), saved_(training.forward_ops, 0) {
    for (const SavedTensor& tensor : training.saved)
      if (tensor.producer.valid() && tensor.producer.index() < training.forward_ops)
        saved_[tensor.producer.index()] += static_cast<double>(tensor.bytes.value);
    for (size_t cut : cut_points(forward))
      if (kept_[cut + 1]) cuts_.push_back(cut + 1);
    if (heaviest_gap() <= kMostUncut * std::accumulate(saved_.begin(), saved_.end(), 0.0)) return;
    cuts_.clear();
    for (size_t p = 1; p < kept_.size(); ++p)
      if (kept_[p]) cuts_.push_back(p);
  }

  // The nearest place at or after `end`, fewer than `reach` ops away, else before it, where all
  // that is passed on is saved; none: 0.
  size_t settled(size_t end, size_t reach) const {
    for (size_t k = 0; k < reach && end + k < kept_.size(); ++k)
      if (kept_[end + k]) return end + k;
    for (size_t k = 1; k < reach && k < end; ++k)
      if (kept_[end - k]) return end - k;
    return 0;
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
  // looked for: networks whose layers read those of long before (U-Net, DenseNet) have few points
  // where one tensor alone is passed on.
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

  // By position: whether everything that is made before and read after is saved. What is read all
  // along the network (a mask, a table of positions) or has no gradient is computed again in a few
  // ops, and does not count.
  static std::vector<bool> kept_positions(const TrainingGraph& training) {
    const Graph& graph = training.graph;
    const size_t ops = training.forward_ops;
    const std::vector<TensorId> roots = storage_roots(graph);
    std::vector<bool> saved(graph.tensors.size(), false);
    for (const SavedTensor& tensor : training.saved) saved[tensor.tensor.index()] = true;
    std::vector<size_t> last(graph.tensors.size(), 0), readers(graph.tensors.size(), 0);
    for (size_t i = 0; i < ops; ++i)
      for (TensorId id : graph.ops[i].inputs)
        if (id.valid()) {
          last[roots[id.index()].index()] = i;
          ++readers[roots[id.index()].index()];
        }
    std::vector<int64_t> change(ops + 1, 0);
    for (size_t t = 0; t < graph.tensors.size(); ++t) {
      const OpId producer = graph.tensors[t].producer;
      if (!producer.valid() || producer.index() >= ops || roots[t] != TensorId(t) || saved[t] ||
          !training.gradient_of[t].valid() || last[t] <= producer.index())
        continue;
      const bool side = readers[t] >= 4 && (last[t] - producer.index()) * 6 >= ops;
      if (side) continue;
      ++change[producer.index() + 1];
      --change[last[t] + 1 <= ops ? last[t] + 1 : ops];
    }
    std::vector<bool> kept(ops + 1, false);
    int64_t open = 0;
    for (size_t p = 0; p <= ops; ++p) {
      open += change[p];
      kept[p] = open == 0 || p == ops;
    }
    return kept;
  }

  std::vector<bool> kept_;     // by position
  std::vector<double> saved_;  // bytes, by op that makes them
  std::vector<size_t> cuts_;
};

std::vector<size_t> cut_ends(const Graph& forward) {
  std::vector<size_t> ends;
  for (size_t cut : cut_points(forward)) ends.push_back(cut + 1);
  return ends;
}

}  // namespace

std::vector<size_t> cut_evenly(const TrainingGraph& training, size_t count, bool whole_layers) {
  if (count == 1) return {training.forward_ops};
  const Graph& forward = training.graph;  // whose first ops are those
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
  if (whole_layers) {
    const Block* block = main_block(blocks, 1);
    const size_t layers = block ? static_cast<size_t>(block->repetitions) : 0;
    if (layers < count)
      fail_input("the network has {} repeated layers, {} pieces of them are wanted", layers, count);
    std::vector<size_t> ends;
    for (size_t k = 1; k < layers; ++k) ends.push_back(block->first_op + k * block->ops);
    ends.push_back(training.forward_ops);
    return balance(ends, weights_of_ops(training), count);
  }
  std::vector<size_t> cuts = cut_ends(forward);
  if (cuts.size() < count)
    fail_input("the network can be cut into at most {} pieces, {} are wanted", cuts.size(), count);
  // Many cuts and many pieces: keep the number of candidates moderate.
  constexpr size_t kMostCandidates = 1500;
  if (cuts.size() > kMostCandidates) cuts = thinned(cuts, kMostCandidates);
  return balance(cuts, weights_of_ops(training), count);
}

size_t most_pieces(const TrainingGraph& training) { return cut_ends(training.graph).size(); }

Checkpoints block_checkpoints(const TrainingGraph& training) {
  const Graph& forward = training.graph;  // whose first ops are those
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
  // A block may end before what is saved: at a sum, whose activation is.
  const SegmentFinder finder(training, forward);
  for (size_t& end : result.ends) end = finder.settled(end, least);
  result.first = finder.settled(result.first, least);
  result.last = std::max(result.last, finder.settled(result.last, least));
  std::erase(result.ends, 0);
  std::ranges::sort(result.ends);
  result.ends.erase(std::unique(result.ends.begin(), result.ends.end()), result.ends.end());
  // Stretches between repeated blocks, and before and after them, that are no smaller than a block.
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
  const Graph& forward = training.graph;  // whose first ops are those
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
