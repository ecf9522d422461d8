#include "windlass/task/holdings.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {

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

int64_t partial_place(const Layout& layout, int64_t member) {
  int64_t inner = 1, place = 0;
  for (size_t d = layout.digits.size(); d-- > 0; inner *= layout.digits[d].parts)
    if (layout.digits[d].kind == Digit::Kind::Partial)
      place += member / inner % layout.digits[d].parts * inner;
  return place;
}

CombineFn partial_combine(const Layout& layout) {
  for (const Digit& digit : layout.digits)
    if (digit.kind == Digit::Kind::Partial) return digit.combine;
  return CombineFn::Sum;
}

Layout without_partial(const Layout& layout, const std::vector<MemberDigit>& digits) {
  std::vector<Digit> result = layout.digits;
  int64_t inner = 1;
  for (size_t d = result.size(); d-- > 0;) {
    const MemberDigit here = {inner, result[d].parts};
    inner *= result[d].parts;
    if (result[d].kind == Digit::Kind::Partial && std::ranges::find(digits, here) != digits.end())
      result[d] = Digit{.parts = result[d].parts};
  }
  return layout_from(result);
}

Layout layout_after(const TaskGraph& tasks, const Movement& movement, const Layout& before) {
  if (movement.to_layout >= 0) return tasks.layouts[static_cast<size_t>(movement.to_layout)];
  if (movement.collective == Collective::AllGather) return before;
  return without_partial(before, tasks.digit_sets[static_cast<size_t>(movement.digits)]);
}

Holdings::Holdings(const TrainingGraph& training, const Machine& machine, const TaskGraph& tasks)
    : training_(training), machine_(machine), tasks_(tasks) {
  if (!tasks.micro_batches.empty()) samples_ = find_samples(training);
}

Region Holdings::region(const Layout& layout, TensorId tensor, int32_t micro_batch,
                        int64_t member) const {
  const int32_t axis =
      micro_batch < 0 || tasks_.micro_batches.empty() ? -1 : samples_.axis[tensor.index()];
  if (axis < 0) return region_of(layout, shape(tensor, micro_batch), member);
  const auto at = static_cast<size_t>(axis);
  Region region = region_of(layout, shape(tensor), member);
  region[at].range = samples_.part(region[at].size, region[at].range,
                                   tasks_.micro_batches[static_cast<size_t>(micro_batch)]);
  return region;
}

const Layout& Holdings::layout(BufferId id) const {
  const auto found = changed_.find(id.value);
  if (found != changed_.end()) return found->second;
  return tasks_.layouts[static_cast<size_t>(tasks_[id].layout)];
}

const Holdings::Members& Holdings::team_members(TeamId team, int32_t group) const {
  const auto [entry, fresh] = members_.try_emplace({team.value, group});
  Members& made = entry->second;
  if (!fresh) return made;
  const auto& devices = tasks_.groups[static_cast<size_t>(group)];
  std::vector<std::pair<DeviceId, int64_t>> by_device;  // and members
  for (size_t m = 0; m < devices.size(); ++m)
    by_device.emplace_back(devices[m], static_cast<int64_t>(m));
  std::ranges::sort(by_device);
  made.order.assign(devices.size(), -1);
  made.device.assign(devices.size(), -1);
  const std::vector<DeviceId>& own = tasks_[team].devices;
  for (size_t d = 0; d < own.size(); ++d) {
    const auto found =
        std::ranges::lower_bound(by_device, own[d], {}, &std::pair<DeviceId, int64_t>::first);
    ensure(found != by_device.end() && found->first == own[d],
           "a team is not part of the group that its task names");
    made.list.push_back(found->second);
    made.device[static_cast<size_t>(found->second)] = static_cast<int64_t>(d);
  }
  std::ranges::sort(made.list);
  for (size_t i = 0; i < made.list.size(); ++i)
    made.order[static_cast<size_t>(made.list[i])] = static_cast<int64_t>(i);
  return made;
}

const Holdings::Members& Holdings::holders(BufferId id) const {
  const Buffer& held = tasks_[id];
  const TeamId team = tasks_[held.memory].team;
  return team_members(team.valid() ? team : held.team, held.group);
}

int64_t Holdings::key(BufferId id, int64_t member, int32_t share) const {
  const Buffer& held = tasks_[id];
  if (tasks_[held.memory].team.valid() || held.kind == BufferKind::Stash || held.of_each)
    return member;
  // One copy on a host for all members of the team there that want the same of it.
  const auto& devices = tasks_.groups[static_cast<size_t>(held.group)];
  const auto node = [&](int64_t m) { return machine_[devices[static_cast<size_t>(m)]].node; };
  const Shape& whole = shape(held.tensor, held.micro_batch);
  const auto& digits = tasks_.digit_sets[static_cast<size_t>(share)];
  const Region mine = region_of(layout(id), whole, member);
  const int64_t elements = element_count(local_shape(mine));
  const auto place = [&](int64_t m) { return partial_place(layout(id), m); };
  for (int64_t m : members(id))
    if (m < member && node(m) == node(member) && place(m) == place(member) &&
        region_of(layout(id), whole, m) == mine &&
        share_of(elements, digits, m) == share_of(elements, digits, member))
      return m;
  return member;
}

Range Holdings::share(BufferId id, int64_t member, int64_t elements) const {
  return share_of(elements, tasks_.digit_sets[static_cast<size_t>(tasks_[id].share)], member);
}

}  // namespace windlass
