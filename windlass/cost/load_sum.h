// Adds up what transfers put on links.
#pragma once

#include <vector>

#include "windlass/cost/routes.h"
#include "windlass/cost/traffic.h"

namespace windlass {

class LoadSum {
 public:
  explicit LoadSum(const Machine& machine);

  // Bytes, which may be fractions of a chunk, from one endpoint to another. Returns the latency of
  // the route, staging included, without any software cost of a step.
  Seconds send(EndpointId from, EndpointId to, double bytes);
  RouteView route(EndpointId from, EndpointId to) { return routes_.find(from, to); }

  // Loads and volume so far, and starts anew; routes are kept.
  Traffic take(Seconds latency, Algorithm algorithm);

 private:
  const Machine& machine_;
  RouteTable routes_;
  std::vector<double> loads_;  // 2 i: link i backward; 2 i + 1: forward
  std::vector<double> sent_;   // by endpoint
};

}  // namespace windlass
