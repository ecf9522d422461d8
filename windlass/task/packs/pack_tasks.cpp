// The program of a step in the order of Harmony's tasks. Weights, stashes, gradients and peer
// transfers have lanes of their own, so that each runs ahead as far as its data and the window for
// weights allow; nothing else orders them. O(pieces + tasks x micro-batches) tasks a step.
#include "windlass/task/packs/pack_tasks.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/task/packs/pack_program.h"

namespace windlass {

Nanoseconds whole_nanoseconds(double seconds) {
  return std::max<Nanoseconds>(1, static_cast<Nanoseconds>(std::llround(seconds * 1e9)));
}

std::string layers_text(Pack layers) {
  return layers.first == layers.last ? fmt::format("layer {}", layers.first)
                                     : fmt::format("layers {}-{}", layers.first, layers.last);
}

std::string small_window_text(const PackStrategy& strategy) {
  return fmt::format("a window of {} bytes for weights and gradients is too small for a pack",
                     strategy.state_bytes);
}

PackLowering::~PackLowering() = default;

const PackSteps* PackLowering::lower(const PackStrategy& strategy, int64_t minibatch, int32_t steps,
                                     bool labels) {
  const auto [entry, fresh] = teams_.try_emplace({strategy.replicas, strategy.depth}, machine_,
                                                 strategy.replicas, strategy.depth);
  PackTeams& teams = entry->second;
  teams.graph().clear_tasks();
  times_.duration.clear();
  times_.workspace.clear();
  result_.begin.clear();
  result_.tasks.clear();
  result_.buffers.clear();
  labels_ = labels;
  PackProgram program(*this, teams, strategy, minibatch);
  for (int32_t step = 0; step < steps; ++step) {
    result_.begin.push_back(teams.graph().size());
    if (!program.add_step()) return nullptr;
  }
  result_.begin.push_back(teams.graph().size());
  result_.graph = &teams.graph();
  result_.times = &times_;
  result_.volume = program.volume();
  set_marks(teams.compute(0));
  return &result_;
}

// Some of what the first team computes, more or less evenly spaced.
void PackLowering::set_marks(LaneId compute) {
  constexpr size_t kSpace = 128, kLeast = 8, kMost = 64;
  result_.repetition = {};
  if (result_.begin.size() < 3) return;
  const size_t tasks = result_.begin[1];
  marks_.clear();
  for (size_t i = 0; i < tasks; ++i)
    if (result_.graph->task_lanes[i] == compute) marks_.emplace_back(i);
  const size_t count = std::min(marks_.size(), std::clamp(tasks / kSpace, kLeast, kMost));
  for (size_t i = 0; i < count; ++i) marks_[i] = marks_[i * marks_.size() / count];
  marks_.resize(count);
  result_.repetition = {tasks, marks_};
}

PackProgram::PackProgram(PackLowering& lowering, PackTeams& teams, const PackStrategy& strategy,
                         int64_t minibatch, PackSink* sink)
    : lowering_(lowering),
      teams_(teams),
      graph_(teams.graph()),
      chain_(lowering.chain_),
      strategy_(strategy),
      sink_(sink) {
  samples_ = (minibatch + strategy.replicas - 1) / strategy.replicas;
  for (auto [sizes, size] : {std::pair(&forward_sizes_, strategy.forward_microbatch),
                             std::pair(&backward_sizes_, strategy.backward_microbatch)})
    for (int64_t left = samples_; left > 0; left -= size) sizes->push_back(std::min(left, size));
  cut_pieces();
  states_.resize(static_cast<size_t>(strategy.depth));
  if (sink_ != nullptr) return;
  // One host copy of weights, gradients and optimizer state; of tied weights too. Their gradients
  // are added up on the host, in places of layers that have been updated already.
  const LayerProfile& profile = chain_.profile();
  int64_t optimizer = 0;
  for (int64_t bytes : profile.optimizer) optimizer += bytes;
  const Pack all{0, chain_.layers() - 1};
  for (auto [kind, what, bytes] :
       {std::tuple(BufferKind::Weight, PackData::Weights, chain_.state_bytes(all) - profile.tied),
        std::tuple(BufferKind::WeightGradient, PackData::Gradients,
                   chain_.weight_bytes(all) - profile.tied),
        std::tuple(BufferKind::OptimizerState, PackData::Optimizer, optimizer)}) {
    const BufferId id = buffer(teams.host_memory(), kind, bytes, {what, all, 0, 0, 0, 1});
    graph_.buffers[id.index()].at_start = graph_.buffers[id.index()].at_end = true;
  }
}

void PackProgram::cut_pieces() {
  std::vector<uint8_t> cuts(static_cast<size_t>(chain_.layers()), 0);
  for (const auto* packs : {&strategy_.forward_packs, &strategy_.backward_packs})
    for (Pack pack : *packs) cuts[static_cast<size_t>(pack.first)] = 1;
  const LayerProfile& profile = chain_.profile();
  for (size_t p = 0; p < strategy_.backward_packs.size(); ++p)
    for (int32_t l = strategy_.backward_packs[p].first; l <= strategy_.backward_packs[p].last; ++l)
      pack_of_.push_back(p);
  std::vector<Piece> pieces;
  for (int32_t l = 0; l < chain_.layers(); ++l) {
    if (l == 0 || cuts[static_cast<size_t>(l)] || pieces.back().state >= strategy_.piece_bytes) {
      pieces.emplace_back();
      pieces.back().layers = {l, l};
    }
    Piece& piece = pieces.back();
    const auto at = static_cast<size_t>(l);
    piece.layers.last = l;
    piece.state += profile.weights[at] + profile.buffers[at];
    piece.weights += profile.weights[at];
    piece.optimizer += profile.optimizer[at];
    piece.update += profile.host_update[at];
    piece.on_device = strategy_.device_update[pack_of_[at]] != 0;
  }
  for (const Piece& piece : pieces) cut_large(piece);
}

// Reducing, moving, updating and gathering of the parts of a large layer overlap. Most of all at
// the first layer: the next step waits for its update.
void PackProgram::cut_large(const Piece& piece) {
  const bool waited_for = pieces_.empty();
  const int64_t large = waited_for ? 1 : 4, most = 12;
  int64_t parts = 1;
  if (strategy_.streams && piece.layers.first == piece.layers.last &&
      piece.weights / large >= strategy_.piece_bytes)
    parts = std::min(most, (waited_for ? 4 : 2) * (piece.weights / strategy_.piece_bytes));
  std::vector<PackSink::Part> cuts;
  if (sink_ != nullptr && parts > 1) {
    cuts = sink_->cut(piece.layers.first, parts);
    parts = static_cast<int64_t>(cuts.size());
  }
  const size_t first = pieces_.size();
  for (int64_t i = 0; i < parts; ++i) {
    const auto cut = [&](int64_t bytes) { return bytes * (i + 1) / parts - bytes * i / parts; };
    Piece& part = pieces_.emplace_back(piece);
    part.part = static_cast<int32_t>(i);
    part.parts = static_cast<int32_t>(parts);
    part.weights = cut(piece.weights);
    part.state = part.weights + cut(piece.state - piece.weights);
    part.optimizer = cut(piece.optimizer);
    if (!cuts.empty()) {
      const PackSink::Part& made = cuts[static_cast<size_t>(i)];
      part.state = made.state;
      part.weights = made.weights;
      part.optimizer = made.optimizer;
    }
    part.update = piece.update / static_cast<double>(parts);
    group_of_.push_back(groups_.size());
  }
  groups_.push_back({first, pieces_.size() - 1});
  of_layer_.resize(static_cast<size_t>(piece.layers.last) + 1, groups_.back());
}

PackProgram::Range PackProgram::pieces_of(Pack pack) const {
  return {of_layer_[static_cast<size_t>(pack.first)].first,
          of_layer_[static_cast<size_t>(pack.last)].last};
}

// Of a forward pass: beside weights and input, outputs included. Of a backward pass: beside
// weights, gradients of weights and input.
int64_t PackProgram::working_set(bool forward, Pack layers, int64_t size) {
  PackLowering::Known& last = lowering_.last_set_[forward];
  if (last.layers == layers && last.size == size) return last.value;
  std::vector<int64_t>& sets = lowering_.working_sets_[{forward, size}];
  if (sets.empty()) {
    const LayerProfile& profile = chain_.profile();
    const PassCosts costs = forward ? profile.forward.at(size) : profile.backward.at(size);
    for (size_t l = 0; l < profile.layers(); ++l) {
      const int64_t state = profile.weights[l] * (forward ? 1 : 2) + profile.buffers[l] +
                            profile.input_bytes(l, size);
      sets.push_back(std::max<int64_t>(0, costs.peak[l] - state));
    }
  }
  int64_t result = 0;
  for (int32_t l = layers.first; l <= layers.last; ++l)
    result = forward ? std::max(result, sets[static_cast<size_t>(l)])
                     : result + sets[static_cast<size_t>(l)];
  last = {layers, size, result};
  return result;
}

Nanoseconds PackProgram::computing(bool forward, Pack layers, int64_t size) {
  PackLowering::Known& last = lowering_.last_time_[forward];
  if (last.layers == layers && last.size == size) return last.value;
  const double again = ChainTables::seconds(chain_.forward(size), layers);
  last = {layers, size,
          whole_nanoseconds(forward ? again
                                    : ChainTables::seconds(chain_.backward(size), layers) - again)};
  return last.value;
}

int64_t PackProgram::activation_bytes(Pack pack, int64_t size) {
  return working_set(false, pack, size);
}

bool PackProgram::on_host(size_t pack) const {
  if (!strategy_.streams || strategy_.stash_on_host[pack]) return true;
  return stashes_[pack].team != team_of(task_count() - 1 - pack);
}

PackProgram::Range PackProgram::sources(size_t backward) const {
  const int64_t begin = static_cast<int64_t>(backward) * strategy_.backward_microbatch;
  const int64_t end = begin + backward_sizes_[backward];
  return {static_cast<size_t>(begin / strategy_.forward_microbatch),
          static_cast<size_t>((end - 1) / strategy_.forward_microbatch)};
}

TaskId PackProgram::move(TaskKind kind, LaneId lane, PackMove how, int32_t team, int64_t bytes,
                         const PackLabel& what) {
  if (sink_ != nullptr) return sink_->move(kind, lane, how, what);
  const int32_t price = teams_.traffic(how, team, bytes);
  const int64_t all = bytes * strategy_.replicas;
  switch (how) {
    case PackMove::In:
    case PackMove::Out:
    case PackMove::FirstOut: break;
    case PackMove::Gather:
    case PackMove::Scatter: volume_.peers += all - bytes; break;
    case PackMove::Reduce: volume_.peers += 2 * (all - bytes); break;
    case PackMove::Next: volume_.peers += all; break;
  }
  const TaskId id = emit(kind, lane, teams_.latency(how, team), what);
  graph_.tasks.back().price = price;
  return id;
}

bool PackProgram::add_step() {
  volume_ = {};
  for (Piece& piece : pieces_) piece.share = {};
  for (TeamState& state : states_) state.gate = loss_;
  stashes_.assign(strategy_.backward_packs.size(), {});
  for (Stash& stash : stashes_) {
    stash.device.resize(forward_sizes_.size());
    stash.host.resize(forward_sizes_.size());
    stash.activations.resize(forward_sizes_.size());
  }
  const size_t forward = strategy_.forward_packs.size();
  for (size_t task = 0; task < task_count(); ++task) {
    if (sink_ != nullptr)
      sink_->begin_pack(task < forward ? strategy_.forward_packs[task]
                                       : strategy_.backward_packs[task_count() - 1 - task],
                        task >= forward);
    if (!(task < forward ? forward_task(task) : backward_task(task))) return false;
  }
  return true;
}

}  // namespace windlass
