#include "windlass/sim/fair_share.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr double kUnitsPerByte = int64_t{1} << FairShare::kFractionBits;
constexpr double kLargestCapacity = int64_t{1} << 50;

int64_t capacity_of(BytesPerSecond bandwidth) {
  const double units = std::round(bandwidth.value * kUnitsPerByte / 1e9);
  return static_cast<int64_t>(std::clamp(units, 1.0, kLargestCapacity));
}

// left * kLoadUnit / weights. Weights are mostly a power of two: a few whole loads.
int64_t offer_of(int64_t left, int64_t weights) {
  const auto bits = static_cast<uint64_t>(weights);
  if ((bits & (bits - 1)) == 0) return left * kLoadUnit >> std::countr_zero(bits);
  return left * kLoadUnit / weights;
}

}  // namespace

void FairShare::reset(std::span<const SharedLink> links, size_t slots) {
  flows_.assign(slots, {});
  links_.resize(links.size());
  for (size_t i = 0; i < links.size(); ++i) {
    links_[i].capacity = capacity_of(links[i].bandwidth);
    links_[i].seen = 0;
    links_[i].members.clear();
  }
  touched_.clear();
  round_ = 0;
  active_ = 0;
}

void FairShare::join(uint32_t slot, int64_t volume, std::span<const SharedLoad> loads) {
  ensure(volume > 0, "traffic without a volume");
  if (volume >= kLargestVolume)
    fail_unsupported(
        "a transfer of {} bytes at once is more than can be simulated; take a smaller batch",
        volume);
  Flow& flow = flows_[slot];
  flow.loads = loads;
  flow.remaining = volume << kFractionBits;
  flow.rate = 0;
  ++active_;
  newest_ = slot;
  for (const SharedLoad& load : loads) {
    links_[static_cast<size_t>(load.link)].members.push_back({slot, load.weight});
    touched_.push_back(load.link);
  }
}

void FairShare::leave(uint32_t slot) {
  --active_;
  for (const SharedLoad& load : flows_[slot].loads) {
    auto& members = links_[static_cast<size_t>(load.link)].members;
    const auto at = std::find_if(members.begin(), members.end(),
                                 [&](const Member& member) { return member.slot == slot; });
    *at = members.back();
    members.pop_back();
    if (!members.empty()) touched_.push_back(load.link);
  }
}

void FairShare::visit(int32_t link) {
  Link& at = links_[static_cast<size_t>(link)];
  if (at.seen == round_ || at.members.empty()) return;
  at.seen = round_;
  component_.push_back(link);
}

void FairShare::gather() {
  ++round_;
  component_.clear();
  connected_.clear();
  for (int32_t link : touched_) visit(link);
  touched_.clear();
  for (size_t i = 0; i < component_.size(); ++i) {
    for (const Member& member : links_[static_cast<size_t>(component_[i])].members) {
      Flow& flow = flows_[member.slot];
      if (flow.seen == round_) continue;
      flow.seen = round_;
      connected_.push_back(member.slot);
      for (const SharedLoad& load : flow.loads) visit(load.link);
    }
  }
}

void FairShare::fill() {
  for (uint32_t slot : connected_) flows_[slot].next_rate = 0;
  for (int32_t index : component_) {
    Link& link = links_[static_cast<size_t>(index)];
    link.left = link.capacity;
    link.unfrozen = 0;
    for (const Member& member : link.members) link.unfrozen += member.weight;
    link.offer = offer_of(link.left, link.unfrozen);
  }
  for (size_t frozen = 0; frozen < connected_.size();) {
    int32_t least = -1;
    int64_t offer = std::numeric_limits<int64_t>::max();
    for (int32_t index : component_) {
      const Link& link = links_[static_cast<size_t>(index)];
      if (link.unfrozen == 0) continue;
      if (link.offer < offer || (link.offer == offer && index < least)) {
        offer = link.offer;
        least = index;
      }
    }
    const int64_t rate = std::max<int64_t>(1, offer);
    for (const Member& member : links_[static_cast<size_t>(least)].members) {
      Flow& flow = flows_[member.slot];
      if (flow.next_rate != 0) continue;
      flow.next_rate = rate;
      ++frozen;
      for (const SharedLoad& load : flow.loads) {
        Link& link = links_[static_cast<size_t>(load.link)];
        link.left = std::max<int64_t>(0, link.left - rate * load.weight / kLoadUnit);
        link.unfrozen -= load.weight;
        link.offer = -1;
      }
    }
    for (int32_t index : component_) {
      Link& link = links_[static_cast<size_t>(index)];
      if (link.offer < 0 && link.unfrozen > 0) link.offer = offer_of(link.left, link.unfrozen);
    }
  }
}

int64_t FairShare::rate_alone(const Flow& flow) const {
  int64_t rate = std::numeric_limits<int64_t>::max();
  for (const SharedLoad& load : flow.loads) {
    rate = std::min(rate, offer_of(links_[static_cast<size_t>(load.link)].capacity, load.weight));
  }
  return std::max<int64_t>(1, rate);
}

void FairShare::set_rate(uint32_t slot, int64_t rate, int64_t now) {
  Flow& flow = flows_[slot];
  if (flow.rate == rate) return;
  flow.remaining -= flow.rate * (now - flow.since);
  flow.since = now;
  flow.rate = rate;
  due_.push_back({slot, now + (flow.remaining + rate - 1) / rate});
}

std::span<const FairShare::Due> FairShare::settle(int64_t now) {
  due_.clear();
  if (touched_.empty()) return due_;
  if (active_ == 1 && flows_[newest_].rate == 0) {  // the one that has just joined
    touched_.clear();
    set_rate(newest_, rate_alone(flows_[newest_]), now);
    return due_;
  }
  gather();
  if (connected_.size() == 1) {
    const uint32_t slot = connected_.front();
    set_rate(slot, rate_alone(flows_[slot]), now);
    return due_;
  }
  fill();
  for (uint32_t slot : connected_) set_rate(slot, flows_[slot].next_rate, now);
  return due_;
}

}  // namespace windlass
