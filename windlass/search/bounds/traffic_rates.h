// How fast traffic moves alone, and several at a time: the rates of the simulator
// (sim/fair_share.h), each worked out once.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "windlass/sim/simulate.h"

namespace windlass {

class TrafficRates {
 public:
  explicit TrafficRates(const Machine& machine) : machine_(machine) {}

  struct Flow {
    Nanoseconds latency = 0;  // before the volume; at least 1 if there is none
    int64_t volume = 0;       // in the units of FairShare; 0: nothing is shared
    int32_t links = -1;       // what it loads: equal ones have equal rates
    int64_t rate = 0;         // alone
    Nanoseconds alone = 0;    // latency and volume
    bool known = false;
    bool possible = true;  // the simulator takes it
  };

  // `all` only grows. The reference stays valid.
  const Flow& flow(int32_t traffic, const std::vector<Traffic>& all) {
    const auto at = static_cast<size_t>(traffic);
    return at < flows_.size() && flows_[at].known ? flows_[at] : find_flow(at, all);
  }
  // The rates of flows that are under way at the same time, by their links. Valid until the next
  // call.
  const int64_t* together(std::span<const int32_t> links) {
    if (links.size() != 2) return find_rates(links);
    const auto a = static_cast<size_t>(links[0]), b = static_cast<size_t>(links[1]);
    const bool known = a < pairs_.size() && b < pairs_[a].size() && pairs_[a][b][0] > 0;
    return known ? pairs_[a][b].data() : find_pair(a, b);
  }

 private:
  using Loads = std::vector<std::pair<LinkDirection, int64_t>>;  // with weights
  const Flow& find_flow(size_t at, const std::vector<Traffic>& all);
  const int64_t* find_pair(size_t a, size_t b);
  const int64_t* find_rates(std::span<const int32_t> links);

  const Machine& machine_;
  std::deque<Flow> flows_;            // by traffic
  std::map<Loads, int32_t> links_;    // by what is loaded
  std::vector<Traffic> models_;       // one that loads them
  std::vector<int64_t> rates_alone_;  // parallel
  std::vector<std::vector<std::array<int64_t, 2>>> pairs_;
  std::map<std::vector<int32_t>, std::vector<int64_t>> more_;  // of three and more
};

}  // namespace windlass
