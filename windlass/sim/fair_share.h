// Traffic under way and the rates at which it advances: max-min fair shares of links in integers,
// as simulate.h states them.
//
// Rates are computed anew only for flows connected, through links they share, with a flow that came
// or went. That is exact: freezing a flow changes what is left of its own links only, so a link's
// offers depend on the flows of its component alone, and the order in which progressive filling
// takes the links of one component (least offer, then lowest link) is the same whether or not links
// of other components are taken in between. A flow whose rate stays the same ends when it would
// have: its remainder falls by rate x time exactly.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "windlass/task/task_graph.h"

namespace windlass {

// Flows are named by slots, each free or taken by one flow.
class FairShare {
 public:
  static constexpr int kFractionBits = 20;  // of a byte
  static constexpr int64_t kLargestVolume = int64_t{1} << 42;

  struct Due {
    uint32_t slot = 0;
    int64_t end = 0;  // the first whole nanosecond when the volume is done at the present rate
  };

  void reset(std::span<const SharedLink> links, size_t slots);

  // `loads` is not empty and stays where it is until the flow leaves. 0 < volume < 2^42 bytes.
  void join(uint32_t slot, int64_t volume, std::span<const SharedLoad> loads);
  void leave(uint32_t slot);

  // To be called once at each moment when flows joined or left, after all of them. Flows whose end
  // changed, new ones included; valid until the next call.
  std::span<const Due> settle(int64_t now);
  // Of a flow, since it was settled last: what is left of its volume, in units.
  int64_t remaining(uint32_t slot, int64_t now) const {
    const Flow& flow = flows_[slot];
    return flow.remaining - flow.rate * (now - flow.since);
  }
  // As settled last, in units a nanosecond.
  int64_t rate(uint32_t slot) const { return flows_[slot].rate; }

 private:
  struct Flow {
    std::span<const SharedLoad> loads;
    int64_t remaining = 0;  // at `since`
    int64_t since = 0;
    int64_t rate = 0;  // 0: has just joined
    int64_t next_rate = 0;
    uint32_t seen = 0;
  };
  struct Member {
    uint32_t slot = 0;
    int64_t weight = 0;
  };
  struct Link {
    int64_t capacity = 0;
    int64_t left = 0;
    int64_t unfrozen = 0;  // sum of weights
    int64_t offer = 0;
    uint32_t seen = 0;
    std::vector<Member> members;
  };

  void gather();
  void fill();
  void set_rate(uint32_t slot, int64_t rate, int64_t now);
  int64_t rate_alone(const Flow& flow) const;
  void visit(int32_t link);

  std::vector<Flow> flows_;
  std::vector<Link> links_;
  std::vector<int32_t> touched_;     // links whose flows changed
  std::vector<int32_t> component_;   // links reached from them
  std::vector<uint32_t> connected_;  // flows on those
  std::vector<Due> due_;
  uint32_t round_ = 0;
  size_t active_ = 0;    // flows
  uint32_t newest_ = 0;  // flow that joined last
};

}  // namespace windlass
