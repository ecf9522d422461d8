// Pipelines with better borders: what the dynamic program says for prices of a simulated
// micro-batch.
#pragma once

#include <optional>
#include <vector>

#include "windlass/search/book/evaluate.h"
#include "windlass/search/chain/chain_pieces.h"

namespace windlass {

enum class StageMemory : uint8_t {
  Free,   // as if memory were no matter
  Keep,   // saved tensors are kept
  Some,   // as many of them as fit are kept, the rest is computed again
  Least,  // of each piece the input is kept, the rest is computed again
};

// For the training graph of one micro-batch. All must outlive it.
class StageCutter {
 public:
  StageCutter(const Problem& problem, const TrainingGraph& training, Evaluator& evaluator);

  // A pipeline of one stage a group with the borders, and on machines of several kinds of devices
  // the order of the groups, that promise the fastest step; none if no such borders fit, or the
  // strategy is no such pipeline. Shardings, residencies and actions stay as they are. Takes a
  // simulation for each kind of group.
  std::optional<Strategy> recut(const Strategy& strategy, StageMemory memory);

 private:
  const Problem& problem_;
  const TrainingGraph& training_;
  const TrainingFacts facts_;
  Evaluator& evaluator_;
  std::vector<ChainPiece> pieces_;
  std::vector<size_t> piece_of_;  // by forward op
  std::vector<int64_t> passed_;   // by piece: bytes that later ones read
};

// The same strategy with the devices sorted by kind, so that groups are of one kind as far as their
// number allows.
Strategy sort_devices(const Machine& machine, Strategy strategy);

}  // namespace windlass
