#include "windlass/search/chain/chain_pieces.h"

#include <algorithm>

#include "windlass/graph/blocks.h"

namespace windlass {
namespace {

class PieceCutting {
 public:
  PieceCutting(const TrainingGraph& training, const TrainingFacts& facts, const Strategy& strategy)
      : training_(training),
        facts_(facts),
        strategy_(strategy),
        last_reader_(training.graph.tensors.size(), 0) {
    for (size_t i = 0; i < training.forward_ops; ++i)
      for (TensorId id : training.graph.ops[i].inputs)
        if (id.valid()) last_reader_[facts.roots[id.index()].index()] = i;
    Graph forward = training.graph;
    forward.ops.resize(training.forward_ops);
    cuts_ = cut_points(forward);
    saved_before_.assign(training.forward_ops + 1, 0);
    for (const SavedTensor& saved : training.saved)
      if (saved.producer.valid() && saved.producer.index() < training.forward_ops)
        saved_before_[saved.producer.index() + 1] += saved.bytes.value;
    for (size_t i = 0; i < training.forward_ops; ++i) saved_before_[i + 1] += saved_before_[i];
  }

  std::vector<std::vector<ChainPiece>> run(size_t most) {
    std::vector<std::vector<ChainPiece>> pieces;
    for (const Stage& stage : strategy_.stages) pieces.push_back(cut(stage, most));
    share_out(pieces);
    return pieces;
  }

 private:
  // The saved tensor that is passed on at each cut of a stage, if it is the only one that is.
  std::vector<ChainPiece> cut(const Stage& stage, size_t most) const {
    std::vector<size_t> ends;
    for (size_t cut : cuts_)
      if (cut + 1 > stage.first && cut + 1 < stage.last) ends.push_back(cut + 1);
    std::vector<int32_t> passed(ends.size(), -1), count(ends.size(), 0);
    for (size_t i = stage.first; i < stage.last; ++i)
      for (TensorId id : training_.graph.ops[i].outputs) {
        if (facts_.roots[id.index()] != id || !training_.gradient_of[id.index()].valid()) continue;
        const size_t last = std::min(last_reader_[id.index()], stage.last - 1);
        const auto first_cut = std::ranges::upper_bound(ends, i);
        const auto past_cut = std::ranges::upper_bound(ends, last);
        if (past_cut - first_cut != 1) continue;  // stays inside, or is read all along
        const auto at = static_cast<size_t>(first_cut - ends.begin());
        ++count[at];
        passed[at] = facts_.saved_index[id.index()];
      }
    std::vector<ChainPiece> pieces;
    ChainPiece piece = {.first = stage.first};
    for (size_t k = 0; k < ends.size(); ++k) {
      if (count[k] != 1 || passed[k] < 0) continue;
      piece.last = ends[k];
      piece.output = passed[k];
      pieces.push_back(piece);
      piece = {.first = ends[k]};
    }
    piece.last = stage.last;
    pieces.push_back(piece);
    while (pieces.size() > most) join_least(pieces);
    return pieces;
  }

  void join_least(std::vector<ChainPiece>& pieces) const {
    const auto together = [&](size_t k) {
      return saved_before_[pieces[k + 1].last] - saved_before_[pieces[k].first];
    };
    size_t best = 0;
    for (size_t k = 1; k + 1 < pieces.size(); ++k)
      if (together(k) < together(best)) best = k;
    pieces[best].last = pieces[best + 1].last;
    pieces[best].output = pieces[best + 1].output;
    pieces.erase(pieces.begin() + static_cast<std::ptrdiff_t>(best) + 1);
  }

  // Gives each piece the saved tensors that nobody else reads, and its backward ops.
  void share_out(std::vector<std::vector<ChainPiece>>& stages) const {
    struct Place {
      size_t stage = 0, piece = 0;
      bool operator==(const Place&) const = default;
    };
    std::vector<Place> place(training_.forward_ops);
    for (size_t s = 0; s < stages.size(); ++s)
      for (size_t p = 0; p < stages[s].size(); ++p)
        for (size_t i = stages[s][p].first; i < stages[s][p].last; ++i) place[i] = {s, p};
    for (size_t k = 0; k < training_.saved.size(); ++k) {
      const SavedTensor& saved = training_.saved[k];
      if (!saved.producer.valid() || saved.producer.index() >= training_.forward_ops) continue;
      const Place home = place[saved.producer.index()];
      ChainPiece& piece = stages[home.stage][home.piece];
      const bool output = piece.output == static_cast<int32_t>(k);
      const bool alone = std::ranges::all_of(saved.consumers, [&](OpId consumer) {
        const OpId forward = training_.graph[consumer].forward;
        if (!forward.valid()) return false;
        const Place there = place[forward.index()];
        return there == home || (output && there == Place{home.stage, home.piece + 1});
      });
      if (alone) piece.saved.push_back(static_cast<int32_t>(k));
      if (!alone && output) piece.output = -1;  // it is always there
    }
    for (size_t i = training_.forward_ops; i < training_.forward_ops + training_.backward_ops;
         ++i) {
      const OpId forward = training_.graph.ops[i].forward;
      if (!forward.valid()) continue;
      const Place home = place[forward.index()];
      stages[home.stage][home.piece].backward.push_back(OpId(i));
    }
  }

  const TrainingGraph& training_;
  const TrainingFacts& facts_;
  const Strategy& strategy_;
  std::vector<size_t> last_reader_;    // by root: forward op
  std::vector<int64_t> saved_before_;  // by forward op: bytes that those before it save
  std::vector<size_t> cuts_;
};

}  // namespace

std::vector<std::vector<ChainPiece>> chain_pieces(const TrainingGraph& training,
                                                  const TrainingFacts& facts,
                                                  const Strategy& strategy, size_t most) {
  return PieceCutting(training, facts, strategy).run(most);
}

}  // namespace windlass
