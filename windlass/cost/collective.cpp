// Collectives as loads on links. Chunks follow each other through the steps of an algorithm, so
// that its links are busy together: the loads of all steps add up in one Traffic, and the time
// beside them is what one small chunk takes through all steps.

#include <algorithm>
#include <bit>
#include <optional>

#include "windlass/base/error.h"
#include "windlass/cost/load_sum.h"

namespace windlass {
namespace {

using Members = std::vector<EndpointId>;

// Pairwise exchange is worth a look only where every pair has a link of its own.
constexpr size_t kMaxMesh = 16;

// A group by nodes, in the order they first appear. Striped: the same number on several nodes.
struct GroupLayout {
  Members all;  // node by node
  std::vector<Members> nodes;
  bool striped = false;
  size_t per_node = 1;  // of a striped group
  bool one_process = false;
  bool copied = false;  // by the devices' own cores
};

GroupLayout layout_of(const Machine& machine, const DeviceGroup& group) {
  GroupLayout layout;
  std::vector<NodeId> order;
  for (DeviceId device : group) {
    const NodeId node = machine[device].node;
    const auto at = std::find(order.begin(), order.end(), node);
    const auto place = static_cast<size_t>(at - order.begin());
    if (at == order.end()) {
      order.push_back(node);
      layout.nodes.emplace_back();
    }
    layout.nodes[place].push_back(machine[device].endpoint);
  }
  for (const Members& members : layout.nodes)
    layout.all.insert(layout.all.end(), members.begin(), members.end());
  layout.striped = layout.nodes.size() > 1 &&
                   std::all_of(layout.nodes.begin(), layout.nodes.end(), [&](const Members& m) {
                     return m.size() == layout.nodes[0].size();
                   });
  if (layout.striped) layout.per_node = layout.nodes[0].size();
  layout.one_process = order.size() == 1 && machine[order[0]].one_process;
  layout.copied = layout.one_process && machine.type_of(group[0]).copies_itself;
  return layout;
}

// Part of the bytes that a member of n passes on to its successor.
double ring_factor(Collective collective, size_t n) {
  const auto members = static_cast<double>(n);
  switch (collective) {
    case Collective::AllReduce: return 2 * (members - 1) / members;
    case Collective::Broadcast: return 1;
    default: return (members - 1) / members;
  }
}

Seconds ring(LoadSum& loads, const Members& order, Collective collective, double bytes,
             EndpointId root = {}) {
  const size_t n = order.size();
  if (n < 2) return Seconds(0);
  const double factor = ring_factor(collective, n);
  Seconds around;
  for (size_t i = 0; i < n; ++i) {
    const EndpointId to = order[(i + 1) % n];
    if (to != root) around += loads.send(order[i], to, factor * bytes) + kStepCost;
  }
  return collective == Collective::Broadcast ? around : around * factor;
}

Seconds ring_of_group(LoadSum& loads, const GroupLayout& group, Collective collective,
                      double bytes) {
  const EndpointId root = collective == Collective::Broadcast ? group.all[0] : EndpointId();
  if (!group.striped) return ring(loads, group.all, collective, bytes, root);
  const size_t stripes = group.per_node;
  Seconds latency;
  for (size_t stripe = 0; stripe < stripes; ++stripe) {
    Members order;
    for (const Members& node : group.nodes)
      for (size_t i = 0; i < stripes; ++i) order.push_back(node[(stripe + i) % stripes]);
    const double part = bytes / static_cast<double>(stripes);
    latency = std::max(latency, ring(loads, order, collective, part, root));
  }
  return latency;
}

// Two binary trees in heap order, the second from the other end: leaves of one are inside of the
// other. Returns the cost of its slowest edge.
Seconds double_tree(LoadSum& loads, const Members& members, bool both_ways, double bytes) {
  const size_t n = members.size();
  Seconds slowest;
  for (const bool reversed : {false, true}) {
    const auto member = [&](size_t i) { return members[reversed ? n - 1 - i : i]; };
    for (size_t i = 1; i < n; ++i) {
      const EndpointId child = member(i), parent = member((i - 1) / 2);
      if (both_ways) loads.send(child, parent, bytes / 2);
      if (both_ways || child != members[0])
        slowest = std::max(slowest, loads.send(parent, child, bytes / 2));
    }
  }
  // A broadcast has to reach the root of the second tree first.
  if (!both_ways && n > 1) loads.send(members[0], members[n - 1], bytes / 2);
  return slowest + kStepCost;
}

Seconds tree_of_group(LoadSum& loads, const GroupLayout& group, Collective collective,
                      double bytes) {
  const bool both_ways = collective == Collective::AllReduce;
  const size_t stripes = group.per_node;
  const double part = bytes / static_cast<double>(stripes);
  Seconds edge, link;
  for (size_t stripe = 0; stripe < stripes; ++stripe) {
    Members heads;
    if (!group.striped) heads = group.all;
    // Inside of a node a chain leads to the member that belongs to the tree.
    for (size_t node = 0; group.striped && node < group.nodes.size(); ++node) {
      const Members& members = group.nodes[node];
      heads.push_back(members[stripe]);
      for (size_t i = 1; i < stripes; ++i) {
        const EndpointId near = members[(stripe + i - 1) % stripes];
        const EndpointId far = members[(stripe + i) % stripes];
        link = std::max(link, loads.send(near, far, part) + kStepCost);
        if (both_ways) loads.send(far, near, part);
      }
    }
    edge = std::max(edge, double_tree(loads, heads, both_ways, part));
  }
  // Inside of a node libraries make their trees chains: all members are as near to each other.
  const size_t heads = group.striped ? group.nodes.size() : group.all.size();
  const auto depth = static_cast<double>(
      group.nodes.size() == 1 ? heads - 1 : std::bit_width(heads - 1));  // ceil(log2)
  const auto chain = static_cast<double>(stripes - 1);
  return (edge * depth + link * chain) * (both_ways ? 2.0 : 1.0);
}

bool is_mesh(LoadSum& loads, const Members& members) {
  if (members.size() > kMaxMesh) return false;
  for (EndpointId a : members)
    for (EndpointId b : members)
      if (a != b && loads.route(a, b).hops() != 1) return false;
  return true;
}

Seconds direct(LoadSum& loads, const Members& members, Collective collective, double bytes) {
  const auto n = static_cast<double>(members.size());
  double rounds = 1, each = bytes / n;
  if (collective == Collective::AllReduce) rounds = 2;
  if (collective == Collective::AllToAll) each = bytes / (n * n);
  if (collective == Collective::Broadcast) each = bytes;
  Seconds farthest;
  for (EndpointId from : members) {
    if (collective == Collective::Broadcast && from != members[0]) break;
    for (EndpointId to : members)
      if (from != to) farthest = std::max(farthest, loads.send(from, to, rounds * each));
  }
  return (farthest + kStepCost * (n - 1)) * rounds;
}

Seconds hierarchical(LoadSum& loads, const GroupLayout& group, Collective collective,
                     double bytes) {
  if (!group.striped || group.per_node < 2) return ring_of_group(loads, group, collective, bytes);
  Seconds inside, between;
  for (const Members& node : group.nodes)
    inside = std::max(inside, is_mesh(loads, node) ? direct(loads, node, collective, bytes)
                                                   : ring(loads, node, collective, bytes));
  for (size_t rank = 0; rank < group.per_node; ++rank) {
    Members peers;
    for (const Members& node : group.nodes) peers.push_back(node[rank]);
    const double part = bytes / static_cast<double>(group.per_node);
    between = std::max(between, ring(loads, peers, collective, part));
  }
  return inside + between;
}

// What the cores of a member copy of a tensor, as times what would cross its link: what is its own
// is copied as well, and a sum over n reads n parts of a tensor for each one that is written.
double copied_share(Collective collective, size_t n) {
  const auto members = static_cast<double>(n);
  switch (collective) {
    case Collective::AllReduce: return members / (2 * (members - 1));
    case Collective::ReduceScatter: return (members + 1) / (2 * (members - 1));
    case Collective::Broadcast: return 1;
    default: return members / (members - 1);
  }
}

// Of what one thread does for all of them: the farthest route, once.
Seconds latency_at_once(LoadSum& loads, const Members& members) {
  Seconds farthest;
  for (size_t i = 1; i < members.size(); ++i)
    farthest = std::max(farthest, loads.send(members[i - 1], members[i], 0));
  return farthest;
}

Traffic plan(LoadSum& loads, Collective collective, Algorithm algorithm,
             const std::vector<GroupLayout>& groups, Bytes bytes) {
  Seconds latency;
  for (const GroupLayout& group : groups) {
    const double size = static_cast<double>(bytes.value) *
                        (group.copied ? copied_share(collective, group.all.size()) : 1);
    Seconds steps;
    switch (algorithm) {
      case Algorithm::Direct: steps = direct(loads, group.all, collective, size); break;
      case Algorithm::Ring: steps = ring_of_group(loads, group, collective, size); break;
      case Algorithm::Tree: steps = tree_of_group(loads, group, collective, size); break;
      case Algorithm::Hierarchical: steps = hierarchical(loads, group, collective, size); break;
    }
    if (group.one_process) steps = latency_at_once(loads, group.all);
    latency = std::max(latency, kCollectiveStart + steps);
  }
  return loads.take(latency, algorithm);
}

// Groups in which something moves.
std::vector<GroupLayout> layouts_of(const Machine& machine, std::span<const DeviceGroup> groups,
                                    Bytes bytes) {
  std::vector<GroupLayout> result;
  if (bytes.value <= 0) return result;
  for (const DeviceGroup& group : groups)
    if (group.size() > 1) result.push_back(layout_of(machine, group));
  return result;
}

bool worth_trying(LoadSum& loads, Collective collective, Algorithm algorithm,
                  const std::vector<GroupLayout>& groups) {
  if (!has_algorithm(collective, algorithm)) return false;
  const auto all = [&](auto&& holds) { return std::all_of(groups.begin(), groups.end(), holds); };
  switch (algorithm) {
    case Algorithm::Direct:
      return collective == Collective::AllToAll ||
             all([&](const GroupLayout& g) { return is_mesh(loads, g.all); });
    case Algorithm::Hierarchical:
      return !all([](const GroupLayout& g) { return !g.striped || g.per_node < 2; });
    default: return true;
  }
}

}  // namespace

bool has_algorithm(Collective collective, Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::Direct: return true;
    case Algorithm::Ring: return collective != Collective::AllToAll;
    case Algorithm::Tree:
      return collective == Collective::AllReduce || collective == Collective::Broadcast;
    case Algorithm::Hierarchical:
      return collective != Collective::AllToAll && collective != Collective::Broadcast;
  }
  return false;
}

Traffic plan_collective(const Machine& machine, Collective collective,
                        std::span<const DeviceGroup> groups, Bytes bytes) {
  return TrafficPlanner(machine).collective(collective, groups, bytes);
}

Traffic TrafficPlanner::collective(Collective collective, std::span<const DeviceGroup> groups,
                                   Bytes bytes) {
  const std::vector<GroupLayout> layouts = layouts_of(machine_, groups, bytes);
  if (layouts.empty()) return {};
  LoadSum& loads = *loads_;
  std::optional<Traffic> best;
  for (const Algorithm algorithm :
       {Algorithm::Direct, Algorithm::Ring, Algorithm::Tree, Algorithm::Hierarchical}) {
    if (!worth_trying(loads, collective, algorithm, layouts)) continue;
    Traffic traffic = plan(loads, collective, algorithm, layouts, bytes);
    if (!best || time_alone(machine_, traffic) < time_alone(machine_, *best))
      best = std::move(traffic);
  }
  return *std::move(best);
}

Traffic plan_collective(const Machine& machine, Collective collective, Algorithm algorithm,
                        std::span<const DeviceGroup> groups, Bytes bytes) {
  if (!has_algorithm(collective, algorithm))
    fail_unsupported("{}: has no {} algorithm", collective_name(collective),
                     algorithm_name(algorithm));
  const std::vector<GroupLayout> layouts = layouts_of(machine, groups, bytes);
  if (layouts.empty()) return {};
  LoadSum loads(machine);
  return plan(loads, collective, algorithm, layouts, bytes);
}

}  // namespace windlass
