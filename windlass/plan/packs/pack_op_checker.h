// The walk of check_tasks() over packs of layers at the grain of ops: what each buffer holds, task
// by task.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/cost/traffic.h"
#include "windlass/graph/samples.h"
#include "windlass/plan/happens_before.h"
#include "windlass/strategy/packs.h"
#include "windlass/task/task_graph.h"

namespace windlass {

class PackOpChecker {
 public:
  PackOpChecker(const TrainingGraph& training, const Machine& machine, const PackStrategy& strategy,
                const TaskGraph& graph);
  std::vector<std::string> run();

 private:
  // What a buffer holds on each member. Its content is a number, as in Checker: gradients that are
  // added up are the sum of their numbers, over samples too.
  struct Held {
    bool there = false;
    bool partial = false;               // members have terms of a sum
    bool share = false;                 // each member has its share alone
    TaskKind from = TaskKind::Forward;  // of who wrote it last
    Range samples;                      // of what is apart
    uint64_t content = 0;
  };
  struct Seen {
    TensorId tensor;
    Held held;
  };
  struct Users {
    TaskId writer;
    std::vector<TaskId> readers;
  };
  // What is of no sample: before and after the update.
  enum Version : int64_t { kFixed = -1, kNew = -2, kState = -3, kNewState = -4 };

  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    if (findings_.size() < kMost)
      findings_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static constexpr size_t kMost = 50;

  // --- check_pack_ops.cpp
  void number_tensors();
  void find_layers_of_ops();
  bool check_graph();
  bool check_teams();
  bool check_buffer(BufferId id);
  void look_at(TaskId id);
  void visit(TaskId id);
  void check_coverage();
  void check_end();
  std::string name(TaskId id) const;
  std::string name(BufferId id) const;
  const std::string& name(TensorId id) const { return training_.graph[id].name; }

  // --- check_pack_op_values.cpp
  void compute(TaskId id);
  void sum(TaskId id);
  std::optional<Seen> see(TaskId id, const Use& use);
  void read(TaskId id, const Use& use, TensorId tensor);
  void read_saved(TaskId id, const Use& use, TensorId tensor);
  void write(TaskId id, const Use& use, TensorId tensor);
  bool runs_where(TaskId id, int32_t layer);
  void check_split(TaskId id);

  // --- check_pack_op_moves.cpp
  void copy(TaskId id);
  void copy_to(TaskId id, const Use& to, int64_t& bytes);
  void send(TaskId id);
  void share(TaskId id);
  void update(TaskId id);
  void update_one(TaskId id, uint32_t update, const std::vector<const Use*>& uses);
  void check_traffic(TaskId id, const Traffic& expected);
  bool in_digits(int32_t set) const;  // whether it is the set of the replicas

  uint64_t number(int64_t version) const;
  uint64_t number(const Range& samples) const;
  uint64_t content(TensorId tensor, const Range& samples) const;
  bool holds(const Seen& seen, TensorId tensor, const Range& samples) const;
  SampleKind kind(TensorId tensor) const { return samples_.kind[tensor.index()]; }
  bool plain(TensorId tensor) const { return plain_[tensor.index()]; }
  // Bytes on one member, of a micro-batch or as a whole; as they are.
  int64_t bytes(TensorId tensor, int32_t micro_batch) const;
  int64_t share_bytes(TensorId tensor, int64_t element) const;
  int64_t state_size(size_t update) const;
  Layout expected_layout(const Buffer& buffer) const;
  Range range(int32_t micro_batch) const {
    return micro_batch < 0 ? Range{0, share_}
                           : graph_.micro_batches[static_cast<size_t>(micro_batch)];
  }
  bool replicated() const { return strategy_.replicas > 1; }
  bool shares() const { return replicated() && strategy_.streams; }
  int32_t team(TaskId id) const { return graph_[graph_.lanes_of(id)[0]].team.value; }
  LaneKind lane(TaskId id) const { return graph_[graph_.lanes_of(id)[0]].kind; }
  bool on_host(BufferId id) const { return !graph_[graph_[id].memory].team.valid(); }
  bool on_team(BufferId id, int32_t team) const {
    return graph_[id].memory == graph_.teams[static_cast<size_t>(team)].memory;
  }
  size_t pack_of(int32_t layer) const { return pack_of_[static_cast<size_t>(layer)]; }
  int32_t forward_team(int32_t layer) const { return forward_team_[static_cast<size_t>(layer)]; }
  int32_t backward_team(size_t pack) const {
    return static_cast<int32_t>((strategy_.tasks() - 1 - pack) %
                                static_cast<size_t>(strategy_.depth));
  }
  bool loss_pack(size_t pack) const { return pack + 1 == strategy_.backward_packs.size(); }
  const Op& update_op(size_t update) const { return training_.graph.ops[first_update_ + update]; }
  Held& held(BufferId id) { return held_[id.index()]; }
  static bool in(int32_t index, const auto& list) {
    return index >= 0 && static_cast<size_t>(index) < list.size();
  }

  const TrainingGraph& training_;
  const Machine& machine_;
  const PackStrategy& strategy_;
  const TaskGraph& graph_;
  const SampleAxes samples_;
  int64_t share_ = 0;  // samples of a replica
  size_t first_update_ = 0;
  std::vector<TensorId> roots_;
  std::vector<int32_t> layer_of_;      // by op of both passes
  std::vector<bool> plain_;            // by tensor: of data and constants alone
  std::vector<uint64_t> tensors_;      // by tensor: its number
  std::vector<int32_t> update_of_;     // by tensor: of a weight; -1
  std::vector<bool> gradients_;        // by tensor: whether a weight is updated with it
  std::vector<int32_t> home_;          // by update: the first layer that reads its weight
  std::vector<size_t> pack_of_;        // backward pack, by layer
  std::vector<int32_t> forward_team_;  // by layer
  std::set<std::pair<int64_t, int64_t>> forward_parts_, backward_parts_;  // micro-batches
  std::vector<Held> held_;
  std::vector<Users> users_;
  std::vector<int32_t> updated_;  // by update: how often
  std::optional<HappensBefore> clock_;
  std::vector<std::string> findings_;
};

}  // namespace windlass
