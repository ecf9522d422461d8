#include "windlass/cost/load_sum.h"

#include <algorithm>
#include <cmath>

namespace windlass {
namespace {

// Sums of fractions, such as eight times 1/8, are whole again.
Bytes whole_bytes(double bytes) {
  const double nearest = std::round(bytes);
  const bool whole = std::abs(bytes - nearest) <= 1e-9 * std::max(1.0, bytes);
  return Bytes(static_cast<int64_t>(whole ? nearest : std::ceil(bytes)));
}

}  // namespace

LoadSum::LoadSum(const Machine& machine)
    : machine_(machine),
      routes_(machine),
      loads_(2 * machine.links.size()),
      sent_(machine.endpoints.size()) {}

Seconds LoadSum::send(EndpointId from, EndpointId to, double bytes) {
  const RouteView view = routes_.find(from, to);
  for (size_t i = 0; i < view.hops(); ++i) {
    const Hop hop = view.hop(i);
    const bool forward = hop.forward || !machine_[hop.link].full_duplex;
    loads_[2 * hop.link.index() + (forward ? 1 : 0)] += bytes;
  }
  sent_[from.index()] += bytes;
  return view.latency() + (view.staged() ? kStagingCost : Seconds(0));
}

Traffic LoadSum::take(Seconds latency, Algorithm algorithm) {
  Traffic traffic;
  traffic.latency = latency;
  traffic.algorithm = algorithm;
  for (size_t i = 0; i < loads_.size(); ++i) {
    if (loads_[i] <= 0) continue;
    traffic.loads.push_back({{LinkId(i / 2), i % 2 == 1}, whole_bytes(loads_[i])});
    loads_[i] = 0;
  }
  traffic.volume = whole_bytes(*std::max_element(sent_.begin(), sent_.end()));
  std::fill(sent_.begin(), sent_.end(), 0);
  return traffic;
}

}  // namespace windlass
