#include "windlass/cost/routes.h"

#include <algorithm>
#include <map>

namespace windlass {

RouteTable::RouteTable(const Machine& machine) : machine_(machine) {
  const size_t nodes = machine.nodes.size();
  links_of_node_.resize(nodes);
  role_.resize(machine.endpoints.size());
  std::vector<std::vector<size_t>> endpoints(nodes);
  std::vector<int64_t> rank(machine.endpoints.size(), -1);
  for (size_t i = 0; i < machine.endpoints.size(); ++i) {
    const NodeId node = machine.endpoints[i].node;
    if (!node.valid()) continue;
    rank[i] = static_cast<int64_t>(endpoints[node.index()].size());
    endpoints[node.index()].push_back(i);
  }
  bool joined_directly = false;
  for (size_t i = 0; i < machine.links.size(); ++i) {
    const NodeId a = machine[machine.links[i].a].node, b = machine[machine.links[i].b].node;
    if (a.valid()) links_of_node_[a.index()].push_back(LinkId(i));
    if (b.valid() && b != a) links_of_node_[b.index()].push_back(LinkId(i));
    joined_directly |= a.valid() && b.valid() && a != b;
  }
  // What a node looks like from inside; ends outside of all nodes keep their identity. Where links
  // join nodes without a network between, every node is a class of its own.
  std::map<std::vector<double>, int64_t> first_role;
  for (size_t node = 0; node < nodes; ++node) {
    std::vector<double> look = {machine.nodes[node].peer_to_peer ? 1.0 : 0.0,
                                joined_directly ? static_cast<double>(node) : -1.0};
    const auto end = [&](EndpointId id) {
      return rank[id.index()] >= 0 ? static_cast<double>(rank[id.index()])
                                   : -1.0 - static_cast<double>(id.value);
    };
    for (size_t endpoint : endpoints[node])
      look.push_back(static_cast<double>(machine.endpoints[endpoint].kind));
    for (LinkId id : links_of_node_[node]) {
      const Link& link = machine[id];
      look.insert(look.end(), {end(link.a), end(link.b), link.bandwidth.value, link.latency.value,
                               link.full_duplex ? 1.0 : 0.0});
    }
    const auto [found, fresh] = first_role.try_emplace(std::move(look), roles_);
    if (fresh) roles_ += static_cast<int64_t>(endpoints[node].size());
    for (size_t endpoint : endpoints[node]) role_[endpoint] = found->second + rank[endpoint];
  }
  for (size_t i = 0; i < machine.endpoints.size(); ++i)
    if (rank[i] < 0) role_[i] = roles_++;
}

RouteTable::Known RouteTable::search(EndpointId from, EndpointId to) const {
  const Route route = find_route(machine_, from, to);
  const auto place_in = [&](NodeId node, LinkId link) {
    if (!node.valid()) return int64_t{-1};
    const auto& links = links_of_node_[node.index()];
    const auto at = std::lower_bound(links.begin(), links.end(), link);
    return at != links.end() && *at == link ? static_cast<int64_t>(at - links.begin()) : -1;
  };
  Known known;
  known.latency = route.latency;
  known.staged = route.staged;
  for (const Hop& hop : route.hops) {
    const int64_t at_from = place_in(machine_[from].node, hop.link);
    const int64_t at_to = place_in(machine_[to].node, hop.link);
    if (at_from >= 0)
      known.hops.push_back(
          {RouteView::Side::From, LinkId(static_cast<size_t>(at_from)), hop.forward});
    else if (at_to >= 0)
      known.hops.push_back({RouteView::Side::To, LinkId(static_cast<size_t>(at_to)), hop.forward});
    else
      known.hops.push_back({RouteView::Side::Fixed, hop.link, hop.forward});
  }
  return known;
}

RouteView RouteTable::find(EndpointId from, EndpointId to) {
  const NodeId source = machine_[from].node, target = machine_[to].node;
  const int64_t inside = source == target ? 1 : 0;
  const int64_t key = (role_[from.index()] * roles_ + role_[to.index()]) * 2 + inside;
  const auto [found, fresh] = index_.try_emplace(key, known_.size());
  if (fresh) known_.push_back(search(from, to));
  const Known& known = known_[found->second];
  RouteView view;
  view.hops_ = &known.hops;
  if (source.valid()) view.from_ = &links_of_node_[source.index()];
  if (target.valid()) view.to_ = &links_of_node_[target.index()];
  view.latency_ = known.latency;
  view.staged_ = known.staged;
  return view;
}

}  // namespace windlass
