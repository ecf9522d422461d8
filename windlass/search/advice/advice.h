// What would help where nothing fits: changes to the problem, each searched for real.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "windlass/plan/explanation.h"
#include "windlass/search/advice/batch_size.h"
#include "windlass/search/search.h"

namespace windlass {

// A problem that differs in one thing from the one that nothing fits. What is empty is as it was.
// The functions may throw Error{Input}: then there is no such change.
struct ProblemChange {
  std::string change, flags = {};
  std::function<Graph()> network = {};
  std::function<Machine()> machine = {};
  const CostModel* cost = nullptr;  // prices instead of the problem's; then nothing is repriced
  std::optional<TrainingOptions> training = {};
  std::optional<SearchOptions> options = {};
  bool same_result = true;
};

struct AdviceProblem {
  const Problem& problem;
  const SearchOptions& options;  // of the search that found nothing
  const Strategy& frugal;        // that needs least
  std::optional<Bytes> least_limit = {};
  NetworkOfBatch network = {};              // empty: the batch cannot change
  const CostModel* batch_cost = nullptr;    // as ProblemChange::cost, for other batches
  std::vector<ProblemChange> changes = {};  // besides those that the options allow
};

// Tries a larger limit, decisions given back to the search, an optimizer with less state,
// compression, more host memory if a host is too small, `changes`, and a smaller batch. Returns
// what helps: what fits first, the most samples a second first; then what would need less memory,
// the least first. Takes about `budget` at most, and ends when the options say so.
std::vector<Advice> advise(const AdviceProblem& given, Seconds budget);

}  // namespace windlass
