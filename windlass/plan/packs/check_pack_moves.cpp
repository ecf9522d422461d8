// Moves and updates in the eyes of the checker.
#include <algorithm>
#include <cmath>

#include "windlass/cost/traffic.h"
#include "windlass/plan/packs/pack_checker.h"

namespace windlass {

// The one buffer of a sort that a task uses: there, if it is read.
std::optional<BufferId> PackChecker::used(TaskId id, PackData what, bool write, bool host) {
  const MemoryId memory = graph_.teams[static_cast<size_t>(team_of(id))].memory;
  for (const Use& use : graph_.uses_of(id))
    if (use.write == write && label(use.buffer).what == what &&
        label(use.buffer).layers == label(id).layers && label(use.buffer).part == label(id).part &&
        (host ? on_host(use.buffer) : graph_[use.buffer].memory == memory))
      return use.buffer;
  complain("{}: no buffer for what it {}", name(id), write ? "writes" : "reads");
  return std::nullopt;
}

void PackChecker::expect_traffic(TaskId id, const Traffic& traffic) {
  const Traffic& found = graph_.traffics[static_cast<size_t>(graph_[id].price)];
  // Bytes are rounded link by link.
  const auto near = [](Bytes a, Bytes b) { return std::abs(a.value - b.value) <= 64; };
  bool same = near(found.volume, traffic.volume) && found.loads.size() == traffic.loads.size();
  for (size_t i = 0; same && i < traffic.loads.size(); ++i)
    same = found.loads[i].direction == traffic.loads[i].direction &&
           near(found.loads[i].bytes, traffic.loads[i].bytes);
  if (!same)
    complain("{}: moves {} bytes over {} links, expected {} over {}", name(id), found.volume.value,
             found.loads.size(), traffic.volume.value, traffic.loads.size());
  expect_time(id, found.latency.value, 0);
}

void PackChecker::expect_copies(TaskId id, bool in, int64_t bytes, bool first_only) {
  const std::array<int64_t, 5> key{in ? 0 : 1, team_of(id), bytes, first_only ? 1 : 0, 0};
  const auto [entry, fresh] = traffic_.try_emplace(key);
  if (fresh) {
    std::vector<Copy> copies;
    const EndpointId host = machine_.nodes[0].endpoint;
    for (DeviceId device : graph_.teams[static_cast<size_t>(team_of(id))].devices) {
      const EndpointId end = machine_[device].endpoint;
      copies.push_back({in ? host : end, in ? end : host, Bytes(bytes)});
      if (first_only) break;
    }
    entry->second = plan_copies(machine_, copies);
  }
  expect_traffic(id, entry->second);
}

// Something of samples from one place to another, as it is.
void PackChecker::copy(TaskId id, bool from_host, bool to_host) {
  const PackLabel& what = label(id);
  if (what.what < PackData::Input || what.begin >= what.end)
    return complain("{}: nothing that is moved so", name(id));
  int writes = 0;
  for (const Use& use : graph_.uses_of(id)) {
    const PackLabel& found = label(use.buffer);
    Held& held = held_[use.buffer.index()];
    if (use.write) {
      const bool placed = to_host == on_host(use.buffer);
      const bool near =
          graph_[id].kind == TaskKind::Send || to_host ||
          graph_[use.buffer].memory == graph_.teams[static_cast<size_t>(team_of(id))].memory;
      if (found != what || !placed || !near)
        complain("{} writes buffer {} ({})", name(id), use.buffer.value, name(found));
      held.there = true;
      if (what.what == PackData::Saved) held.next = what.layers.last + 1;
      ++writes;
    } else if (found.what != what.what || found.layers != what.layers) {
      complain("{} reads buffer {} ({})", name(id), use.buffer.value, name(found));
    } else if (what.what == PackData::Saved && held.next != what.layers.last + 1) {
      complain("{} moves what is not computed yet", name(id));
    }
  }
  if (writes != 1) complain("{} writes {} buffers", name(id), writes);
  const bool samples = from_host && what.what == PackData::Input && what.layers.first == 0;
  if (!samples && !reads(id, what.what, what.layers.first, from_host))
    complain("{}: what it moves is not there", name(id));
}

void PackChecker::swap_in(TaskId id) {
  const PackLabel& what = label(id);
  if (what.what >= PackData::Input) {
    copy(id, true, false);
    const int64_t samples = what.end - what.begin;
    expect_copies(id, true,
                  what.what == PackData::Saved
                      ? sum(pass(false, samples).working, what.layers)
                      : profile_.input[static_cast<size_t>(what.layers.first)] * samples);
    return;
  }
  if (what.what == PackData::Gradients) return complain("{}: no gradients come in", name(id));
  const auto buffer = used(id, what.what, true, false);
  if (!buffer) return;
  Held& held = held_[buffer->index()];
  held.there = true;
  held.step = step_;
  const bool optimizer = what.what == PackData::Optimizer;
  const bool shared = strategy_.streams && strategy_.replicas > 1;
  if (what.what == PackData::Shares && !shared)
    complain("{}: there are no shares without replicas", name(id));
  held.whole = optimizer || !shared;
  const int64_t bytes = optimizer ? sum(profile_.optimizer, what) : state_bytes(what);
  expect_copies(id, true, shared || optimizer ? share_of(bytes) : bytes);
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    Stored& part = stored(l, what);
    order(id, optimizer ? part.optimizer : part.weights, false, "what the host has");
    if (what.what == PackData::Weights)
      weights_at_[graph_[*buffer].memory.index()][static_cast<size_t>(l)]
                 [static_cast<size_t>(what.part)] = *buffer;
    if (!optimizer && part.updates > 0)
      complain("{}: layer {} has been updated in this step", name(id), l);
  }
}

void PackChecker::updated(TaskId id, int32_t layer) {
  Stored& part = stored(layer, label(id));
  order(id, part.weights, true, "what the host has");
  if (profile_.weights[static_cast<size_t>(layer)] > 0 && ++part.updates > 1)
    complain("{}: layer {} is updated again", name(id), layer);
}

// Gradients of the whole step, of all replicas.
bool PackChecker::complete(TaskId id, BufferId gradients) {
  const Held& held = held_[gradients.index()];
  const Pack layers = label(gradients).layers;
  for (int32_t l = layers.first; l <= layers.last; ++l) {
    if (profile_.weights[static_cast<size_t>(l)] == 0) continue;
    const auto at = static_cast<size_t>(l - layers.first);
    if (at < held.terms.size() && held.terms[at].covers(0, samples_)) continue;
    complain("{}: the gradients of layer {} lack samples", name(id), l);
    return false;
  }
  return true;
}

void PackChecker::swap_out(TaskId id) {
  const PackLabel& what = label(id);
  if (what.what >= PackData::Input) {
    copy(id, false, true);
    const int64_t samples = what.end - what.begin;
    expect_copies(id, false,
                  what.what == PackData::Saved
                      ? sum(pass(false, samples).working, what.layers)
                      : profile_.input[static_cast<size_t>(what.layers.first)] * samples);
    return;
  }
  const auto buffer = used(id, what.what, false, false);
  if (!buffer) return;
  Held& held = held_[buffer->index()];
  const bool replicated = strategy_.replicas > 1;
  if (what.what == PackData::Gradients) {
    complete(id, *buffer);
    if (replicated && !held.summed)
      complain("{}: gradients are not summed over the replicas", name(id));
    if (held.done) complain("{}: gradients leave again", name(id));
    held.done = true;
    const int64_t bytes = sum(profile_.weights, what);
    expect_copies(id, false, replicated && strategy_.streams ? share_of(bytes) : bytes,
                  replicated && !strategy_.streams);
    for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
      Stored& part = stored(l, what);
      order(id, part.gradients, true, "gradients on the host");
      part.gradient_there = true;
    }
    return;
  }
  if (what.what == PackData::Shares) return complain("{}: no shares go out", name(id));
  if (!held.fresh) complain("{}: it was not updated", name(id));
  const bool weights = what.what == PackData::Weights;
  expect_copies(id, false, share_of(sum(weights ? profile_.weights : profile_.optimizer, what)));
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    Stored& part = stored(l, what);
    if (weights) {
      updated(id, l);
    } else {
      order(id, part.optimizer, true, "optimizer state on the host");
      part.old_state = false;
    }
  }
}

void PackChecker::send(TaskId id) {
  const PackLabel& what = label(id);
  copy(id, false, false);
  const auto depth = static_cast<size_t>(strategy_.depth);
  const auto from = static_cast<size_t>(team_of(id));
  const Team& to = graph_.teams[(from + 1) % depth];
  for (const Use& use : graph_.uses_of(id))
    if (use.write && graph_[use.buffer].memory != to.memory)
      complain("{}: sends to {}", name(id), graph_[graph_[use.buffer].memory].name);
  const int64_t bytes =
      profile_.input[static_cast<size_t>(what.layers.first)] * (what.end - what.begin);
  const auto [entry, fresh] = traffic_.try_emplace({2, static_cast<int64_t>(from), bytes, 0, 0});
  if (fresh) {
    std::vector<Copy> copies;
    for (size_t r = 0; r < to.devices.size(); ++r)
      copies.push_back({machine_[graph_.teams[from].devices[r]].endpoint,
                        machine_[to.devices[r]].endpoint, Bytes(bytes)});
    entry->second = plan_copies(machine_, copies);
  }
  expect_traffic(id, entry->second);
}

// From shares that are kept, or in place.
void PackChecker::gather(TaskId id) {
  const PackLabel& what = label(id);
  const auto buffer = used(id, PackData::Weights, true, false);
  if (!buffer) return;
  Held& held = held_[buffer->index()];
  const Held* from = &held;
  for (const Use& use : graph_.uses_of(id))
    if (!use.write && label(use.buffer).what == PackData::Shares &&
        label(use.buffer).layers == what.layers && label(use.buffer).part == what.part &&
        graph_[use.buffer].memory == graph_[*buffer].memory)
      from = &held_[use.buffer.index()];
  if (!from->there || from->whole || from->step != step_)
    complain("{}: there are no shares to gather", name(id));
  held.there = held.whole = true;
  held.step = step_;
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l)
    weights_at_[graph_[*buffer].memory.index()][static_cast<size_t>(l)]
               [static_cast<size_t>(what.part)] = *buffer;
  const std::vector<DeviceGroup> groups{graph_.teams[static_cast<size_t>(team_of(id))].devices};
  expect_traffic(
      id, plan_collective(machine_, Collective::AllGather,
                          graph_.traffics[static_cast<size_t>(graph_[id].price)].algorithm, groups,
                          graph_[*buffer].bytes));
}

void PackChecker::reduce(TaskId id) {
  const auto buffer = used(id, PackData::Gradients, true, false);
  if (!buffer) return;
  Held& held = held_[buffer->index()];
  complete(id, *buffer);
  if (held.summed || held.done) complain("{}: gradients are summed again", name(id));
  held.summed = true;
  const std::vector<DeviceGroup> groups{graph_.teams[static_cast<size_t>(team_of(id))].devices};
  expect_traffic(
      id, plan_collective(machine_,
                          strategy_.streams ? Collective::ReduceScatter : Collective::AllReduce,
                          graph_.traffics[static_cast<size_t>(graph_[id].price)].algorithm, groups,
                          graph_[*buffer].bytes));
}

// On a device, each member its share.
void PackChecker::update(TaskId id) {
  const PackLabel& what = label(id);
  const auto gradients = used(id, PackData::Gradients, false, false);
  const auto weights = used(id, PackData::Weights, true, false);
  const int64_t state = share_of(sum(profile_.optimizer, what));
  BufferId optimizer;
  if (state > 0) optimizer = used(id, PackData::Optimizer, true, false).value_or(BufferId());
  if (!gradients || !weights || (state > 0 && !optimizer.valid())) return;
  complete(id, *gradients);
  Held& held = held_[gradients->index()];
  if (strategy_.replicas > 1 && !held.summed)
    complain("{}: gradients are not summed over the replicas", name(id));
  if (held.done) complain("{}: gradients are applied again", name(id));
  held.done = true;
  if (!held_[weights->index()].there || !held_[weights->index()].whole ||
      (optimizer.valid() && !held_[optimizer.index()].there))
    complain("{}: what it updates is not there", name(id));
  held_[weights->index()].fresh = true;
  if (optimizer.valid()) held_[optimizer.index()].fresh = true;
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l)
    stored(l, what).old_state = optimizer.valid();
  const DeviceType& type =
      machine_.device_types[graph_.teams[static_cast<size_t>(team_of(id))].type];
  const auto bytes = static_cast<double>(3 * share_of(sum(profile_.weights, what)) + 2 * state);
  expect_time(id, bytes / type.memory_bandwidth.value, 0);
}

void PackChecker::host_update(TaskId id) {
  const PackLabel& what = label(id);
  double seconds = 0;
  for (int32_t l = what.layers.first; l <= what.layers.last; ++l) {
    const auto at = static_cast<size_t>(l);
    Stored& part = stored(l, what);
    seconds += profile_.host_update[at] / what.parts;
    if (profile_.weights[at] > 0 && !part.gradient_there)
      complain("{}: the gradients of layer {} are not on the host", name(id), l);
    order(id, part.gradients, false, "gradients on the host");
    order(id, part.optimizer, true, "optimizer state on the host");
    updated(id, l);
  }
  if (strategy_.replicas > 1 && strategy_.streams) seconds /= strategy_.replicas;
  expect_time(id, seconds, 0);
}

}  // namespace windlass
