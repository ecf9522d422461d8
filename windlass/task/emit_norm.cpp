// Clipping: squares of gradients are added up where the gradients lie when they are final, on
// devices or hosts; the few numbers go to every group, and every update reads them.

#include <algorithm>

#include "windlass/task/emitter.h"

namespace windlass {
namespace {

constexpr int64_t kSquaresBytes = 8;

}  // namespace

// Each member has some of the squares.
int32_t Emitter::scattered(int32_t group) {
  const auto members = static_cast<int32_t>(tables_.group(group_id(group)).size());
  return tables_.intern(layout_from({{.kind = Digit::Kind::Partial, .parts = members}}));
}

// Each member has all of them.
int32_t Emitter::everywhere(int32_t group) { return tables_.settled(scattered(group)); }

Emitter::Squares& Emitter::squares_of(int32_t group, bool host) {
  for (Squares& known : squares_)
    if (known.group == group && known.host == host) return known;
  Squares& squares = squares_.emplace_back();
  squares.group = group;
  squares.host = host;
  squares.written.resize(teams(group).teams.size());
  const Content content = {
      .kind = BufferKind::Transient, .tensor = training_.squares, .layout = scattered(group)};
  squares.value = {.group = group, .layout = content.layout};
  squares.value.buffer = host ? host_buffers(group, content, kSquaresBytes, true, false)
                              : buffers(group, content, kSquaresBytes);
  return squares;
}

// Of gradients that are updated with on devices.
void Emitter::add_squares(const ReadyUpdate& ready) {
  const BucketKey& key = ready.key;
  const auto sums = sums_of(ready);
  for (const SumRef& ref : sums) add_extras(ref);
  const int32_t shared = key.zero >= 1 ? key.share : 0;
  Squares& squares = squares_of(key.group, false);
  const bool adds = squares.value.ready.valid();
  const auto& list = teams(key.group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::Compute));
    int64_t total = 0;
    for (const SumRef& ref : sums) {
      const WeightState& state = weight_of(ref);
      const TrainingFacts::Update& facts = update_of(ref.update);
      const int64_t elements = own(state.elements, facts.weight, state.layout, key.group, k);
      total += largest_part(elements, tables_.members(shared)) * facts.gradient_size;
      const Value& sum = sum_of(ref).value;
      compute_after(sum, k);
      read(sum, k, UseKind::Gradient, static_cast<size_t>(ref.update));
    }
    const int32_t work = tables_.work(memory_work(Bytes(total), Bytes(kSquaresBytes)));
    write(squares.value.buffer, k, UseKind::Squares, 0, adds);
    const TaskId task = add({.kind = TaskKind::Norm,
                             .price = work,
                             .tensor = update_of(sums[0].update).gradient,
                             .group = group_id(key.group),
                             .how = shared});
    if (k == 0) squares.value.ready = task;
  }
  squares.value.per_team = squares.value.computed = true;
}

// Of gradients that a team has brought to its hosts.
TaskId Emitter::add_squares_on_host(const BucketKey& key, std::span<const SumRef> sums, size_t k,
                                    const HostPart& part) {
  const TeamId team = teams(key.group).teams[k];
  Squares& squares = squares_of(key.group, true);
  on(teams_->lane(team, LaneKind::Host));
  after(part.left);
  int64_t total = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    read(part.gradients[i], 0, UseKind::Gradient, static_cast<size_t>(sums[i].update));
    total += graph_[part.gradients[i]].bytes.value;
  }
  write(squares.value.buffer, k, UseKind::Squares, 0, squares.written[k].valid());
  return squares.written[k] =
             add({.kind = TaskKind::Norm,
                  .price = tables_.work(memory_work(Bytes(total), Bytes(kSquaresBytes))),
                  .tensor = update_of(sums[0].update).gradient,
                  .group = group_id(key.group),
                  .how = key.zero >= 1 ? key.share : 0});
}

// Everything that was added up goes to every group that updates.
void Emitter::exchange_squares() {
  for (const ReadyUpdate& ready : ready_updates_) add_squares(ready);
  norms_.assign(strategy_->groups.size(), {});
  const TensorId tensor = training_.squares;
  const TensorType& type = training_.graph[tensor].type;
  for (const Squares& source : squares_) {
    Value value = source.host ? from_hosts(source) : source.value;
    const int32_t home = source.group;
    for (const MoveTemplate& move :
         tables_.moves(type, value.layout, group_id(home), everywhere(home), group_id(home)))
      value = carry(tensor, -1, move, move.plain_movement, value, home);
    for (size_t g = 0; g < norms_.size(); ++g) {
      const auto group = static_cast<int32_t>(g);
      if (std::ranges::find(squares_, group, &Squares::group) == squares_.end()) continue;
      Value there = value;
      if (group != home)
        for (const MoveTemplate& move :
             tables_.moves(type, value.layout, group_id(home), everywhere(group), group_id(group)))
          there = carry(tensor, -1, move, move.plain_movement, there, group);
      norms_[g].terms.push_back(there);
    }
  }
  for (const Squares& source : squares_)
    if (source.host) norm_to_hosts(source.group);
}

Emitter::Value Emitter::from_hosts(const Squares& squares) {
  const auto& list = teams(squares.group).teams;
  Value value = squares.value;
  value.buffer =
      buffers(squares.group,
              {.kind = BufferKind::Transient, .tensor = training_.squares, .layout = value.layout},
              kSquaresBytes);
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::SwapIn));
    after(squares.written[k]);
    read(squares.value.buffer, k, UseKind::From);
    write(value.buffer, k, UseKind::To);
    const TaskId task =
        add({.kind = TaskKind::SwapIn,
             .price = tables_.host_copies(group_id(squares.group), teams(squares.group).members[k],
                                          false, Bytes(kSquaresBytes)),
             .tensor = training_.squares,
             .group = group_id(squares.group)});
    if (k == 0) value.ready = task;
  }
  value.per_team = true;
  return value;
}

void Emitter::norm_to_hosts(int32_t group) {
  Norm& norm = norms_[static_cast<size_t>(group)];
  for (const Value& term : norm.terms)
    norm.on_hosts.push_back(host_buffers(
        group, {.kind = BufferKind::Transient, .tensor = training_.squares, .layout = term.layout},
        kSquaresBytes, true, false));
  const auto& list = teams(group).teams;
  for (size_t k = 0; k < list.size(); ++k) {
    on(teams_->lane(list[k], LaneKind::SwapOut));
    for (size_t i = 0; i < norm.terms.size(); ++i) {
      after(norm.terms[i], k);
      read(norm.terms[i], k, UseKind::From, i);
      write(norm.on_hosts[i], k, UseKind::To, i);
    }
    const auto total = static_cast<int64_t>(norm.terms.size()) * kSquaresBytes;
    norm.arrived.push_back(add(
        {.kind = TaskKind::SwapOut,
         .price = tables_.host_copies(group_id(group), teams(group).members[k], true, Bytes(total)),
         .tensor = training_.squares,
         .group = group_id(group)}));
  }
}

}  // namespace windlass
