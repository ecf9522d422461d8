#include "windlass/search/bounds/traffic_rates.h"

#include <algorithm>

#include "windlass/sim/fair_share.h"

namespace windlass {
namespace {

// Rates of traffic that is under way together.
std::vector<int64_t> rates_of(const Machine& machine, const std::vector<Traffic>& all) {
  TaskGraph graph;
  graph.traffics = all;
  share_links(graph, machine);
  FairShare shares;
  shares.reset(graph.links, all.size());
  for (size_t i = 0; i < all.size(); ++i)
    shares.join(static_cast<uint32_t>(i), all[i].volume.value, graph.loads[i]);
  shares.settle(0);
  std::vector<int64_t> rates;
  for (size_t i = 0; i < all.size(); ++i) rates.push_back(shares.rate(static_cast<uint32_t>(i)));
  return rates;
}

}  // namespace

const TrafficRates::Flow& TrafficRates::find_flow(size_t at, const std::vector<Traffic>& all) {
  if (flows_.size() <= at) flows_.resize(all.size());
  const Traffic& traffic = all[at];
  Flow& flow = flows_[at];
  flow.known = true;
  flow.latency = latency_of(traffic);
  Loads loads;
  for (const LinkLoad& load : traffic.loads)
    if (load.bytes.value > 0) loads.emplace_back(load.direction, load_weight(traffic, load));
  flow.possible = traffic.volume.value < FairShare::kLargestVolume;
  if (loads.empty() || traffic.volume.value <= 0 || !flow.possible) {
    flow.alone = flow.latency = std::max<Nanoseconds>(1, flow.latency);
    return flow;
  }
  const auto [entry, fresh] = links_.try_emplace(std::move(loads), -1);
  if (fresh) {
    entry->second = static_cast<int32_t>(models_.size());
    models_.push_back(traffic);
    rates_alone_.push_back(rates_of(machine_, {traffic})[0]);
  }
  flow.links = entry->second;
  flow.rate = rates_alone_[static_cast<size_t>(flow.links)];
  flow.volume = traffic.volume.value << FairShare::kFractionBits;
  flow.alone = flow.latency + (flow.volume + flow.rate - 1) / flow.rate;
  return flow;
}

const int64_t* TrafficRates::find_pair(size_t a, size_t b) {
  if (pairs_.size() <= a) pairs_.resize(models_.size());
  if (pairs_[a].size() <= b) pairs_[a].resize(models_.size());
  const std::vector<int64_t> rates = rates_of(machine_, {models_[a], models_[b]});
  pairs_[a][b] = {rates[0], rates[1]};
  return pairs_[a][b].data();
}

const int64_t* TrafficRates::find_rates(std::span<const int32_t> links) {
  std::vector<int64_t>& rates = more_[{links.begin(), links.end()}];
  if (rates.empty()) {
    std::vector<Traffic> all;
    for (int32_t index : links) all.push_back(models_[static_cast<size_t>(index)]);
    rates = rates_of(machine_, all);
  }
  return rates.data();
}

}  // namespace windlass
