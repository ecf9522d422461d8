// A layout says which part each member has, and of which partial sum. Elements of a tensor are the
// combination of what it has in each partial sum. A collective lets each member take from those
// that differ from it in some digits: every element that it wants from exactly one of them in each
// partial sum. Which sums a member combines is the same wherever its own results are of the same
// new sum, and every old sum is in exactly one new one. Then nothing is lost and nothing counted
// twice.

#include "windlass/plan/check_moves.h"

#include <algorithm>
#include <set>

#include <fmt/format.h>

namespace windlass {

const MoveFacts& CheckMoves::facts(const CheckedMove& move) {
  // Tensors of the same shape and size move alike.
  CheckedMove key = move;
  key.tensor = TensorId(static_cast<size_t>(layouts_.shape(move.tensor)));
  const auto [entry, fresh] = moves_.try_emplace(key);
  MoveFacts& facts = entry->second;
  if (!fresh) return facts;
  const auto members = [&](int32_t id) { return static_cast<int64_t>(group(id).size()); };
  if (!layouts_.suits(move.tensor, move.from, members(move.from_group)) ||
      !layouts_.suits(move.tensor, move.to, members(move.to_group)))
    facts.wrong = "its layouts are none of its groups";
  else if (move.pairwise)
    check_pairwise(move, facts);
  else
    check_collective(move, facts);
  return facts;
}

std::vector<Part> CheckMoves::parts(const CheckedMove& move, bool target) const {
  const Shape& shape = layouts_.sized().graph[move.tensor].type.shape;
  const Layout& layout = layouts_[target ? move.to : move.from];
  std::vector<Part> result;
  for (size_t m = 0; m < group(target ? move.to_group : move.from_group).size(); ++m)
    result.push_back(member_part(layout, shape, static_cast<int64_t>(m)));
  return result;
}

void CheckMoves::check_collective(const CheckedMove& move, MoveFacts& facts) {
  const Layout &from = layouts_[move.from], &to = layouts_[move.to];
  const auto members = static_cast<int64_t>(group(move.from_group).size());
  const std::vector<MemberDigit>& digits = layouts_.digits(move.digits);
  const bool reduces =
      move.collective == Collective::AllReduce || move.collective == Collective::ReduceScatter;
  if (!layouts_.among(move.digits, members)) facts.wrong = "its group has no such digits";
  if (move.from_group != move.to_group) facts.wrong = "a collective leaves its group";
  if (move.collective == Collective::Broadcast) facts.wrong = "a broadcast changes no layout";
  const auto first = std::ranges::find(from.digits, Digit::Kind::Partial, &Digit::kind);
  for (const Digit& digit : from.digits)
    if (digit.kind == Digit::Kind::Partial && digit.combine != first->combine)
      facts.wrong = "results are combined in different ways";
  if (!facts.wrong.empty()) return;

  const std::vector<Part> has = parts(move, false), wants = parts(move, true);
  std::map<int64_t, std::set<int64_t>> sums;  // by new partial sum: old ones that are in it
  std::set<int64_t> all, combined;            // old ones
  int64_t most = 0;
  for (int64_t m = 0; m < members; ++m) {
    const Part& wanted = wants[static_cast<size_t>(m)];
    const Part& own = has[static_cast<size_t>(m)];
    std::map<int64_t, int64_t> found;  // by old partial sum: elements
    std::map<int64_t, std::vector<const Part*>> from_whom;
    int64_t given = 0;
    bool same = true;  // all end with the same
    for (int64_t peer : peers_of(digits, m)) {
      const auto p = static_cast<size_t>(peer);
      const int64_t sum = digits_of_kind(from, peer, Digit::Kind::Partial);
      found[sum] += common(has[p], wanted);
      from_whom[sum].push_back(&has[p]);
      given += common(own, wants[p]);
      same = same && wants[p] == wanted;
    }
    most = std::max(most, given);
    all.insert(digits_of_kind(from, m, Digit::Kind::Partial));
    std::set<int64_t> taken;
    for (const auto& [sum, elements] : found) {
      taken.insert(sum);
      if (elements != volume(wanted) || !cover(from_whom[sum], wanted))
        facts.wrong = fmt::format("member {} gets {} elements of {}", m, elements, volume(wanted));
    }
    const auto [known, fresh] =
        sums.try_emplace(digits_of_kind(to, m, Digit::Kind::Partial), taken);
    if (!fresh && known->second != taken)
      facts.wrong = fmt::format("member {} combines other partial sums than its copies", m);
    const bool whole =
        move.collective == Collective::AllReduce || move.collective == Collective::AllGather;
    if (reduces != (taken.size() > 1) || whole != same ||
        (move.collective == Collective::AllReduce && own != wanted) ||
        (!whole && given > volume(own)))
      facts.wrong = fmt::format("that is no {}", collective_name(move.collective));
  }
  size_t count = 0;
  for (const auto& [sum, taken] : sums) {
    count += taken.size();
    combined.insert(taken.begin(), taken.end());
  }
  if (count != all.size() || combined != all)
    facts.wrong = "partial sums are left out or counted twice";
  // As plan_collective counts: the tensor that they have together, or end with.
  int64_t elements = layouts_.elements(move.tensor, reduces ? move.from : move.to);
  if (move.collective == Collective::AllToAll) elements = most * layouts_.parts(move.digits);
  // Of unequal parts all count as the largest, which the others wait for.
  if (move.collective == Collective::AllGather && from.unequal())
    elements = std::max(elements, most);
  if (move.collective == Collective::ReduceScatter && to.unequal())
    elements =
        std::max(elements, layouts_.elements(move.tensor, move.to) * layouts_.parts(move.digits));
  facts.traffic =
      collective(move.collective, move.from_group, move.digits, elements * move.element_size);
}

// Each member takes what it lacks from the nearest of those that have it.
void CheckMoves::check_pairwise(const CheckedMove& move, MoveFacts& facts) {
  const Layout& from = layouts_[move.from];
  if (from.partial() || layouts_[move.to].partial()) {
    facts.wrong = "copies combine no partial sums";
    return;
  }
  const std::vector<Part> has = parts(move, false), wants = parts(move, true);
  std::map<int64_t, std::vector<int64_t>> holders;  // by part, ascending
  std::vector<const Part*> different;
  for (size_t m = 0; m < has.size(); ++m) {
    auto& list = holders[digits_of_kind(from, static_cast<int64_t>(m), Digit::Kind::Axis)];
    if (list.empty()) different.push_back(&has[m]);
    list.push_back(static_cast<int64_t>(m));
  }
  std::vector<Copy> copies;
  const auto endpoint = [&](int32_t id, size_t m) { return machine_[group(id)[m]].endpoint; };
  for (size_t m = 0; m < wants.size(); ++m) {
    const int64_t wanted = volume(wants[m]);
    facts.gaps = facts.gaps || (wanted > 0 && !cover(different, wants[m]));
    const auto self = static_cast<int64_t>(m * has.size() / wants.size());
    int64_t found = 0;
    for (const auto& [part, list] : holders) {
      const int64_t elements = common(has[static_cast<size_t>(list.front())], wants[m]);
      found += elements;
      const int64_t nearest = *std::ranges::min_element(
          list, {}, [&](int64_t holder) { return std::abs(holder - self); });
      const auto source = static_cast<size_t>(nearest);
      if (elements == 0 || (move.from_group == move.to_group && source == m)) continue;
      copies.push_back({endpoint(move.from_group, source), endpoint(move.to_group, m),
                        Bytes(elements * move.element_size)});
    }
    facts.overlaps = facts.overlaps || found > wanted;
  }
  facts.traffic = add(plan_copies(machine_, copies));
}

int32_t CheckMoves::add(Traffic traffic) {
  traffics_.push_back(std::move(traffic));
  return static_cast<int32_t>(traffics_.size() - 1);
}

int32_t CheckMoves::collective(Collective collective, int32_t group_id, int32_t digits,
                               int64_t bytes) {
  const auto [entry, fresh] = collectives_.try_emplace({collective, group_id, digits, bytes}, -1);
  if (!fresh) return entry->second;
  // Members that differ in these digits only belong together.
  std::vector<DeviceGroup> together;
  const std::vector<DeviceId>& devices = group(group_id);
  for (size_t m = 0; m < devices.size(); ++m) {
    const std::vector<int64_t> peers = peers_of(layouts_.digits(digits), static_cast<int64_t>(m));
    if (peers.front() != static_cast<int64_t>(m)) continue;
    DeviceGroup& list = together.emplace_back();
    for (int64_t peer : peers) list.push_back(devices[static_cast<size_t>(peer)]);
  }
  return entry->second = add(plan_collective(machine_, collective, together, Bytes(bytes)));
}

int32_t CheckMoves::host_copies(int32_t group_id, const std::vector<int64_t>& members, bool to_host,
                                int64_t bytes) {
  const auto [entry, fresh] = copies_.try_emplace({group_id, members, to_host, bytes}, -1);
  if (!fresh) return entry->second;
  std::vector<Copy> list;
  for (int64_t m : members) {
    const Device& device = machine_[group(group_id)[static_cast<size_t>(m)]];
    const EndpointId host = machine_[device.node].endpoint;
    list.push_back(to_host ? Copy{device.endpoint, host, Bytes(bytes)}
                           : Copy{host, device.endpoint, Bytes(bytes)});
  }
  return entry->second = add(plan_copies(machine_, list));
}

}  // namespace windlass
