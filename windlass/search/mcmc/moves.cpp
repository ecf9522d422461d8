#include "windlass/search/mcmc/moves.h"

#include <algorithm>
#include <map>

#include "windlass/base/hash.h"
#include "windlass/graph/blocks.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/search/exact/sharding/sharding_options.h"

namespace windlass {
namespace {

size_t draw_index(size_t size, Rng& rng) {
  return static_cast<size_t>(rng.integer(0, static_cast<int64_t>(size) - 1));
}
template <typename T>
const T& draw_of(const std::vector<T>& list, Rng& rng) {
  return list[draw_index(list.size(), rng)];
}

}  // namespace

Moves::Moves(const TrainingGraph& training, const Machine& machine, const MoveMix& mix)
    : training_(training), facts_(training), mix_(mix) {
  most_group_ = machine.devices.size();
  const size_t ops = training.forward_ops;
  Graph forward = training.graph;
  forward.ops.resize(ops);
  hints_ = block_hints(training.graph, ops);
  cuts_ = {0};
  for (size_t cut : cut_points(forward))
    if (cut + 1 < ops) cuts_.push_back(cut + 1);
  cuts_.push_back(ops);
  std::map<uint64_t, int32_t> kinds;
  edges_of_.resize(ops);
  for (size_t i = 0; i < ops; ++i) {
    nests_.push_back(loops_of(training.graph, training.graph.ops[i]));
    const auto next = static_cast<int32_t>(kinds.size());
    const int32_t kind = kinds.emplace(structure_hash(forward, i, i + 1), next).first->second;
    kind_of_.push_back(kind);
    alike_.resize(kinds.size());
    alike_[static_cast<size_t>(kind)].push_back(i);
    const Op& op = training.graph.ops[i];
    for (size_t k = 0; k < op.inputs.size(); ++k) {
      if (!op.inputs[k].valid() || !training.graph[op.inputs[k]].producer.valid()) continue;
      const OpId from = training.graph[op.inputs[k]].producer;
      const auto& outputs = training.graph[from].outputs;
      const auto output = std::ranges::find(outputs, op.inputs[k]) - outputs.begin();
      if (static_cast<size_t>(output) == outputs.size()) continue;
      edges_of_[i].push_back(edges_.size());
      edges_of_[from.index()].push_back(edges_.size());
      edges_.push_back({from.index(), i, static_cast<size_t>(output), k, op.inputs[k]});
    }
  }
  // What an op of one kind makes, by its place, is alike in all blocks.
  std::map<std::pair<int32_t, size_t>, std::vector<size_t>> groups;
  std::vector<std::pair<int32_t, size_t>> group_of;
  for (size_t s = 0; s < training.saved.size(); ++s) {
    const OpId producer = training.saved[s].producer;
    if (!producer.valid()) continue;
    const Op& op = training.graph[producer];
    size_t place = 0;
    for (const auto* list : {&op.outputs, &op.auxiliaries})
      for (TensorId id : *list) {
        if (id == training.saved[s].tensor)
          group_of.emplace_back(kind_of_[producer.index()], place);
        ++place;
      }
    if (group_of.size() == tensors_.size()) continue;  // lives in memory that is not the op's own
    tensors_.push_back(s);
    groups[group_of.back()].push_back(s);
  }
  for (const auto& group : group_of) tensors_alike_.push_back(groups[group]);
  actions_ = {MemoryAction::Keep};
  if (mix.recompute) actions_.push_back(MemoryAction::Recompute);
  if (mix.offload) actions_.push_back(MemoryAction::Offload);
  for (const MemoryAction action : compressions(mix.compress)) actions_.push_back(action);
}

int32_t Moves::intern(const Sharding& sharding) {
  const auto [at, added] = index_.emplace(sharding, static_cast<int32_t>(table_.size()));
  if (added) table_.push_back(sharding);
  return at->second;
}

const Moves::Options& Moves::options(size_t group_size) {
  const auto known = options_.find(group_size);
  if (known != options_.end()) return known->second;
  Options& made = options_[group_size];
  const BatchAxes batch = [&] {
    if (!mix_.batch_only) return BatchAxes{};
    Graph forward = training_.graph;
    forward.ops.resize(training_.forward_ops);
    return find_batch(forward);
  }();
  const Graph& smallest = smallest_of(training_).graph;
  for (size_t i = 0; i < training_.forward_ops; ++i) {
    std::vector<int32_t>& list = made.emplace_back();
    for (const Sharding& sharding : shardings_of(loops_of(smallest, smallest.ops[i]), hints_[i],
                                                 static_cast<int64_t>(group_size))) {
      if (mix_.batch_only) {
        const OpKind kind = training_.graph.ops[i].kind;
        const bool dense = kind == OpKind::Linear || kind == OpKind::MatMul;
        const bool allowed = std::ranges::all_of(sharding.splits, [&](const Split& split) {
          if (split.loop < 0 || split.loop == batch.loop[i]) return true;
          return dense &&
                 nests_[i].loops[static_cast<size_t>(split.loop)].role != LoopRole::Reduced;
        });
        if (!allowed) continue;
      }
      list.push_back(intern(sharding));
    }
  }
  return made;
}

void Moves::adopt(Strategy& strategy) {
  for (const auto& group : strategy.groups) options(group.size());
  std::vector<int32_t> ids;
  for (const Sharding& sharding : strategy.shardings) ids.push_back(intern(sharding));
  for (int32_t& op : strategy.ops) op = ids[static_cast<size_t>(op)];
  strategy.shardings = table_;
}

size_t Moves::group_size(const Strategy& strategy, size_t op) const {
  if (strategy.stages.size() == 1) return strategy.groups[0].size();
  for (const Stage& stage : strategy.stages)
    if (op < stage.last) return strategy.groups[static_cast<size_t>(stage.group)].size();
  return 1;
}

bool Moves::propose(Strategy& strategy, Rng& rng, Proposal& proposal) {
  proposal.changes.clear();
  proposal.stages.clear();
  struct Kind {
    double share;
    bool (Moves::*make)(Strategy&, Rng&, Proposal&);
  };
  const bool splits = most_group_ > 1;
  const Kind kinds[] = {
      {splits ? mix_.one_op : 0, &Moves::change_op},
      {splits ? mix_.ops_alike : 0, &Moves::change_ops_alike},
      {splits ? mix_.propagation : 0, &Moves::propagate},
      {tensors_.empty() ? 0 : mix_.one_tensor, &Moves::change_tensor},
      {tensors_.empty() ? 0 : mix_.tensors_alike, &Moves::change_tensors_alike},
      {tensors_.empty() ? 0 : mix_.exchange, &Moves::exchange},
      {mix_.weights, &Moves::change_weights},
      {strategy.stages.size() > 1 ? mix_.border : 0, &Moves::move_border},
      {mix_.pace, &Moves::change_pace},
  };
  double sum = 0;
  for (const Kind& kind : kinds) sum += kind.share;
  double draw = rng.uniform() * sum;
  for (const Kind& kind : kinds) {
    draw -= kind.share;
    if (draw < 0) return (this->*kind.make)(strategy, rng, proposal);
  }
  return false;
}

bool Moves::change_op(Strategy& strategy, Rng& rng, Proposal& proposal) {
  const auto op = draw_index(strategy.ops.size(), rng);
  const auto& list = options(group_size(strategy, op))[op];
  if (list.size() < 2) return false;
  return set_sharding(strategy, op, draw_of(list, rng), proposal);
}

std::pair<size_t, size_t> Moves::draw_blocks(Rng& rng) const {
  const auto blocks = static_cast<int64_t>(cuts_.size()) - 1;
  if (rng.chance(0.5)) return {0, cuts_.back()};
  int64_t a = rng.integer(0, blocks), b = rng.integer(0, blocks);
  if (a > b) std::swap(a, b);
  return {cuts_[static_cast<size_t>(a)], cuts_[static_cast<size_t>(std::max(b, a))]};
}

bool Moves::change_ops_alike(Strategy& strategy, Rng& rng, Proposal& proposal) {
  const auto op = draw_index(strategy.ops.size(), rng);
  const size_t size = group_size(strategy, op);
  const auto& list = options(size)[op];
  if (list.size() < 2) return false;
  const int32_t option = draw_of(list, rng);
  const auto [first, last] = draw_blocks(rng);
  bool changed = false;
  for (size_t other : alike_[static_cast<size_t>(kind_of_[op])])
    if (first <= other && other < last && group_size(strategy, other) == size)
      changed |= set_sharding(strategy, other, option, proposal);
  return changed;
}

// Shardings of the op at the other end of an edge under which the tensor lies as the op at this end
// leaves or wants it.
const std::vector<int32_t>& Moves::matching(size_t e, bool forward, int32_t sharding, size_t size) {
  const uint64_t key = Hasher()
                           .add(static_cast<uint64_t>(e))
                           .add(forward)
                           .add(sharding)
                           .add(static_cast<uint64_t>(size))
                           .result();
  const auto known = matching_.find(key);
  if (known != matching_.end()) return known->second;
  const Layout here = layout_at(edges_[e], forward, sharding);
  const auto& there = layouts_at(e, !forward, size);
  const auto& ids = options(size)[forward ? edges_[e].to : edges_[e].from];
  std::vector<int32_t>& list = matching_[key];
  for (size_t i = 0; i < ids.size(); ++i)
    if (there[i] == here) list.push_back(ids[i]);
  return list;
}

Layout Moves::layout_at(const Edge& edge, bool producer, int32_t sharding) const {
  const Shape& shape = training_.graph[edge.tensor].type.shape;
  const Sharding& chosen = table_[static_cast<size_t>(sharding)];
  if (producer)
    return settled(layout_of(nests_[edge.from], chosen, nests_[edge.from].outputs[edge.output],
                             shape, Access::Result));
  return layout_of(nests_[edge.to], chosen, nests_[edge.to].inputs[edge.input], shape,
                   Access::Read);
}

const std::vector<Layout>& Moves::layouts_at(size_t e, bool producer, size_t size) {
  auto& known = edge_layouts_[size];
  known.resize(2 * edges_.size());
  std::vector<Layout>& list = known[2 * e + (producer ? 1 : 0)];
  const Edge& edge = edges_[e];
  const auto& ids = options(size)[producer ? edge.from : edge.to];
  if (list.size() < ids.size())
    for (int32_t id : ids) list.push_back(layout_at(edge, producer, id));
  return list;
}

bool Moves::propagate(Strategy& strategy, Rng& rng, Proposal& proposal) {
  constexpr double kGoesOn = 0.8;
  constexpr int kMostSteps = 40;
  auto op = draw_index(strategy.ops.size(), rng);
  const size_t size = group_size(strategy, op);
  const auto& list = options(size)[op];
  bool changed = false;
  // Half of the time with a new sharding, else with the one it has.
  if (rng.chance(0.5) && !list.empty())
    changed = set_sharding(strategy, op, draw_of(list, rng), proposal);
  for (int step = 0; step < kMostSteps && rng.chance(kGoesOn); ++step) {
    if (edges_of_[op].empty()) break;
    const size_t e = draw_of(edges_of_[op], rng);
    const bool forward = edges_[e].from == op;
    const size_t other = forward ? edges_[e].to : edges_[e].from;
    if (group_size(strategy, other) != size) break;
    // Mostly so that nothing moves on the edge; now and then anyhow, since two ops may only pay
    // together.
    constexpr double kAnyhow = 0.25;
    const auto& fits =
        rng.chance(kAnyhow) ? options(size)[other] : matching(e, forward, strategy.ops[op], size);
    if (fits.empty()) break;
    changed |= set_sharding(strategy, other, draw_of(fits, rng), proposal);
    op = other;
  }
  return changed;
}

MemoryAction Moves::draw_action(size_t s, Rng& rng) const {
  // Gathering again is the same as keeping for most tensors: drawn seldom.
  constexpr double kGatherAgain = 0.1;
  if (mix_.regather && rng.chance(kGatherAgain)) return MemoryAction::Regather;
  const MemoryAction drawn = draw_of(actions_, rng);
  const bool floats = is_float(training_.graph[training_.saved[s].tensor].type.dtype);
  return compressed_bits(drawn) > 0 && !floats ? MemoryAction::Keep : drawn;
}

bool Moves::change_tensor(Strategy& strategy, Rng& rng, Proposal& proposal) {
  const size_t s = draw_of(tensors_, rng);
  return set_saved(strategy, s, draw_action(s, rng), proposal);
}

bool Moves::change_tensors_alike(Strategy& strategy, Rng& rng, Proposal& proposal) {
  const auto [first, last] = draw_blocks(rng);
  const auto inside = [first = first, last = last, this](size_t s) {
    const size_t op = training_.saved[s].producer.index();
    return first <= op && op < last;
  };
  const auto at = draw_index(tensors_.size(), rng);
  const MemoryAction action = draw_action(tensors_[at], rng);
  bool changed = false;
  // Counterparts in other blocks, or everything in a run of blocks.
  const auto& list = rng.chance(0.7) ? tensors_alike_[at] : tensors_;
  for (size_t s : list)
    if (inside(s) && (compressed_bits(action) == 0 ||
                      is_float(training_.graph[training_.saved[s].tensor].type.dtype)))
      changed |= set_saved(strategy, s, action, proposal);
  return changed;
}

bool Moves::exchange(Strategy& strategy, Rng& rng, Proposal& proposal) {
  const auto draw = [&] { return draw_of(tensors_, rng); };
  const size_t a = draw(), b = draw();
  const MemoryAction action_a = strategy.saved[a], action_b = strategy.saved[b];
  if (action_a == action_b) return false;
  // Masks and indices cannot be compressed.
  const auto possible = [&](size_t s, MemoryAction action) {
    return compressed_bits(action) == 0 ||
           is_float(training_.graph[training_.saved[s].tensor].type.dtype);
  };
  if (!possible(a, action_b) || !possible(b, action_a)) return false;
  set_saved(strategy, a, action_b, proposal);
  set_saved(strategy, b, action_a, proposal);
  return true;
}

bool Moves::change_weights(Strategy& strategy, Rng& rng, Proposal& proposal) {
  if (strategy.weights.empty()) return false;
  // Decisions that are not open stay as they are.
  const auto zero = static_cast<uint8_t>(rng.integer(0, 3));
  const bool host = rng.chance(0.2), host_update = rng.chance(0.2);
  const auto drawn = [&](Residency residency) {
    if (mix_.zero) residency.zero = zero;
    if (mix_.host_weights) residency.host = host;
    if (mix_.host_update) residency.host_update = host_update;
    // Weights that rest on the host and are updated on the devices are not shared out.
    if (mix_.zero && residency.host && !residency.host_update && residency.zero < 3)
      residency.zero = 0;
    return residency;
  };
  if (rng.chance(0.5)) {
    const auto u = draw_index(strategy.weights.size(), rng);
    return set_weight(strategy, u, drawn(strategy.weights[u]), proposal);
  }
  const auto [first, last] = draw_blocks(rng);
  bool changed = false;
  for (size_t u = 0; u < strategy.weights.size(); ++u) {
    const size_t op = facts_.first_use[u].first.index();
    if (first <= op && op < last)
      changed |= set_weight(strategy, u, drawn(strategy.weights[u]), proposal);
  }
  return changed;
}

bool Moves::move_border(Strategy& strategy, Rng& rng, Proposal& proposal) {
  const auto border =
      static_cast<size_t>(rng.integer(1, static_cast<int64_t>(strategy.stages.size()) - 1));
  const size_t now = strategy.stages[border].first;
  const auto at = std::ranges::lower_bound(cuts_, now) - cuts_.begin();
  const int64_t step = rng.integer(1, 3) * (rng.chance(0.5) ? 1 : -1);
  const int64_t target = at + step;
  if (target <= 0 || target >= static_cast<int64_t>(cuts_.size()) - 1) return false;
  const size_t to = cuts_[static_cast<size_t>(target)];
  if (to <= strategy.stages[border - 1].first || to >= strategy.stages[border].last) return false;
  // Ops that change sides keep their sharding if it is one of the other group's.
  const size_t old_size = group_size(strategy, now), before_size = group_size(strategy, now - 1);
  if (old_size != before_size) return false;
  proposal.stages = strategy.stages;
  strategy.stages[border - 1].last = strategy.stages[border].first = to;
  return true;
}

bool Moves::change_pace(Strategy& strategy, Rng& rng, Proposal& proposal) {
  if (rng.chance(0.5)) {
    const auto prefetch = static_cast<int32_t>(rng.integer(0, 6));
    if (prefetch == strategy.prefetch) return false;
    proposal.changes.push_back({Proposal::What::Prefetch, 0, strategy.prefetch});
    strategy.prefetch = prefetch;
    return true;
  }
  const Bytes bucket(int64_t{1} << rng.integer(18, 29));
  if (bucket == strategy.bucket) return false;
  proposal.changes.push_back({Proposal::What::Bucket, 0, strategy.bucket.value});
  strategy.bucket = bucket;
  return true;
}

}  // namespace windlass
