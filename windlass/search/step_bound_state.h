// What StepBound keeps: tables, prices, and the walk.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "windlass/search/step_bound.h"
#include "windlass/task/facts.h"
#include "windlass/task/lower.h"
#include "windlass/task/recompute.h"
#include "windlass/task/tables.h"

namespace windlass {

struct StepBound::State {
  // A value of the micro-batch that is walked: a tensor in one layout.
  struct Value {
    int32_t layout = -1;
    int32_t buffer = -1;
    int32_t next = -1;  // of the same tensor
    Nanoseconds ready = 0;
    int64_t bytes = 0;
  };

  State(const Problem& problem, const TrainingGraph& training);

  const Problem& problem;
  const TrainingGraph& training;
  const TrainingFacts facts;
  Tables tables;
  std::vector<int32_t> terms_of;  // by update
  double all_elements = 0, all_bytes = 0;

  // Prices, each asked for once.
  std::vector<Nanoseconds> work_times;              // by work, on `type`
  std::vector<Nanoseconds> traffic_times;           // by traffic
  std::vector<std::pair<double, double>> per_byte;  // by set of digits: reduce, gather
  double update_per_element = -1;
  size_t type = SIZE_MAX;
  int32_t group = -1;

  // Of the strategy at hand.
  const Strategy* strategy = nullptr;
  std::vector<Sharding> known;  // shardings that ids were found for
  std::vector<int32_t> known_ids;
  std::vector<MemoryAction> planned;  // that the plan of recomputation is for
  std::vector<Stage> stages;
  std::vector<int32_t> stage_of;
  RecomputePlan again;
  bool keeps_all = true, recomputes = false;

  // What the walk wants to know of an op under a sharding, close together: tensors that are made
  // and the layouts they are wanted in, and what it makes.
  struct Operand {
    TensorId tensor;
    int32_t layout = -1;
  };
  struct Made {
    TensorId tensor;
    int32_t layout = -1;
    int32_t update = -1;  // as in ResultTemplate
    int64_t bytes = 0, elements = 0;
  };
  struct Steps {
    std::vector<Operand> operands;  // of the forward op, gradients, saved tensors
    std::vector<Made> results;      // of the forward op and of the backward op
    uint32_t reads = 0, gradients = 0, made = 0;
    bool view_of_made = false;  // the first operand is the first that is read

    std::span<const Operand> forward() const { return {operands.data(), reads}; }
    std::span<const Operand> gradient() const { return {operands.data() + reads, gradients}; }
    std::span<const Operand> saved() const {
      return {operands.data() + reads + gradients, operands.size() - reads - gradients};
    }
    std::span<const Made> makes() const { return {results.data(), made}; }
    std::span<const Made> backward_makes() const {
      return {results.data() + made, results.size() - made};
    }
  };
  std::unordered_map<const OpTemplate*, Steps> steps;
  const Steps& steps_of(const OpTemplate& made);
  // A backward op, close together with its neighbours.
  struct Backward {
    int32_t forward = -1;  // -1: a sum of gradients
    bool dropped = false;
    TensorId output, first, second;  // of a view, or of a sum
  };
  std::vector<Backward> backward_ops;

  // One group: each op as the strategy splits it, found again only where it changed.
  struct Chosen {
    int32_t sharding = -1;  // interned
    const OpTemplate* made = nullptr;
    const Steps* steps = nullptr;
    Nanoseconds forward = 0, backward = 0;  // 0: a view, or nothing
  };
  std::vector<Chosen> chosen;  // by forward op
  int32_t chosen_group = -1;
  Nanoseconds plain_work = 0;                    // of all of them
  std::vector<double> update_elements;           // by update, of the device with most
  std::vector<double> update_parts;              // by update: replicas that could share it out
  std::vector<std::vector<int32_t>> updates_of;  // by forward op: whose first use it is

  // The walk.
  std::vector<Value> values;
  std::vector<int32_t> heads;  // by tensor
  std::vector<int32_t> terms_left;
  int32_t buffers = 0;
  Nanoseconds compute = 0, communicate = 0;
  double reduced = 0;  // nanoseconds behind the point

  Nanoseconds time_of_work(int32_t work);
  Nanoseconds time_of_traffic(int32_t traffic);
  const std::pair<double, double>& reduce_price(int32_t digits);
  double update_price();

  void take(const Strategy& given);
  void use_group(const std::vector<DeviceId>& devices);
  const OpTemplate& made_of(size_t op) {
    return tables.op(OpId(op), known_ids[static_cast<size_t>(strategy->ops[op])], group);
  }

  void choose();
  Nanoseconds one_group(Nanoseconds enough);
  Nanoseconds several_groups();
  Nanoseconds updates();

  // --- step_bound_bytes.cpp
  // The op that makes a saved tensor, and which of its results it is.
  struct SavedResult {
    size_t op = 0, result = 0;
  };
  std::vector<std::vector<SavedResult>> saved_results;  // by saved tensor
  std::vector<int32_t> in_flight;  // by stage: micro-batches before its first backward
  int64_t flight_batches = 0;      // that they were counted for
  std::vector<int64_t> group_bytes;
  void list_saved_results();
  void count_in_flight();
  int64_t kept_bytes(size_t s);
  int64_t weight_bytes(size_t stage);
  bool too_large();

  const Value* find(TensorId tensor, int32_t layout) const;
  Value& put(TensorId tensor, const Value& value);
  const Value& value(TensorId tensor, int32_t layout);
  void forward(size_t op);
  void backward(const Backward& op);
  void accumulate(const Backward& op);
  void finish_term(const Made& term, Nanoseconds done);
};

}  // namespace windlass
