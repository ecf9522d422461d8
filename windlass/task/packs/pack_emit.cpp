// One task of a pipeline at a time: load its weights, run its micro-batches, let go of what is
// done.
#include <algorithm>
#include <utility>

#include "windlass/task/packs/pack_program.h"

namespace windlass {

// Lets entries go, oldest first, until so many bytes fit. What is added waits for their releases.
bool PackProgram::make_room(TeamState& state, int64_t bytes) {
  if (!strategy_.streams) return true;
  size_t at = 0;
  while (state.held > strategy_.state_bytes - bytes) {
    while (at < state.window.size() && !entries_[state.window[at]].released.valid()) ++at;
    if (at == state.window.size()) return false;
    const size_t entry = state.window[at];
    after(entries_[entry].released);
    state.held -= entries_[entry].bytes;
    Piece& piece = pieces_[entries_[entry].piece];
    if (piece.entry == entry) piece.cached = false;
    state.window.erase(state.window.begin() + static_cast<std::ptrdiff_t>(at));
  }
  return true;
}

// Weights of a piece to a team: from the host, or from the shares that its members have kept.
void PackProgram::bring(int32_t team, Piece& piece, bool backward) {
  const bool shared = strategy_.streams && strategy_.replicas > 1;
  const PackLabel what = label(PackData::Weights, piece);
  piece.buffer = buffer(teams_.memory(team), BufferKind::Weight, piece.state, what);
  const bool kept = backward && piece.share.valid() && piece.share_team == team;
  const bool keep = shared && !backward &&
                    strategy_.keep_shares[pack_of_[static_cast<size_t>(piece.layers.first)]] != 0;
  const int64_t part = shared ? share_of(piece.state) : piece.state;
  if (!kept) {
    after(piece.updated);
    if (!strategy_.streams) after(states_[static_cast<size_t>(team)].last_compute);
    BufferId read = piece.buffer;
    PackLabel read_label = what;
    if (keep) {
      read_label.what = PackData::Shares;
      read = buffer(teams_.memory(team), BufferKind::Weight, part, read_label);
      piece.share = read;
      piece.share_team = team;
    }
    uses(read, true);
    piece.ready =
        move(TaskKind::SwapIn, teams_.weights_in(team), PackMove::In, team, part, read_label);
    piece.share_ready = piece.ready;
    volume_.weights += part * strategy_.replicas;
  }
  if (!shared) return;
  after(piece.share_ready);
  if (kept || keep) uses(piece.share);
  uses(piece.buffer, true);
  piece.ready =
      move(TaskKind::Gather, teams_.gather(team), PackMove::Gather, team, piece.state, what);
}

// One after the other. But the first layer, the last to be updated in the step before, lets the
// piece behind it go first, if there is room for both beside the last pack of that step.
void PackProgram::order_loads(size_t task, Range range) {
  order_.clear();
  for (size_t k = range.first; k <= range.last; ++k) order_.push_back(k);
  const size_t own = group_at(range.first).last + 1 - range.first;
  if (task > 0 || !strategy_.streams || own == order_.size()) return;
  int64_t room = strategy_.state_bytes;
  for (size_t k = 0; k <= own; ++k) room -= pieces_[order_[k]].state;
  const Range before = pieces_of(strategy_.backward_packs.front());
  for (size_t k = before.first; k <= before.last; ++k)
    room -= pieces_[k].state + pieces_[k].weights;
  if (room >= 0)
    std::rotate(order_.begin(), order_.begin() + static_cast<std::ptrdiff_t>(own),
                order_.begin() + static_cast<std::ptrdiff_t>(own) + 1);
}

bool PackProgram::load(int32_t team, size_t task, Range range, bool backward) {
  TeamState& state = states_[static_cast<size_t>(team)];
  space_.clear();
  if (state.gate.valid()) space_.push_back(std::exchange(state.gate, {}));
  for (size_t k = range.first; k <= range.last; ++k) {
    Piece& piece = pieces_[k];
    piece.cached = piece.cached && backward && piece.team == team &&
                   (strategy_.streams || piece.loaded_by == state.last_task);
    if (piece.cached) entries_[piece.entry].released = {};
  }
  order_loads(task, range);
  for (size_t k : order_) {
    Piece& piece = pieces_[k];
    const int64_t gradient = backward ? piece.weights : 0;
    const int64_t bytes = gradient + (piece.cached ? 0 : piece.state);
    if (!make_room(state, bytes)) return false;
    state.held += bytes;
    if (gradient > 0)
      piece.gradient = buffer(teams_.memory(team), BufferKind::WeightGradient, gradient,
                              label(PackData::Gradients, piece));
    if (piece.cached) {
      entries_[piece.entry].bytes += bytes;
      space_.insert(space_.end(), waited_for().begin(), waited_for().end());
      wait_for_none();
      continue;
    }
    piece.entry = entries_.size();
    piece.team = team;
    piece.loaded_by = static_cast<int64_t>(task);
    piece.cached = !backward;
    piece.ready = {};
    entries_.push_back({k, bytes, {}});
    state.window.push_back(piece.entry);
    if (piece.state == 0) {
      wait_for_none();
      continue;
    }
    bring(team, piece, backward);
  }
  return true;
}

void PackProgram::wait_for_weights(Range pieces) {
  for (TaskId task : space_) after(task);
  space_.clear();
  for (size_t k = pieces.first; k <= pieces.last; ++k) after(pieces_[k].ready);
}

void PackProgram::keep_stash(size_t pack, size_t part, const Flow& flow, int32_t team) {
  Stash& stash = stashes_[pack];
  stash.team = team;
  stash.device[part] = flow;
  if (!on_host(pack)) return;
  const int32_t first = strategy_.backward_packs[pack].first;
  stash.host[part] = to_host(flow, team, chain_.input(first, forward_sizes_[part]),
                             forward_label(PackData::Input, {first, first}, part));
}

// Runs some pieces over a micro-batch. Inputs of backward packs that begin in them are stashed.
PackProgram::Flow PackProgram::compute_forward(size_t part, Range range, bool whole, Flow input,
                                               int32_t team) {
  const int64_t size = forward_sizes_[part];
  const bool first = part == 0, last = part + 1 == forward_sizes_.size();
  const Pack layers{pieces_[range.first].layers.first, pieces_[range.last].layers.last};
  inner_.clear();
  kept_.clear();
  for (size_t p = pack_of_[static_cast<size_t>(layers.first)];
       p <= pack_of_[static_cast<size_t>(layers.last)]; ++p) {
    const Pack pack = strategy_.backward_packs[p];
    if (pack.first == layers.first) keep_stash(p, part, input, team);
    if (pack.first > layers.first)
      inner_.push_back(
          {p,
           {{},
            buffer(teams_.memory(team), BufferKind::Activation, chain_.input(pack.first, size),
                   forward_label(PackData::Input, {pack.first, pack.first}, part))}});
    if (strategy_.actions[p] != PackAction::Recompute) kept_.push_back(p);
  }
  for (size_t p : kept_) {
    Flow& activations = stashes_[p].activations[part];
    if (!activations.buffer.valid())
      activations.buffer =
          buffer(teams_.memory(team), BufferKind::Activation,
                 activation_bytes(strategy_.backward_packs[p], size),
                 forward_label(PackData::Saved, strategy_.backward_packs[p], part));
    uses(activations.buffer, true);
  }
  after(input.made);
  uses(input.buffer);
  if (first) wait_for_weights(range);
  if (first || last || !whole)
    for (size_t k = range.first; k <= range.last; ++k) uses(pieces_[k].buffer);
  Flow output;
  const int32_t next = layers.last + 1;
  output.buffer = buffer(teams_.memory(team), BufferKind::Activation, chain_.input(next, size),
                         forward_label(PackData::Input, {next, next}, part));
  uses(output.buffer, true);
  for (const auto& [p, flow] : inner_) uses(flow.buffer, true);
  output.made = emit(TaskKind::Forward, teams_.compute(team), computing(true, layers, size),
                     forward_label(PackData::Input, layers, part), working_set(true, layers, size));
  for (auto& [p, flow] : inner_) keep_stash(p, part, {output.made, flow.buffer}, team);
  for (size_t p : kept_) {
    Flow& activations = stashes_[p].activations[part];
    activations.made = output.made;
    if (strategy_.actions[p] == PackAction::Offload &&
        strategy_.backward_packs[p].last <= layers.last)
      activations = to_host(activations, team, activation_bytes(strategy_.backward_packs[p], size),
                            forward_label(PackData::Saved, strategy_.backward_packs[p], part));
  }
  if (last)
    for (size_t k = range.first; k <= range.last; ++k)
      entries_[pieces_[k].entry].released = output.made;
  return output;
}

void PackProgram::end_task(TeamState& state, int64_t forward_task) {
  const size_t count = computed_.size();
  state.room = count > 1 ? computed_[count - 2] : state.last_compute;
  state.last_compute = computed_.back();
  state.last_task = forward_task;
}

bool PackProgram::forward_task(size_t task) {
  const Pack pack = strategy_.forward_packs[task];
  const int32_t team = team_of(task);
  TeamState& state = states_[static_cast<size_t>(team)];
  const Range range = pieces_of(pack);
  if (!load(team, task, range, false)) return false;
  const size_t count = forward_sizes_.size();
  computed_.assign(count, {});
  made_.assign(count, {});
  for (size_t i = 0; i < count; ++i) {
    const int64_t size = forward_sizes_[i];
    const TaskId room = i >= 2 ? computed_[i - 2] : i == 1 ? state.last_compute : state.room;
    const PackLabel what = forward_label(PackData::Input, {pack.first, pack.first}, i);
    const int64_t bytes = chain_.input(pack.first, size);
    Flow flow = task == 0 ? from_host({}, team, bytes, what, room)
                          : receive(task, outputs_[i], bytes, what, room);
    const bool by_piece = strategy_.streams && (i == 0 || i + 1 == count);
    if (by_piece)
      for (size_t k = range.first; k <= range.last; k = group_at(k).last + 1)
        flow = compute_forward(i, group_at(k), false, flow, team);
    else
      flow = compute_forward(i, range, true, flow, team);
    computed_[i] = flow.made;
    made_[i] = flow;
  }
  outputs_.swap(made_);
  received_.clear();
  end_task(state, static_cast<int64_t>(task));
  return true;
}

// What a micro-batch of a backward pack is recomputed from.
void PackProgram::find_inputs(size_t pack, size_t part, size_t task, TaskId room) {
  const int64_t size = backward_sizes_[part];
  const int32_t first = strategy_.backward_packs[pack].first;
  const int32_t team = team_of(task);
  const PackLabel what = backward_label(PackData::Input, {first, first}, part);
  inputs_.clear();
  if (task == 0) {
    inputs_.push_back(from_host({}, team, chain_.input(first, size), what, room));
    return;
  }
  const Range from = sources(part);
  if (pack + 1 == strategy_.backward_packs.size()) {
    received_.resize(forward_sizes_.size());
    for (size_t i = from.first; i <= from.last; ++i) {
      if (!received_[i].buffer.valid())
        received_[i] = receive(task, outputs_[i], chain_.input(first, forward_sizes_[i]),
                               forward_label(PackData::Input, {first, first}, i), room);
      inputs_.push_back(received_[i]);
    }
    return;
  }
  const Stash& stash = stashes_[pack];
  const bool waits_on_host = on_host(pack);
  const std::span flows = std::span(waits_on_host ? stash.host : stash.device)
                              .subspan(from.first, from.last - from.first + 1);
  if (waits_on_host)
    inputs_.push_back(from_host(flows, team, chain_.input(first, size), what, room));
  else
    inputs_.assign(flows.begin(), flows.end());
}

bool PackProgram::backward_task(size_t task) {
  const size_t place = task_count() - 1 - task;
  const Pack pack = strategy_.backward_packs[place];
  const bool loss = place + 1 == strategy_.backward_packs.size();
  const int32_t team = team_of(task);
  TeamState& state = states_[static_cast<size_t>(team)];
  const Range range = pieces_of(pack);
  if (!load(team, task, range, true)) return false;
  const size_t count = backward_sizes_.size();
  computed_.assign(count, {});
  made_.assign(count, {});
  const PackAction action = loss ? PackAction::Recompute : strategy_.actions[place];
  for (size_t j = 0; j < count; ++j) {
    const int64_t size = backward_sizes_[j];
    const bool first = j == 0, last = j + 1 == count;
    const TaskId room = j >= 2 ? computed_[j - 2] : j == 1 ? state.last_compute : state.room;
    find_inputs(place, j, task, room);
    Flow gradient;
    if (!loss)
      gradient =
          receive(task, outputs_[j], chain_.input(pack.last + 1, size),
                  backward_label(PackData::Backward, {pack.last + 1, pack.last + 1}, j), room);
    const auto use_inputs = [&] {
      for (const Flow& flow : inputs_) {
        after(flow.made);
        uses(flow.buffer);
      }
    };

    Flow activations;
    if (action == PackAction::Recompute) {
      activations.buffer =
          buffer(teams_.memory(team), BufferKind::Transient, activation_bytes(pack, size),
                 backward_label(PackData::Saved, pack, j));
      const auto recompute = [&](Range pieces) {
        use_inputs();
        if (first) wait_for_weights(pieces);
        uses(activations.buffer, true);
        if (first)
          for (size_t k = pieces.first; k <= pieces.last; ++k) uses(pieces_[k].buffer);
        const Pack layers{pieces_[pieces.first].layers.first, pieces_[pieces.last].layers.last};
        activations.made =
            emit(loss ? TaskKind::Forward : TaskKind::Recompute, teams_.compute(team),
                 computing(true, layers, size), backward_label(PackData::Saved, layers, j));
      };
      if (first && strategy_.streams)
        for (size_t k = range.first; k <= range.last; k = group_at(k).last + 1)
          recompute(group_at(k));
      else
        recompute(range);
    } else {
      activations = stashes_[place].activations[j];
      if (action == PackAction::Offload)
        activations = from_host(std::span(&activations, 1), team, activation_bytes(pack, size),
                                backward_label(PackData::Saved, pack, j), room);
    }

    Flow output;
    const auto backward = [&](Range pieces) {
      use_inputs();
      after(gradient.made);
      after(activations.made);
      uses(gradient.buffer);
      uses(activations.buffer);
      if (first && action != PackAction::Recompute) wait_for_weights(range);
      if (first || last)
        for (size_t k = pieces.first; k <= pieces.last; ++k) {
          uses(pieces_[k].buffer);
          uses(pieces_[k].gradient, true);
        }
      const Pack layers{pieces_[pieces.first].layers.first, pieces_[pieces.last].layers.last};
      if (layers.first == pack.first && pack.first > 0) {
        output.buffer =
            buffer(teams_.memory(team), BufferKind::Transient, chain_.input(pack.first, size),
                   backward_label(PackData::Backward, {pack.first, pack.first}, j));
        uses(output.buffer, true);
      }
      output.made = emit(TaskKind::Backward, teams_.compute(team), computing(false, layers, size),
                         backward_label(PackData::Backward, layers, j));
      if (!last) return;
      // The last layer first; parts of one in the order in which the next step reads them.
      for (size_t k = pieces.last + 1; k > pieces.first; k = group_at(k - 1).first)
        for (size_t part = group_at(k - 1).first; part < k; ++part)
          finish_piece(team, pieces_[part], output.made);
    };
    if (last && strategy_.streams)
      for (size_t k = range.last + 1; k > range.first; k = group_at(k - 1).first)
        backward(group_at(k - 1));
    else
      backward(range);
    computed_[j] = output.made;
    made_[j] = output;
  }
  outputs_.swap(made_);
  if (loss) loss_ = computed_.back();
  end_task(state, -1);
  return true;
}

}  // namespace windlass
