// What becomes of saved tensors under a given structure (shardings, stages, micro-batches, homes of
// weights): the dynamic program over the chain of blocks proposes, the simulator decides.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "windlass/search/book/spend_memory.h"
#include "windlass/search/chain/chain_profile.h"

namespace windlass {

// Solved chains of strategies, by what they are solved for. For one number of micro-batches and one
// set of options.
class ChainMemo {
 public:
  ChainMemo();
  ~ChainMemo();
  struct Table;
  Table& table() { return *table_; }

 private:
  std::unique_ptr<Table> table_;
};

// By the number of micro-batches.
using ChainMemos = std::map<int64_t, ChainMemo>;

// A way to treat saved tensors, and what the chain says of it.
struct ChainPoint {
  std::vector<MemoryAction> saved;  // parallel to TrainingGraph::saved
  int32_t prefetch = 0;             // for Strategy::prefetch
  Nanoseconds time = 0;
  int64_t bytes = 0;  // on the fullest device
};

// From the fastest to the most frugal; every group of devices with the same limit. Tensors that are
// read all along the network stay as `base` has them; its other actions do not matter, but for
// Regather. Empty if the passes of a stage are on different groups, or memory is paged.
std::vector<ChainPoint> chain_frontier(const TrainingGraph& training, const Strategy& base,
                                       Evaluator& evaluator,
                                       const ChainSearchOptions& options = {});

// Its last point, with coarser bytes. None if there is no chain.
std::optional<ChainPoint> most_frugal_on_chain(const TrainingGraph& training, const Strategy& base,
                                               Evaluator& evaluator,
                                               const ChainSearchOptions& options = {});

// About what best_on_chain() comes to, by the chain alone and with coarse bytes: one or two
// simulations. None if what is there beside all saved tensors does not fit.
std::optional<Nanoseconds> estimate_on_chain(const Problem& problem, const TrainingGraph& training,
                                             const Strategy& base, Evaluator& evaluator,
                                             const ChainSearchOptions& options = {});

// The fastest on the frontier that fits the machine's limits in the simulator, a little improved;
// none if nothing fits. About 2 probes + polish + 10 simulations where memory is not free; where it
// is very short, some more with what people would do, and with what the chain does not decide about
// on the host. Deterministic.
std::optional<Candidate> best_on_chain(const Problem& problem, const TrainingGraph& training,
                                       const Strategy& base, Evaluator& evaluator,
                                       const ChainSearchOptions& options = {});

}  // namespace windlass
