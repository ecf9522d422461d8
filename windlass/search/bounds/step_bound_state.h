// What StepBound keeps: tables, prices, and the walk.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "windlass/search/bounds/lane_tasks.h"
#include "windlass/search/bounds/step_bound.h"
#include "windlass/task/facts.h"
#include "windlass/task/lower.h"
#include "windlass/task/recompute.h"
#include "windlass/task/tables.h"

namespace windlass {

struct StepBound::State {
  // The simulator rounds loads to 1/1024 of a volume: traffic may end so much earlier than alone.
  static constexpr double kRounding = 1 - 1.0 / 256;

  // A value of the micro-batch that is walked: a tensor in one layout.
  struct Value {
    int32_t layout = -1;
    int32_t buffer = -1;
    int32_t next = -1;  // of the same tensor
    int32_t task = -1;  // after which it is there
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
  std::vector<Nanoseconds> work_times;  // by work, on `type`
  TrafficRates rates;
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
  // The exchange of an op, and what comes before it. The compute lane waits for it.
  struct Coupled {
    const LaneTasks::Flow* exchange = nullptr;  // null: none
    Nanoseconds begin = 0;
  };
  struct Choice {
    const OpTemplate* made = nullptr;
    // So long it has the compute lane, which waits meanwhile where statistics are exchanged.
    Nanoseconds forward = 0, backward = 0;  // 0: a view, or nothing
    Coupled coupled, backward_coupled;
    int64_t bytes =
        0;  // of all that it brings to memory in one micro-batch, but for redistribution
    std::vector<Operand> operands;  // of the forward op, gradients, saved tensors
    std::vector<Made> results;      // of the forward op and of the backward op
    uint32_t reads = 0, gradients = 0, makes = 0;
    bool view_of_made = false;  // the first operand is the first that is read

    std::span<const Operand> forward_reads() const { return {operands.data(), reads}; }
    std::span<const Operand> gradient_reads() const { return {operands.data() + reads, gradients}; }
    std::span<const Operand> saved_reads() const {
      return {operands.data() + reads + gradients, operands.size() - reads - gradients};
    }
    std::span<const Made> forward_makes() const { return {results.data(), makes}; }
    std::span<const Made> backward_makes() const {
      return {results.data() + makes, results.size() - makes};
    }
  };
  // A backward op, close together with its neighbours.
  struct Backward {
    int32_t forward = -1;  // -1: a sum of gradients
    bool dropped = false;
    TensorId output, first, second;  // of a view, or of a sum
  };
  std::vector<Backward> backward_ops;

  // What is known of the ops on a group of devices.
  struct GroupChoices {
    std::deque<Choice> choices;
    std::vector<std::vector<const Choice*>> of;  // by forward op and interned sharding
  };
  std::unordered_map<int32_t, GroupChoices> choices_of;  // by group
  GroupChoices* in_group = nullptr;                      // those of `group`
  std::vector<const Choice*> chosen;                     // by forward op
  const Choice nothing;
  // One group: each op as the strategy splits it, found again only where it changed.
  std::vector<int32_t> chosen_shardings;  // by forward op
  int32_t chosen_group = -1;
  Nanoseconds plain_work = 0;                    // of all of them
  int64_t plain_bytes = 0;                       // of all of them
  int64_t most_workspace = 0;                    // of any choice so far
  std::vector<double> update_elements;           // by update, of the device with most
  std::vector<double> update_parts;              // by update: replicas that could share it out
  std::vector<std::vector<int32_t>> updates_of;  // by forward op: whose first use it is

  // Redistributions in a group that were asked for lately.
  struct RecentMove {
    uint64_t key = UINT64_MAX;
    int32_t group = -1;
    const std::vector<MoveTemplate>* moves = nullptr;
  };
  std::vector<RecentMove> recent_moves;
  std::vector<uint32_t> type_of;  // by tensor: equal types have equal numbers
  void list_types();

  // The walk.
  enum Phase : uint8_t { kForward, kAgain };
  Pile<Value> values;
  std::vector<int32_t> heads[2];  // by phase and tensor, as in lowering
  Pile<TensorId> touched[2];      // tensors that have some
  std::vector<int32_t> terms_left;
  Pile<int32_t> waits;  // tasks that the next one on the compute lane waits for
  int32_t value_buffers = 0;
  int64_t moved_bytes = 0;  // of buffers that no choice counts
  LaneTasks tasks;
  Nanoseconds compute = 0;  // when the compute lane is done so far
  double reduced = 0;       // nanoseconds behind the point

  // --- step_bound_windows.cpp
  // Forward ops [first, last) in a row, and their backward ops.
  struct Window {
    size_t entry = 0;  // the last op of the window before that is no view; first, if there is none
    size_t first = 0, last = 0;
    size_t back_first = 0, back_last = 0;
  };
  // What the compute lane waits for in a window at least, both passes; no more than that beside the
  // work.
  struct Delays {
    Nanoseconds forward = 0, backward = 0;
  };
  struct HashList {
    size_t operator()(const std::vector<int32_t>& list) const;
  };
  std::vector<Window> windows;
  std::vector<uint32_t> window_of;  // by forward op
  std::vector<uint32_t> enters;     // by forward op: the window whose entry it is, or its own
  std::vector<std::unordered_map<std::vector<int32_t>, Delays, HashList>> known_delays;
  std::vector<Delays> delays;  // by window, of what is chosen
  std::vector<bool> outdated;  // by window
  Delays all_delays;           // their sum
  bool back_asked = false;     // those of the backward pass were found as well
  std::vector<int32_t> window_shardings;
  std::vector<std::pair<size_t, Delays*>> missing;  // windows that were not walked so before
  bool in_window = false;                           // the walk is over one of them
  // By forward op: its backward ops with the sums after them. Only if they come in reverse order.
  std::vector<std::pair<size_t, size_t>> backward_of;
  void list_windows();
  void list_backward_of();
  size_t entry_of(size_t first) const;
  // May stop when they are more than enough: delays that are not known yet are then 0.
  void find_delays(Nanoseconds enough);
  void set_delay(Nanoseconds Delays::*pass, size_t window, Nanoseconds delay);
  void enter(const Window& window);
  Nanoseconds walk_ahead(const Window& window);
  // Without sums that are for another stage; -1: all.
  Nanoseconds walk_back(const Window& window, int32_t stage);
  Nanoseconds walk_gradients();

  // --- step_bound_plain.cpp
  // Plain steps, of which every task is walked.
  struct Bucket {  // of gradients that are reduced together
    Residency key;
    int32_t digits = 0;  // set over which they are partial
    int64_t bytes = 0;
    std::vector<int32_t> updates = {};
  };
  struct Ready {  // weights that the devices update together
    Residency key;
    int32_t digits = 0;
    size_t begin = 0, end = 0;  // of ready_weights
  };
  struct Weight {         // by update
    Residency residency;  // as it is: nobody shares out alone
    int32_t digits = 0;
    int32_t unit = -1;      // that it is streamed with; -1: resident
    int32_t streamed = -1;  // task that brought it, in this pass
    bool here = false;      // was brought, in this pass
    bool updated = false;
    int32_t gradient = -1;  // task after which it is there
    int64_t elements = 0, gradient_elements = 0;
    int32_t layout = -1;
  };
  struct WeightUse {
    int32_t update = -1;
    size_t op = 0, input = 0;
  };
  bool alike = false;            // the devices of the group are one team with lanes of its own
  bool hosts_alike = false;      // and as many of them on each host
  bool own_terms = true;         // gradients come from ops of their own
  std::vector<int32_t> members;  // of the group
  std::vector<WeightUse> further_uses;                 // of weights that several ops use
  std::vector<std::vector<int32_t>> weights_of;        // by forward op: weights that it reads
  std::vector<std::vector<int32_t>> saved_weights_of;  // by forward op: that its backward op reads
  std::vector<size_t> first_used;                      // updates in the order of the forward pass
  std::vector<int32_t> update_kind;                    // by update: equal ones have equal work
  bool plain = false;                                  // the walk is of a plain step
  bool exact = false;                                  // and its end the simulated one
  bool possible = true;                                // the simulator takes all traffic
  bool backward_pass = false;
  bool streams = false;
  int64_t stream_bytes = 0, host_bytes = 0;  // beside what choices count
  std::vector<Weight> weights;
  std::vector<std::vector<int32_t>> units;
  std::vector<int32_t> fetched;  // by one task
  std::vector<Bucket> buckets;   // the first bucket_count
  size_t bucket_count = 0;
  std::vector<Ready> ready;
  std::vector<int32_t> ready_weights;  // updates
  Nanoseconds closing_work = 0;        // of the compute lane, after the backward pass
  std::unordered_map<uint64_t, int32_t> traffic_index;
  std::unordered_map<uint64_t, int64_t> host_parts;  // by layout and digits
  std::unordered_map<uint64_t, Nanoseconds> update_times, host_update_times;

  void list_weights();
  bool begin_plain();
  void begin_updates();
  bool plan_weights();
  void make_units();
  void turn_back();
  bool fits_surely() const;
  void read_weights(std::span<const int32_t> list);
  void fetch(size_t unit);
  void add_gradient(int32_t update, int32_t done);
  void flush(Bucket& bucket);
  void update_on_device(const Ready& batch);
  void update_on_host(const Residency& key, int32_t digits, std::span<const int32_t> updates);
  void gather_weights(int32_t digits, std::span<const int32_t> updates, int32_t done);
  void finish_plain();
  int64_t share_of(const Weight& weight) const;
  const LaneTasks::Flow& collective_flow(Collective collective, int32_t digits, int64_t bytes);
  const LaneTasks::Flow& host_flow(bool to_host, int64_t bytes);
  int64_t parts_on_host(int32_t layout, int32_t digits);
  Nanoseconds update_time(int32_t first, double elements, bool on_host);

  static Nanoseconds duration_of(const Price& price);
  Nanoseconds time_of_work(int32_t work);
  Nanoseconds time_of_op(int32_t work, const ExchangeTemplate& exchange);
  const LaneTasks::Flow* flow_of(int32_t traffic) {
    return traffic < 0 ? nullptr : &rates.flow(traffic, tables.traffics);
  }
  const std::pair<double, double>& reduce_price(int32_t digits);
  double update_price();

  void take(const Strategy& given);
  void use_group(const std::vector<DeviceId>& devices);
  const OpTemplate& made_of(size_t op) {
    return tables.op(OpId(op), known_ids[static_cast<size_t>(strategy->ops[op])], group);
  }

  // --- step_bound_choices.cpp
  const std::vector<MoveTemplate>& moves_of(TensorId tensor, int32_t from, int32_t to);
  const Choice& make_choice(size_t op, int32_t sharding);
  const Choice& choice(size_t op, int32_t sharding);
  void open_choices();
  void trim_choices();
  void choose();

  Nanoseconds one_group(Nanoseconds enough);
  Nanoseconds updates();

  // --- step_bound_stages.cpp
  // What a stage takes, of each micro-batch and after the last one.
  struct StageTimes {
    Nanoseconds ahead = 0, back = 0;   // of the compute lane, with what it waits for
    double update = 0, reduction = 0;  // nanoseconds
  };
  std::unordered_map<std::vector<int32_t>, Delays, HashList> part_delays;  // of parts of windows
  std::vector<int32_t> part;
  std::vector<StageTimes> stage_times;
  void time_weights(size_t op, StageTimes& times);
  Delays delays_of_stage(size_t s);
  StageTimes time_stage(size_t s);
  bool follows(size_t s) const;
  Nanoseconds several_groups();

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
  void keep_saved(std::vector<int64_t>& kept);
  bool too_large(bool with_saved);

  // --- step_bound_walk.cpp
  void begin_walk();
  const Value* find(Phase phase, TensorId tensor, int32_t layout) const;
  const Value& put(Phase phase, TensorId tensor, int32_t layout, int32_t buffer, int32_t task,
                   int64_t bytes);
  const Value& value(Phase phase, TensorId tensor, int32_t layout);
  const Value& move(Phase phase, TensorId tensor, Value from, int32_t layout);
  int32_t send(const LaneTasks::Flow& flow, int32_t after);
  // The next task on the compute lane does.
  void wait_for(int32_t task) {
    if (tasks.waits(LaneTasks::kCompute, task)) waits.add() = task;
  }
  void read(Phase phase, std::span<const Operand> reads);
  int32_t work(Nanoseconds duration);
  int32_t work(Nanoseconds duration, const Coupled& coupled);
  void forward(size_t op);
  void backward(const Backward& op);
  void accumulate(const Backward& op);
  void finish_term(const Made& term, int32_t done);
};

}  // namespace windlass
