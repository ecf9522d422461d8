// The walk of check_tasks(): what each buffer holds, task by task.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "windlass/plan/check_layouts.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// What the checker knows of a training graph and a strategy before it sees a task.
struct CheckFacts {
  CheckFacts(const TrainingGraph& training, const Strategy& strategy);

  std::vector<TensorId> roots;     // by tensor: what it is a view of
  std::vector<int32_t> stage_of;   // by op
  std::vector<int32_t> update_of;  // by tensor: of a weight; -1
  std::vector<bool> direct;   // by tensor: a term that nobody else reads: added where it is made
  std::vector<bool> dropped;  // by op: sums of terms, which need no task
  std::vector<std::vector<TensorId>> terms;                   // by update
  std::vector<std::vector<std::pair<OpId, size_t>>> readers;  // by update: forward ops and inputs
  // By tensor: updates that a gradient is a term or a sum of terms of. Several where a gradient
  // passes through to several weights.
  std::vector<std::vector<int32_t>> updates_of;
  std::vector<int32_t> same_group;  // by group: the first one with the same devices

  bool view(const Op& op) const;
};

// The order of tasks that predecessors and lanes enforce. A task's clock has, for each lane, the
// last task that ends before it starts. Clocks are kept as long as someone is going to look at
// them.
class HappensBefore {
 public:
  explicit HappensBefore(const TaskGraph& graph);

  // To be called for every task in the order of their ids.
  void enter(TaskId task);
  void leave(TaskId task);
  // Whether `task` ends before the one that was entered starts.
  bool before(TaskId task) const;

 private:
  using Clock = std::vector<int32_t>;
  const TaskGraph& graph_;
  Clock now_;
  TaskId current_;
  std::vector<Clock> lanes_;       // clock of the last task of each lane, itself included
  std::map<int32_t, Clock> kept_;  // of tasks with successors to come
  std::vector<int32_t> last_successor_;
};

class Checker {
 public:
  Checker(const TrainingGraph& training, const Machine& machine, const Strategy& strategy,
          const TaskGraph& graph);
  std::vector<std::string> run();

 private:
  // What a buffer holds: `tensor` in `layout` over `group`, after so many moves towards a layout
  // that shows when it is read.
  struct Held {
    bool there = false;
    TensorId tensor = {};
    int32_t layout = -1;  // -1: as its first reader wants it
    int32_t group = -1;   // -1: that of its first reader
    int32_t steps = 0;
    bool crossed = false;  // sent to another group on the way
    int32_t before = -1;   // layout with partial sums that were combined in place
    int32_t before_steps = 0;
    // Weights.
    enum class Version : uint8_t { Old, Share, New } version = Version::Old;
    // Gradients of weights.
    uint64_t terms = 0;  // sum over hashes of (term, micro-batch)
    bool reduced = false;
    TeamId sender = {};  // that a gradient on the host came from
  };
  // Who wrote a buffer last, and who has read it since.
  struct Users {
    TaskId writer;
    std::vector<TaskId> readers;
  };

  template <typename... Args>
  void complain(fmt::format_string<Args...> format, Args&&... args) {
    ++count_;
    if (findings_.size() < kMost)
      findings_.push_back(fmt::format(format, std::forward<Args>(args)...));
  }
  static constexpr size_t kMost = 50;

  // --- checker.cpp
  bool check_graph();
  void check_teams();
  void check_pieces();
  void start_buffers();
  void visit(TaskId id);
  std::string name(TaskId id) const;
  std::string name(BufferId id) const;
  const std::string& name(TensorId id) const { return training_.graph[id].name; }
  const std::string& name_of_weight(int32_t update) const;

  // --- check_values.cpp
  void compute(TaskId id);
  void sum(TaskId id);
  void redistribute(TaskId id);
  void exchange(TaskId id);
  void stash(TaskId id);
  bool reads(TaskId id, TensorId tensor, int32_t layout, int32_t group, bool complains = true);
  bool fit(Held& held, BufferId buffer, TensorId tensor, int32_t layout, int32_t group);
  // The group whose devices hold a buffer; -1 for those of hosts.
  int32_t group_of(BufferId id) const;
  bool settle(Held& held, BufferId buffer, int32_t layout, int32_t group);
  // The tensor in a buffer as a view of it; what it holds if there is none.
  std::optional<Held> see_as(Held& held, BufferId buffer, TensorId tensor, int32_t group);
  const Use* source_of(TaskId id, const Buffer& target, TensorId tensor);
  void move_on(Held& held, bool in_place, bool crosses);
  static void take(Held& to, const Held& from);
  void writes(TaskId id, TensorId tensor, int32_t layout, int32_t group);
  bool holds(BufferId buffer, TensorId tensor, int32_t micro_batch) const;
  void check_work(TaskId id, int32_t group);
  bool each_micro_batch(TensorId tensor) const;

  // --- check_weights.cpp
  void add_term(TaskId id);
  void add_to_sum(TaskId id, TensorId term, int32_t layout, int32_t group);
  Held::Version after_update(int32_t update);
  // Digits over which ZeRO shares out a weight: those over which its gradient is partial where it
  // is used first. Without any, nobody shares it.
  std::vector<MemberDigit> shared_over(int32_t update) const;
  int64_t share_parts(int32_t update) const;
  int32_t group_of_team(TeamId team, int32_t update) const;
  void reduce(TaskId id);
  void update(TaskId id);
  void swap_gradients(TaskId id);
  void bring_weights(TaskId id);
  void send_weights(TaskId id);
  void check_traffic(TaskId id, Collective collective, int32_t group,
                     const std::vector<MemberDigit>& digits, int64_t bytes, const char* what);
  bool is_gradient(BufferId buffer) const;
  bool belongs(BufferId buffer, int32_t update) const;
  uint64_t term_hash(TensorId term, int32_t micro_batch) const;
  const Op& update_op(int32_t update) const;
  int32_t weight_layout(int32_t update, int32_t group);
  void check_updates();
  void check_host_weight(TaskId id, int32_t update, TeamId team);
  bool writes(TaskId id, BufferId buffer) const;
  void check_states(TaskId id, int32_t update, TeamId team);
  TeamId updating_team(TaskId id) const;

  // --- check_coverage.cpp
  void check_coverage();

  TeamId team_of(TaskId id) const { return graph_[graph_.lanes_of(id)[0]].team; }
  MemoryId memory_of(TaskId id) const { return graph_[team_of(id)].memory; }
  const Shape& shape(TensorId id) const { return training_.graph[id].type.shape; }
  int64_t members(int32_t group) const {
    return static_cast<int64_t>(strategy_.groups[static_cast<size_t>(group)].size());
  }
  int32_t group_of(OpId op, bool backward) const;
  bool on_host(BufferId id) const { return !graph_[graph_[id].memory].team.valid(); }

  const TrainingGraph& training_;
  const Machine& machine_;
  const Strategy& strategy_;
  const TaskGraph& graph_;
  CheckFacts facts_;
  CheckLayouts layouts_;
  std::vector<std::vector<TeamId>> teams_;  // by group
  std::vector<Held> held_;                  // by buffer
  std::vector<Users> users_;                // by buffer
  std::vector<uint64_t> expected_terms_;    // by update
  // By update: team and task of each update.
  std::vector<std::vector<std::pair<TeamId, TaskId>>> updated_;
  std::map<std::tuple<Collective, int32_t, std::vector<MemberDigit>, int64_t>, Traffic> traffic_;
  std::map<std::pair<int32_t, int32_t>, int32_t> weight_layouts_;
  std::vector<int32_t> saved_index_;  // by tensor: of its storage among the saved; -1
  std::vector<BufferId> operands_;    // of the task being looked at: found to be right
  std::optional<HappensBefore> clock_;
  std::string reason_;  // of the last operand that did not fit
  std::vector<std::string> findings_;
  size_t count_ = 0;
};

}  // namespace windlass
