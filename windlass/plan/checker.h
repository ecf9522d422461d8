// The walk of check_tasks(): what each buffer holds, task by task.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "windlass/plan/check_layouts.h"
#include "windlass/plan/check_moves.h"
#include "windlass/plan/happens_before.h"
#include "windlass/task/task_graph.h"

namespace windlass {

class Checker {
 public:
  Checker(const TrainingGraph& training, const Machine& machine, const Strategy& strategy,
          const TaskGraph& graph);
  std::vector<std::string> run();

 private:
  // What a buffer holds. Its content is a number: the product of a random number for a tensor and
  // one for its micro-batch or version, or a sum of such products. A sum of gradients is the sum of
  // their numbers, so that two ways to add up the same terms agree.
  struct Held {
    bool there = false;
    bool raw = false;  // statistics of each piece: they have not been exchanged yet
    // Where parts overlap, each has a share that is still to be added; what none has is zero.
    bool open = false;
    int32_t bits = 0;      // of an element, if it is compressed
    int32_t layout = -1;   // of CheckLayouts
    int32_t share = 0;     // digits over which each member has its share of it only
    uint64_t content = 0;  // of all members
  };
  // As what a task reads it.
  struct Seen {
    TensorId tensor;
    Held held;
  };
  // Who wrote a buffer last, and who has read it since.
  struct Users {
    TaskId writer;
    std::vector<TaskId> readers;
  };
  // Numbers of what is of no micro-batch.
  enum Version : int32_t { kFixed = -1, kNew = -2, kState = -3, kNewState = -4, kSquares = -5 };

  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    ++count_;
    if (findings_.size() < kMost)
      findings_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static constexpr size_t kMost = 50;

  // --- checker.cpp
  bool check_graph();
  bool check_teams();
  void check_pieces();
  void check_carried();
  bool check_buffer(BufferId id);
  void look_at(TaskId id);
  void visit(TaskId id);
  void check_coverage();
  std::string name(TaskId id) const;
  std::string name(BufferId id) const;
  const std::string& name(TensorId id) const { return training_.graph[id].name; }

  // --- check_values.cpp
  std::optional<Seen> see(TaskId id, const Use& use);
  void compute(TaskId id);
  void read(TaskId id, const Use& use, const CheckOperand& operand);
  void write(TaskId id, const Use& use, const CheckOperand& operand);
  void sum(TaskId id);
  void check_work(TaskId id, int32_t group, double begun);
  bool runs_on(TaskId id, int32_t group);

  // --- check_coupled.cpp
  bool are_statistics(BufferId id) const { return !graph_[id].tensor.valid(); }
  bool check_statistics(BufferId id);
  bool uses_statistics_rightly(TaskId id);
  double use_statistics(TaskId id, int32_t group);
  void exchange(TaskId id);
  uint64_t statistics_number(TaskId id) const;

  // --- check_exchanges.cpp
  void move(TaskId id);
  void share(TaskId id);
  void page(TaskId id);
  void copy(TaskId id);
  int64_t copy_one(TaskId id, const Use& from, const Use& to);
  bool stored_for(BufferId stored, TeamId team, int32_t group) const;
  void check_stash(TaskId id, BufferId device, BufferId stored);
  bool everybody(TaskId id, UseKind kind, uint32_t index, int32_t group);
  void check_traffic(TaskId id, int32_t expected, const char* what);
  void replace(TaskId id, BufferId buffer, const Held& from);

  // --- check_updates.cpp
  void update(TaskId id);
  void update_one(TaskId id, uint32_t update, const std::vector<const Use*>& uses);
  void add_squares(TaskId id);
  void check_norm(TaskId id, TeamId team);
  // The number of a weight's gradient, every term of every micro-batch once.
  uint64_t whole_gradient(size_t update) const;
  void check_host_bytes(TaskId id, BufferId buffer);
  // Of a layout and its shares, on the fullest host of a team.
  int64_t parts_on_host(TeamId team, int32_t group, int32_t layout, int32_t share);
  void check_updates();
  int32_t shared_over(size_t update);
  bool on_one_host(int32_t group, const std::vector<int64_t>& members, int32_t share) const;
  const Op& update_op(size_t update) const { return training_.graph.ops[first_update_ + update]; }

  // Numbers of contents.
  uint64_t number(int32_t micro_batch) const;
  uint64_t content(TensorId tensor, int32_t micro_batch) const {
    return tensors_[tensor.index()] * number(micro_batch);
  }
  bool holds(const Seen& seen, TensorId tensor, int32_t micro_batch) const;
  bool fixed(TensorId tensor) const;

  TeamId team_of(TaskId id) const { return graph_[graph_.lanes_of(id)[0]].team; }
  MemoryId memory_of(TaskId id) const { return graph_[team_of(id)].memory; }
  bool on_host(BufferId id) const { return !graph_[graph_[id].memory].team.valid(); }
  bool is_host_of(const Memory& memory, TeamId team) const;
  // Whose members' pieces a buffer holds.
  TeamId holder(BufferId id) const {
    return on_host(id) ? graph_[id].team : graph_[graph_[id].memory].team;
  }
  const std::vector<DeviceId>& devices(int32_t group) const {
    return strategy_.groups[static_cast<size_t>(group)];
  }
  int64_t members(int32_t group) const { return static_cast<int64_t>(devices(group).size()); }
  // The numbers of a team's devices in a group.
  const std::vector<int64_t>& members(TeamId team, int32_t group) const;
  int32_t group_of(OpId op) const;
  int32_t group_of(BufferId id) const { return group_id(graph_[id].group); }
  // The group of the strategy that the graph means, the first of equal ones; -1 if there is none.
  int32_t group_id(int32_t group) const { return group_ids_[static_cast<size_t>(group)]; }
  int32_t layout_id(int32_t layout) const { return layout_ids_[static_cast<size_t>(layout)]; }
  int32_t share_of(BufferId id) const { return set_ids_[static_cast<size_t>(graph_[id].share)]; }
  Held& held(BufferId id) { return held_[id.index()]; }
  // Bytes of the part, or share of it, that the member with most has, among those with the same
  // sizes as the holders; as it is, not as allocated.
  int64_t part_bytes(BufferId id);
  int64_t element_size(BufferId id) const;
  bool view(const Op& op) const { return op_info(op.kind).view; }
  static bool in(int32_t index, const auto& list) {
    return index >= 0 && static_cast<size_t>(index) < list.size();
  }

  const TrainingGraph& training_;
  const Machine& machine_;
  const Strategy& strategy_;
  const TaskGraph& graph_;
  size_t first_update_ = 0;
  CheckLayouts layouts_;
  CheckMoves moves_;
  std::vector<int32_t> group_ids_, layout_ids_, set_ids_;  // by those of the graph
  // Worked out once, for groups of many devices.
  mutable std::map<std::pair<TeamId, int32_t>, std::vector<int64_t>> members_;
  std::map<std::tuple<TeamId, int32_t, int32_t, int32_t>, int64_t> parts_on_host_;
  std::vector<std::vector<int32_t>> kinds_;  // size_kinds() of the strategy
  std::vector<int32_t> same_group_;          // by group of the strategy: the first with its devices
  std::vector<int32_t> stage_of_;            // by op
  std::vector<int32_t> update_of_;           // by tensor: of a weight; -1
  std::vector<bool> gradients_;              // by tensor: whether a weight is updated with it
  std::vector<int32_t> saved_of_;            // by tensor: of its storage among the saved; -1
  std::vector<uint64_t> tensors_;            // by tensor: its number
  std::vector<int32_t> shared_;              // by update: set of digits, -1 if not known yet
  std::vector<std::vector<TeamId>> teams_;   // by group
  std::vector<Held> held_;                   // by buffer
  std::vector<Users> users_;                 // by buffer
  std::set<BufferId> carried_;  // have what others have when the next step begins, or do
  std::vector<double> begun_;   // by buffer of statistics: multiply-adds for them
  // By update: group and member of each update.
  std::vector<std::vector<std::pair<int32_t, int64_t>>> updated_;
  std::set<std::pair<int32_t, int32_t>> same_traffic_;  // expected and found
  std::optional<HappensBefore> clock_;
  std::vector<std::string> findings_;
  size_t count_ = 0;
};

}  // namespace windlass
