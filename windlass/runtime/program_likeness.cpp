// Tasks one by one, and which of them are alike, so that what was found out about one holds for all
// of them: of those that move something what goes where, of the others who has to do with them.

#include <algorithm>
#include <utility>

#include "windlass/runtime/program_maker.h"

namespace windlass {

ProgramTask ProgramMaker::take(TaskId id) {
  // Pieces are those of tasks that are gone.
  constexpr size_t kMostPieces = 100'000;
  if (program_.pieces.size() > kMostPieces) {
    program_.pieces.clear();
    pieces_.clear();
  }
  make_task(id);
  return std::exchange(program_.tasks[id.index()], {});
}

void ProgramMaker::describe(const Layout& layout, std::vector<int64_t>& words) const {
  const auto known = std::ranges::find(described_, layout);
  words.push_back(known - described_.begin());
  if (known == described_.end()) described_.push_back(layout);
}

void ProgramMaker::describe(TensorId tensor, int32_t micro_batch,
                            std::vector<int64_t>& words) const {
  if (!tensor.valid()) return words.push_back(-1);
  const TensorType& type = training_.of(micro_batch).graph[tensor].type;
  words.push_back(static_cast<int64_t>(type.dtype));
  words.push_back(static_cast<int64_t>(type.shape.size()));
  words.insert(words.end(), type.shape.begin(), type.shape.end());
  if (!program_.in_parts) return;
  words.push_back(micro_batch);
  words.push_back(held_.samples().axis[tensor.index()]);
}

std::vector<int64_t> ProgramMaker::likeness(TaskId id) const {
  const Task& task = tasks_[id];
  const bool moved = moves(task.kind);
  if (task.begins || (moved && task.op.valid())) return {};
  std::vector<int64_t> words = {
      static_cast<int64_t>(task.kind), task.group, team_of(id).value,
      static_cast<int64_t>(tasks_[tasks_.lanes_of(id)[0]].kind),
      task.op.valid() ? static_cast<int64_t>(training_.graph[task.op].kind) : -1};
  if (exchanges(task.kind)) {
    const Movement& movement = tasks_.movements[static_cast<size_t>(task.how)];
    words.insert(words.end(),
                 {movement.pairwise, static_cast<int64_t>(movement.collective), movement.digits,
                  movement.from_group, movement.to_group, movement.sums});
    for (int32_t layout : {movement.from_layout, movement.to_layout})
      if (layout < 0)
        words.push_back(-1);
      else
        describe(tasks_.layouts[static_cast<size_t>(layout)], words);
    describe(task.tensor, task.micro_batch, words);
  } else if (moved) {
    words.push_back(task.how);
  }
  std::vector<BufferId> buffers;
  for (const Use& use : tasks_.uses_of(id)) {
    const Buffer& buffer = tasks_[use.buffer];
    // What is exchanged before, and states, whose sizes differ, are not looked into.
    if (use.kind == UseKind::Statistics) return {};
    if (moved && buffer.kind == BufferKind::OptimizerState) return {};
    const auto known = std::ranges::find(buffers, use.buffer);
    words.insert(words.end(),
                 {static_cast<int64_t>(use.kind), use.write, use.adds, use.index,
                  known - buffers.begin(), buffer.memory.value, buffer.team.value,
                  static_cast<int64_t>(buffer.kind), buffer.of_each, buffer.group, buffer.share});
    if (known == buffers.end()) buffers.push_back(use.buffer);
    if (!moved) continue;
    describe(held_.layout(use.buffer), words);
    describe(buffer.tensor, buffer.micro_batch, words);
    TensorId seen = buffer.tensor;
    for (int32_t v = use.view; v >= 0; v = tasks_.views[static_cast<size_t>(v)].of) {
      const View& view = tasks_.views[static_cast<size_t>(v)];
      words.push_back(view.tensor == seen);
      words.push_back(view.tensor == buffer.tensor);
      describe(tasks_.layouts[static_cast<size_t>(view.layout)], words);
      describe(view.tensor, buffer.micro_batch, words);
      seen = view.tensor;
    }
    words.push_back(-2);
  }
  return words;
}

}  // namespace windlass
