// How many samples a step should have.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "windlass/search/search.h"

namespace windlass {

// The network for a batch of so many samples. May throw Error{Input}: not one for this model.
using NetworkOfBatch = std::function<Graph(int64_t samples)>;

struct BatchProblem {
  NetworkOfBatch network;
  const Machine& machine;
  TrainingOptions training = {};
  const CostModel& cost;
  Reprice reprice = {};
};

// Whether any of the frugal strategies fits. Fast; what it says no to may fit otherwise.
bool anything_fits(const Problem& problem, const SearchOptions& options);
// The same with so many micro-batches: adds those strategies until one fits, or it is asked to
// stop.
class Ledger;
bool run_frugal(Ledger& ledger, int64_t micro_batches);

// The largest batch that fits in options.micro_batches passes (1 if that is open: with more of them
// there is no largest). By doubling and halving over multiples of the least batch that every device
// has a sample of, or of 1 where that does not fit. None if nothing fits.
std::optional<int64_t> largest_batch(const BatchProblem& problem, const SearchOptions& options);

// The batch with the most samples a second, of powers of two times the number of devices and halves
// of the largest batch, each searched with little effort. Of nearly equal ones the smallest.
std::optional<int64_t> fastest_batch(const BatchProblem& problem, const SearchOptions& options);

}  // namespace windlass
