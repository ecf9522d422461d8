// Routes of a machine, found once for all pairs of ends that look alike.
#pragma once

#include <cstdint>
#include <deque>
#include <unordered_map>
#include <vector>

#include "windlass/machine/machine.h"

namespace windlass {

// A known route, on links of the nodes it was asked for. Valid as long as its table.
class RouteView {
 public:
  size_t hops() const { return hops_->size(); }
  Hop hop(size_t i) const {
    const Place& place = (*hops_)[i];
    if (place.side == Side::Fixed) return {place.link, place.forward};
    const auto& links = *(place.side == Side::From ? from_ : to_);
    return {links[place.link.index()], place.forward};
  }
  Seconds latency() const { return latency_; }
  bool staged() const { return staged_; }

 private:
  friend class RouteTable;
  enum class Side : uint8_t { From, To, Fixed };
  // A link by its rank among the links of the node on one side, or by its id.
  struct Place {
    Side side;
    LinkId link;
    bool forward;
  };
  const std::vector<Place>* hops_ = nullptr;
  const std::vector<LinkId>* from_ = nullptr;
  const std::vector<LinkId>* to_ = nullptr;
  Seconds latency_;
  bool staged_ = false;
};

// What find_route() says, much faster on machines of many equal nodes: nodes with equal links and
// endpoints form a class, and a route between two nodes is that between two others of their
// classes, link by link. Refers to the machine. Not shared between threads.
class RouteTable {
 public:
  explicit RouteTable(const Machine& machine);

  RouteView find(EndpointId from, EndpointId to);

 private:
  struct Known {
    std::vector<RouteView::Place> hops;
    Seconds latency;
    bool staged = false;
  };
  Known search(EndpointId from, EndpointId to) const;

  const Machine& machine_;
  std::vector<std::vector<LinkId>> links_of_node_;
  std::vector<int64_t> role_;  // by endpoint: equal for those at the same place of equal nodes
  int64_t roles_ = 0;
  std::deque<Known> known_;
  std::unordered_map<int64_t, size_t> index_;
};

}  // namespace windlass
