#include "windlass/task/tables.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "windlass/base/hash.h"
#include "windlass/task/lower.h"

namespace windlass {
namespace {

uint64_t hash_of(const Layout& layout) {
  Hasher hasher;
  for (const Digit& digit : layout.digits) {
    hasher.add(static_cast<int32_t>(digit.kind))
        .add(digit.parts)
        .add(digit.axis)
        .add(digit.loop_size)
        .add(digit.blocks)
        .add(digit.map.stride)
        .add(digit.map.offset)
        .add(digit.map.window)
        .add(static_cast<int32_t>(digit.tail));
    for (int32_t size : digit.sizes) hasher.add(size);
  }
  return hasher.result();
}

uint64_t hash_of(const Work& work) {
  Hasher hasher;
  for (const Kernel& k : work.kernels)
    hasher.add(static_cast<int32_t>(k.family))
        .add(k.m)
        .add(k.n)
        .add(k.k)
        .add(k.batch)
        .add(k.multiply_adds)
        .add(k.pointwise)
        .add(k.read.value)
        .add(k.written.value);
  return hasher.result();
}

// Members of a group that differ only in `digits`, one list for each value of the others.
std::vector<DeviceGroup> subgroups(const std::vector<DeviceId>& group,
                                   const std::vector<MemberDigit>& digits) {
  std::vector<DeviceGroup> result;
  std::map<int64_t, size_t> index;
  for (size_t m = 0; m < group.size(); ++m) {
    auto rest = static_cast<int64_t>(m);
    for (const MemberDigit& digit : digits)
      rest -= static_cast<int64_t>(m) / digit.place % digit.parts * digit.place;
    const auto [entry, fresh] = index.try_emplace(rest, result.size());
    if (fresh) result.emplace_back();
    result[entry->second].push_back(group[m]);
  }
  return result;
}

}  // namespace

Tables::Tables(const TrainingGraph& training, const TrainingFacts& facts, const Machine& machine)
    : training_(training), sized_(&training), facts_(facts), machine_(machine), planner_(machine) {
  const size_t sizes = training.unequal ? 2 : 1;
  digit_sets_.emplace_back();
  sizes_.resize(sizes * training.graph.tensors.size());
  backward_of_.resize(training.forward_ops);
  op_index_.resize(sizes * training.forward_ops);
  latest_.resize(sizes * training.forward_ops);
  for (size_t i = training.forward_ops; i < training.graph.ops.size(); ++i)
    if (const OpId forward = training.graph.ops[i].forward; forward.valid())
      backward_of_[forward.index()] = OpId(i);
  find_models();
  list_tensors();
}

int32_t Tables::intern(const Layout& layout) {
  std::vector<int32_t>& same = layout_index_[hash_of(layout)];
  for (int32_t id : same)
    if (layouts_[static_cast<size_t>(id)] == layout) return id;
  same.push_back(static_cast<int32_t>(layouts_.size()));
  layouts_.push_back(layout);
  unequal_.push_back(layout.unequal());
  return same.back();
}

int32_t Tables::intern(const Sharding& sharding) {
  const auto [entry, fresh] =
      sharding_index_.try_emplace(sharding, static_cast<int32_t>(shardings_.size()));
  if (fresh) shardings_.push_back(sharding);
  return entry->second;
}

int32_t Tables::intern(const std::vector<DeviceId>& group) {
  const auto [entry, fresh] = group_index_.try_emplace(group, static_cast<int32_t>(groups_.size()));
  if (fresh) groups_.push_back(group);
  return entry->second;
}

int32_t Tables::work(const Work& work) {
  std::vector<int32_t>& same = work_index_[hash_of(work)];
  for (int32_t id : same)
    if (works[static_cast<size_t>(id)] == work) return id;
  same.push_back(static_cast<int32_t>(works.size()));
  works.push_back(work);
  return same.back();
}

int32_t Tables::sum_work(int64_t bytes) {
  const auto [entry, fresh] = sum_works_.try_emplace(bytes, -1);
  if (fresh) entry->second = work(memory_work(Bytes(2 * bytes), Bytes(bytes)));
  return entry->second;
}

int32_t Tables::add_traffic(Traffic traffic) {
  traffics.push_back(std::move(traffic));
  return static_cast<int32_t>(traffics.size() - 1);
}

int32_t Tables::exchange(Collective collective, int32_t group, int32_t digits) {
  const auto [entry, fresh] = exchange_index_.try_emplace({collective, group, digits}, -1);
  if (fresh) {
    entry->second = static_cast<int32_t>(movements.size());
    movements.push_back(
        {.collective = collective, .digits = digits, .from_group = group, .to_group = group});
  }
  return entry->second;
}

int32_t Tables::collective(Collective collective, int32_t group,
                           const std::vector<MemberDigit>& digits, Bytes bytes) {
  const auto [entry, fresh] =
      collective_index_.try_emplace({collective, group, digits, bytes.value}, -1);
  if (fresh) {
    const auto members = subgroups(this->group(group), digits);
    entry->second = add_traffic(planner_.collective(collective, members, bytes));
  }
  return entry->second;
}

int32_t Tables::host_copies(int32_t group, const std::vector<int32_t>& members, bool to_host,
                            Bytes bytes) {
  const auto [entry, fresh] = host_index_.try_emplace({group, members, to_host, bytes.value}, -1);
  if (fresh) {
    std::vector<Copy> copies;
    for (int32_t m : members) {
      const Device& device = machine_[this->group(group)[static_cast<size_t>(m)]];
      const EndpointId host = machine_[device.node].endpoint;
      copies.push_back(to_host ? Copy{device.endpoint, host, bytes}
                               : Copy{host, device.endpoint, bytes});
    }
    entry->second = add_traffic(planner_.copies(copies));
  }
  return entry->second;
}

int32_t Tables::copies(int32_t from_group, int32_t to_group, const std::vector<MemberCopy>& copies,
                       int64_t element_size) {
  std::vector<Copy> list;
  for (const MemberCopy& copy : copies)
    list.push_back({machine_[group(from_group)[static_cast<size_t>(copy.from)]].endpoint,
                    machine_[group(to_group)[static_cast<size_t>(copy.to)]].endpoint,
                    Bytes(copy.elements * element_size)});
  return add_traffic(planner_.copies(list));
}

const std::vector<MoveTemplate>& Tables::moves(const TensorType& type, int32_t from_layout,
                                               int32_t from_group, int32_t to_layout,
                                               int32_t to_group) {
  uint64_t slot = static_cast<uint64_t>(from_layout) * 0x9e3779b97f4a7c15ULL ^
                  static_cast<uint64_t>(to_layout) * 0xd1342543de82ef95ULL;
  for (int64_t size : type.shape)
    slot = (slot ^ static_cast<uint64_t>(size)) * 0xbf58476d1ce4e5b9ULL;
  RecentMove& recent = recent_moves_[slot >> 52];
  if (recent.moves != nullptr && recent.from_layout == from_layout &&
      recent.from_group == from_group && recent.to_layout == to_layout &&
      recent.to_group == to_group && recent.type == type)
    return *recent.moves;
  const std::vector<MoveTemplate>& found =
      find_moves(type, from_layout, from_group, to_layout, to_group);
  recent = {type, from_layout, from_group, to_layout, to_group, &found};
  return found;
}

const std::vector<MoveTemplate>& Tables::find_moves(const TensorType& type, int32_t from_layout,
                                                    int32_t from_group, int32_t to_layout,
                                                    int32_t to_group) {
  const auto [entry, fresh] = move_index_.try_emplace(
      {type.shape, type.dtype, from_layout, from_group, to_layout, to_group}, -1);
  if (!fresh) return moves_[static_cast<size_t>(entry->second)];
  const auto from_members = static_cast<int64_t>(group(from_group).size());
  const auto to_members = static_cast<int64_t>(group(to_group).size());
  const Redistribution plan =
      from_group == to_group
          ? redistribute(type.shape, layout(from_layout), layout(to_layout), from_members)
          : send(type.shape, layout(from_layout), from_members, layout(to_layout), to_members);
  std::vector<MoveTemplate> steps;
  const int64_t size = element_bytes(type.dtype);
  int32_t now = from_layout;
  for (const Move& move : plan.moves) {
    MoveTemplate step;
    step.layout = intern(move.result);
    step.elements = move.result_elements;
    step.crosses = move.pairwise && from_group != to_group;
    step.movement = static_cast<int32_t>(movements.size());
    movements.push_back({.pairwise = move.pairwise,
                         .collective = move.collective,
                         .digits = intern_digits(move.digits),
                         .from_group = from_group,
                         .to_group = step.crosses ? to_group : from_group,
                         .from_layout = now,
                         .to_layout = step.layout,
                         .sums = move.sums});
    step.plain_movement = step.movement;
    if (move.sums) {
      step.plain_movement = static_cast<int32_t>(movements.size());
      movements.push_back(movements.back());
      movements.back().sums = false;
    }
    now = step.layout;
    step.in_place = !move.pairwise && move.collective == Collective::AllReduce;
    step.traffic = move.pairwise ? copies(from_group, to_group, move.copies, size)
                                 : collective(move.collective, from_group, move.digits,
                                              Bytes(move.elements * size));
    steps.push_back(step);
  }
  entry->second = static_cast<int32_t>(moves_.size());
  moves_.push_back(std::move(steps));
  return moves_.back();
}

int32_t Tables::settle(int32_t id) {
  const int32_t result = layout(id).partial() ? intern(windlass::settled(layout(id))) : id;
  if (settled_.size() < layouts_.size()) settled_.resize(layouts_.size(), -1);
  return settled_[static_cast<size_t>(id)] = result;
}

OperandTemplate Tables::kept_weight(TensorId weight, const OperandTemplate& want) {
  if (!layout(want.layout).halo()) return want;
  const Shape& shape = sized_->graph[weight].type.shape;
  const Layout kept = without_halo(layout(want.layout), shape);
  return {intern(kept), largest_elements(kept, shape)};
}

int32_t Tables::intern_digits(std::vector<MemberDigit> digits) {
  const auto known = std::ranges::find(digit_sets_, digits);
  if (known != digit_sets_.end()) return static_cast<int32_t>(known - digit_sets_.begin());
  digit_sets_.push_back(std::move(digits));
  return static_cast<int32_t>(digit_sets_.size() - 1);
}

int64_t Tables::allocated_bytes(TensorId tensor, int32_t layout) {
  auto& known = sizes_[at(tensor)];
  for (const auto& [id, size] : known)
    if (id == layout) return size;
  const int64_t elements = largest_elements(this->layout(layout), sized_->graph[tensor].type.shape);
  known.emplace_back(layout, allocated(elements * facts_.element_size[tensor.index()]).value);
  return known.back().second;
}

int64_t Tables::elements_of_member(TensorId tensor, int32_t layout, int32_t member) {
  const auto [entry, fresh] = member_elements_.try_emplace({at(tensor), layout, member}, 0);
  if (fresh)
    entry->second =
        largest_elements(this->layout(layout), sized_->graph[tensor].type.shape, member);
  return entry->second;
}

int32_t Tables::within_hosts(int32_t set, int32_t group, const std::vector<int32_t>& kinds) {
  const auto [entry, fresh] = host_digits_.try_emplace({set, group, kinds}, -1);
  if (fresh)
    entry->second =
        intern_digits(digits_within_hosts(machine_, this->group(group), digits(set), kinds));
  return entry->second;
}

int64_t Tables::parts_on_host(int32_t group, const std::vector<int32_t>& members, int32_t layout,
                              int32_t share) {
  const auto [entry, fresh] = host_parts_.try_emplace({group, members, layout, share}, 0);
  if (!fresh) return entry->second;
  std::map<NodeId, std::set<std::vector<int64_t>>> different;
  for (int32_t m : members) {
    // The digits that tell parts and shares apart.
    std::vector<int64_t> part;
    int64_t place = 1;
    for (size_t d = this->layout(layout).digits.size(); d-- > 0;) {
      const Digit& digit = this->layout(layout).digits[d];
      if (digit.kind != Digit::Kind::Copy) part.push_back(m / place % digit.parts);
      place *= digit.parts;
    }
    for (const MemberDigit& digit : digits(share)) part.push_back(m / digit.place % digit.parts);
    different[machine_[this->group(group)[static_cast<size_t>(m)]].node].insert(part);
  }
  for (const auto& [node, parts] : different)
    entry->second = std::max(entry->second, static_cast<int64_t>(parts.size()));
  return entry->second;
}

int32_t Tables::replica_digits(int32_t id) {
  std::vector<MemberDigit> copies;
  int64_t place = 1;
  const Layout& layout = this->layout(id);
  for (size_t i = layout.digits.size(); i-- > 0; place *= layout.digits[i].parts)
    if (layout.digits[i].kind != Digit::Kind::Axis)
      copies.push_back({place, layout.digits[i].parts});
  return intern_digits(std::move(copies));
}

int32_t Tables::find_partial_digits(int32_t id) {
  std::vector<MemberDigit> partial;
  int64_t place = 1;
  const Layout& layout = this->layout(id);
  for (size_t i = layout.digits.size(); i-- > 0;) {
    const Digit& digit = layout.digits[i];
    if (digit.kind == Digit::Kind::Partial) partial.push_back({place, digit.parts});
    place *= digit.parts;
  }
  if (partial_digits_.size() < layouts_.size()) partial_digits_.resize(layouts_.size(), -1);
  return partial_digits_[static_cast<size_t>(id)] = intern_digits(std::move(partial));
}

}  // namespace windlass
