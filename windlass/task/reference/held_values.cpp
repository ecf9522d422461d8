#include "windlass/task/reference/held_values.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "windlass/base/error.h"

namespace windlass::reference {
namespace {

// Two copies of the same element agree to so many digits.
constexpr double kSame = 1e-9;

bool differ(double a, double b) {
  return !(std::abs(a - b) <= kSame * std::max({1.0, std::abs(a), std::abs(b)}));
}

// For each axis, where in `from` the elements of `to` are; -1: nowhere.
std::vector<std::vector<int64_t>> places_in(const Region& from, const Region& to) {
  std::vector<std::vector<int64_t>> places(to.size());
  for (size_t a = 0; a < to.size(); ++a)
    for (int64_t i = 0; i < to[a].count(); ++i)
      places[a].push_back(from[a].to_local(to[a].to_whole(i)));
  return places;
}

}  // namespace

Region region_of(const Layout& layout, const Shape& shape, int64_t member) {
  const Box box = box_of(layout, shape, member);
  Region region;
  for (size_t a = 0; a < shape.size(); ++a) region.push_back({shape[a], box[a], 1});
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Axis)
      region[static_cast<size_t>(digit.axis)].blocks = digit.blocks;
  for (AxisPart& part : region)
    if (part.range.end < part.range.begin) part.range.end = part.range.begin;
  return region;
}

int64_t transfer(const Array& source, const Region& from, Array& target, const Region& to,
                 bool adds) {
  const auto places = places_in(from, to);
  const Shape from_shape = local_shape(from), to_shape = local_shape(to);
  int64_t count = 0;
  const auto total = static_cast<int64_t>(target.values.size());
  for (int64_t element = 0; element < total; ++element) {
    int64_t rest = element, at = 0, stride = 1;
    for (size_t a = to_shape.size(); a-- > 0 && at >= 0;) {
      const int64_t place = places[a][static_cast<size_t>(rest % to_shape[a])];
      rest /= to_shape[a];
      at = place < 0 ? -1 : at + place * stride;
      stride *= from_shape[a];
    }
    if (at < 0) continue;
    ++count;
    double& value = target.values[static_cast<size_t>(element)];
    value = source.values[static_cast<size_t>(at)] + (adds ? value : 0);
  }
  return count;
}

Array cut(const Array& source, const Region& from, const Region& to) {
  Array result(local_shape(to));
  const int64_t found = transfer(source, from, result, to);
  ensure(found == static_cast<int64_t>(result.values.size()),
         "a member is asked for elements that it does not have");
  return result;
}

HeldValues::HeldValues(const TrainingGraph& training, const Machine& machine,
                       const TaskGraph& tasks)
    : training_(training), machine_(machine), tasks_(tasks) {
  if (!tasks.micro_batches.empty()) samples_ = find_samples(training);
}

Region HeldValues::region(const Layout& layout, TensorId tensor, int32_t micro_batch,
                          int64_t member) const {
  const int32_t axis =
      micro_batch < 0 || tasks_.micro_batches.empty() ? -1 : samples_.axis[tensor.index()];
  if (axis < 0) return region_of(layout, shape(tensor), member);
  const auto at = static_cast<size_t>(axis);
  Region region = region_of(layout, shape(tensor), member);
  region[at].range = samples_.part(region[at].size, region[at].range,
                                   tasks_.micro_batches[static_cast<size_t>(micro_batch)]);
  return region;
}

const Layout& HeldValues::layout(BufferId id) const {
  const auto found = changed_.find(id.value);
  if (found != changed_.end()) return found->second;
  return tasks_.layouts[static_cast<size_t>(tasks_[id].layout)];
}

void HeldValues::set_layout(BufferId id, Layout layout) { changed_[id.value] = std::move(layout); }

std::vector<int64_t> HeldValues::members(TeamId team, int32_t group) const {
  const auto& devices = tasks_.groups[static_cast<size_t>(group)];
  std::vector<int64_t> result;
  for (DeviceId device : tasks_[team].devices) {
    const auto found = std::ranges::find(devices, device);
    ensure(found != devices.end(), "a team is not part of the group that its task names");
    result.push_back(found - devices.begin());
  }
  std::ranges::sort(result);
  return result;
}

std::vector<int64_t> HeldValues::members(BufferId id) const {
  const Buffer& held = tasks_[id];
  const TeamId team = tasks_[held.memory].team;
  return members(team.valid() ? team : held.team, held.group);
}

int64_t HeldValues::key(BufferId id, int64_t member, int32_t share) const {
  const Buffer& held = tasks_[id];
  if (tasks_[held.memory].team.valid() || held.kind == BufferKind::Stash) return member;
  // One copy on a host for all members of the team there that want the same of it.
  const auto& devices = tasks_.groups[static_cast<size_t>(held.group)];
  const auto node = [&](int64_t m) { return machine_[devices[static_cast<size_t>(m)]].node; };
  const Shape& whole = shape(held.tensor);
  const auto& digits = tasks_.digit_sets[static_cast<size_t>(share)];
  const Region mine = region_of(layout(id), whole, member);
  const int64_t elements = element_count(local_shape(mine));
  // Which of several partial results a member has.
  const auto place = [&](int64_t m) {
    int64_t inner = 1, found = 0;
    for (size_t d = layout(id).digits.size(); d-- > 0;) {
      const Digit& digit = layout(id).digits[d];
      if (digit.kind == Digit::Kind::Partial) found += m / inner % digit.parts * inner;
      inner *= digit.parts;
    }
    return found;
  };
  for (int64_t m : members(id))
    if (m < member && node(m) == node(member) && place(m) == place(member) &&
        region_of(layout(id), whole, m) == mine &&
        share_of(elements, digits, m) == share_of(elements, digits, member))
      return m;
  return member;
}

bool HeldValues::there(BufferId id, int64_t member) const {
  return held_.contains({id.value, key(id, member)});
}

HeldValues::Arrays& HeldValues::at(BufferId id, int64_t member) {
  const auto found = held_.find({id.value, key(id, member)});
  if (found == held_.end()) {
    const TensorId tensor = tasks_[id].tensor;
    const auto of = tensor.valid() ? training_.graph[tensor].name : "statistics";
    fail(ErrorKind::Internal, "buffer {} of \"{}\" holds nothing for member {}", id.value, of,
         member);
  }
  return found->second;
}

void HeldValues::put(BufferId id, int64_t member, Arrays arrays) {
  held_[{id.value, key(id, member)}] = std::move(arrays);
}

Range HeldValues::share(BufferId id, int64_t member, int64_t elements) const {
  return share_of(elements, tasks_.digit_sets[static_cast<size_t>(tasks_[id].share)], member);
}

HeldValues::Seen HeldValues::see(const Use& use, int64_t member) {
  const Buffer& held = tasks_[use.buffer];
  Seen seen = {at(use.buffer, member)[0], {}, held.tensor};
  if (held.share != 0) return seen;
  seen.region = region(use.buffer, member);
  std::vector<const View*> chain;
  for (int32_t v = use.view; v >= 0; v = chain.back()->of)
    chain.push_back(&tasks_.views[static_cast<size_t>(v)]);
  for (size_t i = chain.size(); i-- > 0;) {
    const View& view = *chain[i];
    Region part = region(tasks_.layouts[static_cast<size_t>(view.layout)], view.tensor,
                         held.micro_batch, member);
    if (view.tensor == seen.tensor) {
      seen.array = cut(seen.array, seen.region, part);
    } else {
      ensure(element_count(local_shape(part)) == static_cast<int64_t>(seen.array.values.size()),
             "a view has other elements than what it is a view of");
      seen.array.shape = local_shape(part);
    }
    seen.region = std::move(part);
    seen.tensor = view.tensor;
  }
  return seen;
}

Array HeldValues::assemble(const std::vector<BufferId>& buffers, size_t array,
                           const Shape& whole) const {
  Array result(whole);
  std::vector<bool> known(result.values.size(), false);
  Region all;
  for (int64_t size : whole) all.push_back({size, {0, size}, 1});
  // Members that hold different partial results of the same part.
  std::map<int64_t, Array> partial;
  CombineFn combine = CombineFn::Sum;
  for (BufferId id : buffers) {
    const Layout& lies = layout(id);
    for (int64_t member : members(id)) {
      const auto found = held_.find({id.value, key(id, member)});
      if (found == held_.end()) continue;
      const Region region = region_of(lies, whole, member);
      int64_t inner = 1, part = 0;
      for (size_t d = lies.digits.size(); d-- > 0; inner *= lies.digits[d + 0].parts) {
        if (lies.digits[d].kind != Digit::Kind::Partial) continue;
        part += member / inner % lies.digits[d].parts * inner;
        combine = lies.digits[d].combine;
      }
      const auto [entry, fresh] = partial.try_emplace(part, whole, std::nan(""));
      Array& sum = entry->second;
      Array there = found->second[array];
      Array piece(local_shape(region), std::nan(""));
      if (tasks_[id].share != 0) {
        const Range mine = share(id, member, static_cast<int64_t>(piece.values.size()));
        std::ranges::copy(there.values, piece.values.begin() + mine.begin);
      } else {
        piece.values = there.values;
      }
      Array seen(whole, std::nan(""));
      transfer(piece, region, seen, all);
      for (size_t i = 0; i < seen.values.size(); ++i) {
        if (std::isnan(seen.values[i])) continue;
        ensure(
            std::isnan(sum.values[i]) || !differ(sum.values[i], seen.values[i]),
            fmt::format("copies of \"{}\" differ at element {}: {} and {}",
                        training_.graph[tasks_[id].tensor].name, i, sum.values[i], seen.values[i]));
        sum.values[i] = seen.values[i];
      }
    }
  }
  for (auto& [part, sum] : partial)
    for (size_t i = 0; i < sum.values.size(); ++i) {
      ensure(!std::isnan(sum.values[i]),
             fmt::format("element {} of \"{}\" is nowhere", i,
                         training_.graph[tasks_[buffers[0]].tensor].name));
      double& value = result.values[i];
      if (!known[i])
        value = sum.values[i];
      else if (combine == CombineFn::Sum)
        value += sum.values[i];
      else
        value = combine == CombineFn::Max ? std::max(value, sum.values[i])
                                          : std::min(value, sum.values[i]);
      known[i] = true;
    }
  ensure(!partial.empty(), "a tensor is nowhere");
  return result;
}

}  // namespace windlass::reference
