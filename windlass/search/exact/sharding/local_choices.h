// What an op under a sharding takes by itself, apart from its neighbours: its work and what its
// pieces exchange, where its weights live, and whether what it saves stays or is made again. Prices
// are those of the sharding problem (sharding_problem.h).
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/search/exact/sharding/fates.h"
#include "windlass/search/exact/sharding/move_prices.h"
#include "windlass/search/exact/sharding/sharding_problem.h"
#include "windlass/task/facts.h"

namespace windlass {

// Whether input k of forward op i is a weight that is trained and first used there.
bool owns_weight(const TrainingGraph& training, const TrainingFacts& facts, size_t i, size_t k);
// Whether a tensor is saved and owns its memory.
bool is_saved(const TrainingFacts& facts, TensorId id);

// Of what choices are made; all of it must outlive them.
struct ChoiceContext {
  const TrainingGraph& training;
  const TrainingFacts& facts;
  const Machine& machine;
  const CostModel& cost;
  Tables& tables;
  MovePrices& moves;
  int32_t group = -1;  // of `tables`: the devices
  double micro_batches = 1;
  bool memory_choices = true;
  const FateRules* fates = nullptr;  // none: ops are run once
};

class LocalChoices {
 public:
  explicit LocalChoices(const ChoiceContext& context);

  // Of forward op i under one of its fates: a Pareto front, time ascending.
  std::vector<LocalChoice> of(size_t i, const OpTemplate& made, Fate fate = Fate::Once);

  // Its parts. Nanoseconds of both passes on the slowest of the devices;
  double work_of(const OpTemplate& made);
  // of a micro-batch, with what the pieces exchange; of the forward pass run again.
  double time_of_both(const OpTemplate& made);
  double time_again(size_t i, const OpTemplate& made);
  // Of so many bytes to the host and back.
  double there_and_back(int64_t bytes) { return host_copy(true, bytes) + host_copy(false, bytes); }
  // Every home of the weights that the op owns: what that alone takes.
  std::vector<LocalChoice> weight_choices(size_t i, const OpTemplate& made);

 private:
  double price_of(int32_t work);
  double time_of(int32_t traffic) { return in_.moves.time_of(traffic); }
  double bucketed(Collective collective, int32_t digits, int64_t bytes);
  double host_copy(bool to_host, int64_t bytes);
  double held_data(size_t i, const OpTemplate& made, Fate fate) const;
  std::vector<LocalChoice> saved_choices(size_t i, const OpTemplate& made, Fate fate);
  void add_weight(TensorId tensor, const OpTemplate& made, size_t input,
                  std::vector<LocalChoice>& weights);
  LocalChoice weight_choice(const Residency& way, const TrainingFacts::Update& update,
                            const OpTemplate& made, size_t input);
  double update_time(const TrainingFacts::Update& update, int64_t elements);

  ChoiceContext in_;
  std::vector<int32_t> members_;
  std::vector<size_t> types_;   // of devices
  std::vector<double> prices_;  // by work
};

}  // namespace windlass
