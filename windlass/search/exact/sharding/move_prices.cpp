#include "windlass/search/exact/sharding/move_prices.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

namespace windlass {
namespace {

double nanoseconds(double seconds) { return std::nearbyint(seconds * 1e9); }

}  // namespace

MovePrices::MovePrices(const Machine& machine, Tables& tables, int32_t group)
    : machine_(machine), tables_(tables), group_(group), members_(tables.group(group).size()) {
  for (const Link& link : machine.links)
    for (int direction = 0; direction < 2; ++direction)
      seconds_per_byte_.push_back(1 / link.bandwidth.value);
  loads_.resize(seconds_per_byte_.size(), 0);
  least_seconds_per_byte_.resize(members_, std::numeric_limits<double>::infinity());
  RouteTable routes(machine);
  const std::vector<DeviceId>& devices = tables.group(group);
  for (DeviceId a : devices)
    for (size_t target = 0; target < members_; ++target) {
      const DeviceId b = devices[target];
      RouteOf& route = routes_.emplace_back();
      route.first = route.last = static_cast<uint32_t>(directions_.size());
      if (a == b) continue;
      const RouteView view = routes.find(machine[a].endpoint, machine[b].endpoint);
      for (size_t i = 0; i < view.hops(); ++i) {
        const Hop hop = view.hop(i);
        const bool forward = hop.forward || !machine[hop.link].full_duplex;
        directions_.push_back(static_cast<uint32_t>(2 * hop.link.index() + (forward ? 1 : 0)));
      }
      route.last = static_cast<uint32_t>(directions_.size());
      double& least = least_seconds_per_byte_[target];
      if (route.first < route.last) least = std::min(least, seconds_per_byte_[directions_.back()]);
      const Seconds staging = view.staged() ? kStagingCost : Seconds(0);
      route.latency = (kCopyStart + view.latency() + staging).value;
    }
}

double MovePrices::time_of(int32_t traffic) {
  if (traffic < 0) return 0;
  const auto at = static_cast<size_t>(traffic);
  if (times_.size() <= at) times_.resize(tables_.traffics.size(), -1);
  if (times_[at] < 0) times_[at] = nanoseconds(time_alone(machine_, tables_.traffics[at]).value);
  return times_[at];
}

int32_t MovePrices::id_of(const TensorType& type) {
  if (last_type_id_ >= 0 && last_type_ == type) return last_type_id_;
  const auto next = static_cast<int32_t>(type_ids_.size());
  last_type_ = type;
  return last_type_id_ = type_ids_.try_emplace({type.shape, type.dtype}, next).first->second;
}

MovePrices::Steps& MovePrices::steps_of(const TensorType& type, int32_t from, int32_t to) {
  const auto [known, fresh] = steps_.try_emplace({id_of(type), from, to});
  Steps& steps = known->second;
  if (!fresh) return steps;
  const RedistributionOutline plan =
      outline(type.shape, tables_.layout(from), tables_.layout(to), static_cast<int64_t>(members_));
  for (const Move& move : plan.collectives)
    steps.collectives += time_of(tables_.collective(
        move.collective, group_, move.digits, Bytes(move.elements * element_bytes(type.dtype))));
  steps.pairwise = plan.pairwise;
  if (!plan.pairwise) return steps;
  steps.now = tables_.intern(plan.now);
  steps.to = tables_.intern(plan.to);
  return steps;
}

double MovePrices::time(const TensorType& type, int32_t from, int32_t to) {
  if (from == to || from < 0 || to < 0) return 0;
  Steps& steps = steps_of(type, from, to);
  if (!steps.pairwise) return steps.collectives;
  if (steps.copied < 0) steps.copied = copy_time(type, steps);
  return steps.collectives + steps.copied;
}

double MovePrices::least_time(const TensorType& type, int32_t from, int32_t to) {
  if (from == to || from < 0 || to < 0) return 0;
  Steps& steps = steps_of(type, from, to);
  if (!steps.pairwise) return steps.collectives;
  if (steps.least < 0)
    steps.least =
        least_copy_time(type, pieces_of(type.shape, steps.now), pieces_of(type.shape, steps.to));
  return steps.collectives + steps.least;
}

double MovePrices::least_copy_time(const TensorType& type, const Pieces& from,
                                   const Pieces& to) const {
  double slowest = 0;
  for (size_t m = 0; m < members_; ++m) {
    double wanted = 1, held = 1;
    for (size_t a = 0; a < from.ranges.size(); ++a) {
      const Range& want = to.ranges[a][static_cast<size_t>(to.indices[m][a])];
      const Range& has = from.ranges[a][static_cast<size_t>(from.indices[m][a])];
      wanted *= static_cast<double>(want.size());
      held *= static_cast<double>(
          std::max<int64_t>(0, std::min(has.end, want.end) - std::max(has.begin, want.begin)));
    }
    slowest = std::max(slowest, (wanted - held) * least_seconds_per_byte_[m]);
  }
  return std::floor(slowest * static_cast<double>(element_bytes(type.dtype)) * 1e9);
}

const MovePrices::Pieces& MovePrices::pieces_of(const Shape& shape, int32_t id) {
  const Layout& layout = tables_.layout(id);
  const auto [entry, fresh] = pieces_.try_emplace({shape, id});
  Pieces& pieces = entry->second;
  if (!fresh) return pieces;
  const size_t rank = shape.size();
  pieces.ranges.resize(rank);
  for (size_t m = 0; m < members_; ++m) {
    const Box box = box_of(layout, shape, static_cast<int64_t>(m));
    std::vector<int32_t>& index = pieces.indices.emplace_back();
    for (size_t a = 0; a < rank; ++a) {
      std::vector<Range>& ranges = pieces.ranges[a];
      const auto at = std::ranges::find(ranges, box[a]);
      index.push_back(static_cast<int32_t>(at - ranges.begin()));
      if (at == ranges.end()) ranges.push_back(box[a]);
    }
  }
  int64_t count = 1;
  pieces.strides.resize(rank);
  for (size_t a = rank; a-- > 0;) {
    pieces.strides[a] = count;
    count *= static_cast<int64_t>(pieces.ranges[a].size());
  }
  pieces.holders.resize(static_cast<size_t>(count));
  for (size_t m = 0; m < members_; ++m) {
    int64_t piece = 0;
    for (size_t a = 0; a < rank; ++a) piece += pieces.indices[m][a] * pieces.strides[a];
    pieces.holders[static_cast<size_t>(piece)].push_back(static_cast<int32_t>(m));
  }
  return pieces;
}

double MovePrices::copy_time(const TensorType& type, const Steps& steps) {
  Layout from = tables_.layout(steps.now), to = tables_.layout(steps.to);
  Shape shape = type.shape;
  double scale = static_cast<double>(element_bytes(type.dtype));
  for (size_t a = 0; a < shape.size(); ++a) {
    int64_t parts[2] = {1, 1};
    bool plain = true;
    for (Layout* layout : {&from, &to})
      for (const Digit& digit : layout->digits) {
        if (digit.kind != Digit::Kind::Axis || static_cast<size_t>(digit.axis) != a) continue;
        parts[layout == &from ? 0 : 1] *= digit.parts;
        plain = plain && digit.blocks == 1 && digit.loop_size == shape[a] &&
                digit.map.stride == 1 && digit.map.window == 1 && digit.map.offset == 0 &&
                digit.map.blocks == 1;
      }
    const int64_t least = std::lcm(parts[0], parts[1]);
    if (!plain || shape[a] % least != 0) continue;
    for (Layout* layout : {&from, &to})
      for (Digit& digit : layout->digits)
        if (digit.kind == Digit::Kind::Axis && static_cast<size_t>(digit.axis) == a)
          digit.loop_size = least;
    scale *= static_cast<double>(shape[a] / least);
    shape[a] = least;
  }
  const int32_t small_from = tables_.intern(from), small_to = tables_.intern(to);
  const auto [known, fresh] = copies_.try_emplace({shape, small_from, small_to});
  if (fresh) known->second = copy_time(pieces_of(shape, small_from), pieces_of(shape, small_to));
  return nanoseconds(known->second.latency + scale * known->second.seconds_per_byte);
}

void MovePrices::load(size_t from, size_t to, double elements) {
  const RouteOf& route = routes_[from * members_ + to];
  latency_ = std::max(latency_, route.latency);
  for (uint32_t i = route.first; i < route.last; ++i) {
    const uint32_t direction = directions_[i];
    if (loads_[direction] == 0) touched_.push_back(direction);
    loads_[direction] += elements;
  }
}

// For each member, the source pieces that overlap what it wants, from the holder nearest in number.
MovePrices::CopyTime MovePrices::copy_time(const Pieces& from, const Pieces& to) {
  const size_t rank = from.ranges.size();
  struct Overlap {
    int64_t offset;  // of the source piece along this axis
    double length;
  };
  // By axis and range of the target.
  std::vector<std::vector<std::vector<Overlap>>> overlaps(rank);
  for (size_t a = 0; a < rank; ++a)
    for (const Range& wanted : to.ranges[a]) {
      auto& list = overlaps[a].emplace_back();
      for (size_t i = 0; i < from.ranges[a].size(); ++i) {
        const Range& has = from.ranges[a][i];
        const int64_t length = std::min(has.end, wanted.end) - std::max(has.begin, wanted.begin);
        if (length > 0)
          list.push_back({static_cast<int64_t>(i) * from.strides[a], static_cast<double>(length)});
      }
    }
  latency_ = 0;
  for (size_t m = 0; m < members_; ++m) {
    const auto visit = [&](auto&& self, size_t axis, int64_t piece, double elements) -> void {
      if (axis < rank) {
        for (const Overlap& o : overlaps[axis][static_cast<size_t>(to.indices[m][axis])])
          self(self, axis + 1, piece + o.offset, elements * o.length);
        return;
      }
      const std::vector<int32_t>& list = from.holders[static_cast<size_t>(piece)];
      if (list.empty()) return;
      const auto own = static_cast<int32_t>(m);
      const auto above = std::ranges::lower_bound(list, own);
      int32_t holder = 0;
      if (above == list.begin())
        holder = *above;
      else if (above == list.end() || own - *(above - 1) <= *above - own)
        holder = *(above - 1);
      else
        holder = *above;
      if (holder != own) load(static_cast<size_t>(holder), m, elements);
    };
    visit(visit, 0, 0, 1);
  }
  double slowest = 0;
  for (uint32_t direction : touched_) {
    slowest = std::max(slowest, loads_[direction] * seconds_per_byte_[direction]);
    loads_[direction] = 0;
  }
  touched_.clear();
  return {latency_, slowest};
}

}  // namespace windlass
