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
    : Holdings(training, machine, tasks), training_(training), tasks_(tasks) {}

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
      const int64_t part = partial_place(lies, member);
      combine = partial_combine(lies);
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
