// What leaves a device or comes to it: gradients and updates, stashes, and what the task before
// made.
#include "windlass/task/packs/pack_program.h"

namespace windlass {

// Gradients of a piece are final: sum them over the replicas and update.
void PackProgram::finish_piece(int32_t team, Piece& piece, TaskId last) {
  entries_[piece.entry].released = last;
  piece.updated = last;
  if (piece.weights == 0) return;
  const bool replicated = strategy_.replicas > 1;
  TaskId summed = last;
  if (replicated) {
    after(last);
    uses(piece.gradient, true);
    summed = strategy_.streams ? move(TaskKind::Reduce, teams_.reduce(team), PackMove::Scatter,
                                      team, piece.weights, label(PackData::Gradients, piece))
                               : move(TaskKind::Reduce, teams_.compute(team), PackMove::Reduce,
                                      team, piece.weights, label(PackData::Gradients, piece));
  }
  piece.on_device ? update_on_device(team, piece, summed) : update_on_host(team, piece, summed);
}

void PackProgram::update_on_host(int32_t team, Piece& piece, TaskId summed) {
  const PackLabel what = label(PackData::Gradients, piece);
  const bool shared = strategy_.replicas > 1 && strategy_.streams;
  after(summed);
  uses(piece.gradient);
  const int64_t bytes = shared ? share_of(piece.weights) : piece.weights;
  const PackMove how = strategy_.replicas > 1 && !shared ? PackMove::FirstOut : PackMove::Out;
  volume_.gradients += bytes * (shared ? strategy_.replicas : 1);
  const TaskId out = move(TaskKind::SwapOut, teams_.gradients_out(team), how, team, bytes, what);
  entries_[piece.entry].released = out;
  after(out);
  piece.updated = emit(TaskKind::HostUpdate, teams_.host(team),
                       whole_nanoseconds(shared ? piece.update / strategy_.replicas : piece.update),
                       label(PackData::Weights, piece));
}

// Each member updates its share. Two pieces of optimizer state are there at a time.
void PackProgram::update_on_device(int32_t team, Piece& piece, TaskId summed) {
  TeamState& state = states_[static_cast<size_t>(team)];
  const PackLabel optimizer = label(PackData::Optimizer, piece);
  const PackLabel weights = label(PackData::Weights, piece);
  const int64_t part = share_of(piece.optimizer);
  TaskId there;
  BufferId buffered;
  if (part > 0) {
    buffered = buffer(teams_.memory(team), BufferKind::OptimizerState, part, optimizer);
    after(state.updated_before);
    after(piece.stored);
    uses(buffered, true);
    there = move(TaskKind::SwapIn, teams_.weights_in(team), PackMove::In, team, part, optimizer);
  }
  after(summed);
  after(there);
  uses(piece.buffer, true);
  uses(piece.gradient);
  uses(buffered, true);
  // Weights and state are read and written, gradients read.
  const double bytes = static_cast<double>(3 * share_of(piece.weights) + 2 * part);
  const TaskId updated = emit(TaskKind::Update, teams_.compute(team),
                              whole_nanoseconds(bytes / teams_.memory_bandwidth()), weights);
  state.updated_before = state.updated;
  state.updated = updated;
  after(updated);
  uses(piece.buffer);
  const int64_t weight_part = share_of(piece.weights);
  piece.updated = move(TaskKind::SwapOut, teams_.gradients_out(team), PackMove::Out, team,
                       weight_part, weights);
  entries_[piece.entry].released = piece.updated;
  volume_.weights += weight_part * strategy_.replicas;
  if (part == 0) return;
  after(updated);
  uses(buffered);
  piece.stored =
      move(TaskKind::SwapOut, teams_.gradients_out(team), PackMove::Out, team, part, optimizer);
  volume_.optimizer += 2 * part * strategy_.replicas;
}

PackProgram::Flow PackProgram::to_host(const Flow& flow, int32_t team, int64_t bytes,
                                       const PackLabel& what) {
  Flow host;
  host.buffer = buffer(teams_.host_memory(), BufferKind::Stash, bytes * strategy_.replicas, what);
  after(flow.made);
  uses(flow.buffer);
  uses(host.buffer, true);
  host.made = move(TaskKind::SwapOut, teams_.stash_out(team), PackMove::Out, team, bytes, what);
  volume_.activations += bytes * strategy_.replicas;
  return host;
}

PackProgram::Flow PackProgram::from_host(std::span<const Flow> parts, int32_t team, int64_t bytes,
                                         const PackLabel& what, TaskId room) {
  Flow flow;
  flow.buffer = buffer(teams_.memory(team), BufferKind::Communication, bytes, what);
  for (const Flow& part : parts) {
    after(part.made);
    uses(part.buffer);
  }
  after(room);
  uses(flow.buffer, true);
  flow.made = move(TaskKind::SwapIn, teams_.stash_in(team), PackMove::In, team, bytes, what);
  volume_.activations += bytes * strategy_.replicas;
  return flow;
}

PackProgram::Flow PackProgram::receive(size_t task, const Flow& made, int64_t bytes,
                                       const PackLabel& what, TaskId room) {
  const int32_t from = team_of(task - 1), to = team_of(task);
  if (from == to) {
    if (strategy_.streams) return made;
    const Flow host = to_host(made, from, bytes, what);
    return from_host(std::span(&host, 1), to, bytes, what, room);
  }
  Flow flow;
  flow.buffer = buffer(teams_.memory(to), BufferKind::Communication, bytes, what);
  after(made.made);
  after(room);
  uses(made.buffer);
  uses(flow.buffer, true);
  flow.made = move(TaskKind::Send, teams_.send(from), PackMove::Next, from, bytes, what);
  return flow;
}

}  // namespace windlass
