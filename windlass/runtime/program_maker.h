// The walk over the tasks of a graph that makes a program of them.
#pragma once

#include <map>
#include <tuple>
#include <vector>

#include "windlass/runtime/program.h"
#include "windlass/task/holdings.h"

namespace windlass {

class ProgramMaker {
 public:
  ProgramMaker(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks,
               const std::vector<int32_t>& sample_axes, const RowShape& row);
  Program make();

  // The same in pieces, for whoever looks at one task after the other: all but the tasks, then each
  // of these in turn, of which nothing is kept.
  void begin();
  ProgramTask take(TaskId id);
  const Program& program() const { return program_; }
  // Tasks that touch the same memories, and move the same between them, only in other buffers, have
  // the same words; none if that is not known. To pass over a task is to leave the rest as if it
  // was taken.
  std::vector<int64_t> likeness(TaskId id) const;
  void pass_over(TaskId id) {
    if (exchanges(tasks_[id].kind)) note_layouts(id);
  }

 private:
  // --- program.cpp
  void make_memories();
  void make_slots();
  void place();
  void make_task(TaskId id);
  void make_parts(TaskId id);
  void find_bringers();
  bool brought(BufferId id) const { return !row_.brought.empty() && row_.brought[id.index()]; }
  int32_t slot(BufferId buffer, int64_t member) const;
  const Op& update_op(size_t update) const { return training_.graph.ops[first_update_ + update]; }
  // Whose members do it.
  TeamId team_of(TaskId id) const;
  const Shape& shape(TensorId id) const { return training_.graph[id].type.shape; }
  // What a use is to a member, all of it, dense.
  struct Seen {
    Operand operand;
    Region region;
  };
  Seen see(const Use& use, int64_t member) const;
  // The same in the part that is wanted. Throws Error{Internal} if it is another one.
  Operand operand(const Use& use, int64_t member, const Region& wanted) const;

  void compute(TaskId id, Part& part);
  int32_t piece(TaskId id, int64_t member);
  void sum(TaskId id, Part& part) const;
  void compress(TaskId id, Part& part) const;

  // --- program_likeness.cpp
  void describe(const Layout& layout, std::vector<int64_t>& words) const;
  void describe(TensorId tensor, int32_t micro_batch, std::vector<int64_t>& words) const;

  // --- program_updates.cpp
  void update(TaskId id, Part& part) const;
  void squares(TaskId id, Part& part) const;
  std::vector<Range> counted(const Use& gradient, int64_t member, int32_t shared) const;

  // --- program_moves.cpp
  void copy(TaskId id);
  void copy(TaskId id, const Use& to, Part& part) const;
  void exchange(TaskId id);
  void note_layouts(TaskId id);
  void redistribute(TaskId id);
  void share(TaskId id, uint32_t index);
  void merge(TaskId id);
  const Use* find(TaskId id, UseKind kind, uint32_t index, int64_t member) const;
  int64_t members(int32_t group) const {
    return static_cast<int64_t>(tasks_.groups[static_cast<size_t>(group)].size());
  }
  const std::vector<MemberDigit>& digits(int32_t set) const {
    return tasks_.digit_sets[static_cast<size_t>(set)];
  }

  const TrainingGraph& training_;
  const Machine& machine_;
  const TaskGraph& tasks_;
  const std::vector<int32_t>& sample_axes_;
  const RowShape& row_;
  Holdings held_;
  const std::vector<TensorId> roots_;
  size_t first_update_ = 0;
  Program program_;
  // By forward op, sharding, member, micro-batch, if it matters (else a number for its size), and
  // step of the row.
  std::map<std::tuple<int32_t, int32_t, int64_t, int32_t, size_t>, int32_t> pieces_;
  mutable std::vector<Layout> described_;  // each different one, by its number
  // By buffer and member: what was begun and not merged yet.
  std::map<std::pair<int32_t, int64_t>, Exchange> begun_;
};

}  // namespace windlass
