// Why a plan is as it is: each of its decisions beside the other choices, everything else
// unchanged, in the same simulator. What is not measured is not said.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "windlass/plan/explanation.h"
#include "windlass/search/search.h"

namespace windlass {

class Explainer {
 public:
  // `strategy` is the plan's, `training` that of one of its micro-batches. All must outlive it.
  Explainer(const Problem& problem, const TrainingGraph& training, const Strategy& strategy);
  ~Explainer();
  Explainer(const Explainer&) = delete;
  Explainer& operator=(const Explainer&) = delete;

  // The plan itself, inside of the limits.
  const Outcome& plan() const { return plan_; }

  // The main decisions: saved tensors, homes of weights, buckets, micro-batches, schedule, and the
  // strategies that a user would name. Choices that make no difference are left out.
  std::vector<Alternative> decisions();

  // Every other way to split a forward op over its group; those that fit first, the fastest first.
  // Of the best `together`, also what all ops like it would do.
  std::vector<Alternative> shardings(OpId op, size_t together = 8);

  // Every other action for a saved tensor; none for data of the step, which stays where it is.
  std::vector<Alternative> actions(size_t saved);

  // Every other home of a trained weight, by its update.
  std::vector<Alternative> homes(size_t update);

  // Like the one given, itself among them: ops of the same kind, sizes and sharding; saved tensors
  // of the same size, action and kind of producer; weights of the same shape and residency.
  std::vector<size_t> ops_alike(OpId op) const;
  std::vector<size_t> saved_alike(size_t saved) const;
  std::vector<size_t> weights_alike(size_t update) const;

 private:
  class Runner;

  Alternative measured(std::string decision, std::string choice, const Strategy& strategy);
  // The same with another graph of a micro-batch.
  Alternative measured(std::string decision, std::string choice, const TrainingGraph& training,
                       const Strategy& strategy);
  void add_unless_same(std::vector<Alternative>& list, Alternative alternative) const;
  void add_saved(std::vector<Alternative>& list);
  void add_homes(std::vector<Alternative>& list);
  void add_movement(std::vector<Alternative>& list);
  void add_turns(std::vector<Alternative>& list);
  void add_cuts(std::vector<Alternative>& list);
  void add_named(std::vector<Alternative>& list);

  const Problem& problem_;
  const TrainingGraph& training_;
  const Strategy& strategy_;
  std::unique_ptr<Runner> runner_;
  Outcome plan_;
};

}  // namespace windlass
