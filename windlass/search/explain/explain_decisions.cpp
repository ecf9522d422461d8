// The main decisions of a plan, each turned the other way.

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/graph/micro_batch.h"
#include "windlass/search/explain/explain.h"
#include "windlass/strategy/baselines.h"

namespace windlass {

std::vector<Alternative> Explainer::decisions() {
  std::vector<Alternative> list;
  // Demand paging decides about memory itself.
  if (strategy_.virtual_memory) {
    Strategy planned = strategy_;
    planned.virtual_memory = false;
    add_unless_same(list, measured("memory", "no demand paging", planned));
  } else {
    add_saved(list);
    add_homes(list);
    add_movement(list);
  }
  add_turns(list);
  add_cuts(list);
  add_named(list);
  return list;
}

void Explainer::add_saved(std::vector<Alternative>& list) {
  std::vector<std::vector<MemoryAction>> seen = {strategy_.saved};
  const auto has = [&](MemoryAction action) {
    return std::ranges::find(strategy_.saved, action) != strategy_.saved.end();
  };
  const auto add = [&](const std::string& choice, const std::vector<MemoryAction>& saved) {
    // Two names for one thing are one choice.
    if (std::ranges::find(seen, saved) != seen.end()) return;
    seen.push_back(saved);
    Strategy changed = strategy_;
    changed.saved = saved;
    add_unless_same(list, measured("saved tensors", choice, changed));
  };
  // Data of the step has no producer and stays where it is.
  const auto replaced = [&](auto&& wanted, MemoryAction by) {
    std::vector<MemoryAction> saved = strategy_.saved;
    for (size_t s = 0; s < saved.size(); ++s)
      if (training_.saved[s].producer.valid() && wanted(saved[s])) saved[s] = by;
    return saved;
  };
  const auto is = [](MemoryAction wanted) {
    return [wanted](MemoryAction action) { return action == wanted; };
  };
  const auto any = [](MemoryAction) { return true; };
  const auto lossy = [](MemoryAction action) { return compressed_bits(action) > 0; };

  add("everything kept", replaced(any, MemoryAction::Keep));
  add("nothing gathered again", replaced(is(MemoryAction::Regather), MemoryAction::Keep));
  add("nothing recomputed", replaced(is(MemoryAction::Recompute), MemoryAction::Keep));
  add("nothing moved to the host", replaced(is(MemoryAction::Offload), MemoryAction::Keep));
  add("nothing compressed", replaced(lossy, MemoryAction::Keep));
  if (has(MemoryAction::Recompute))
    add("moved to the host instead of recomputed",
        replaced(is(MemoryAction::Recompute), MemoryAction::Offload));
  if (has(MemoryAction::Offload))
    add("recomputed instead of moved to the host",
        replaced(is(MemoryAction::Offload), MemoryAction::Recompute));
  add("everything moved to the host", replaced(any, MemoryAction::Offload));

  for (const auto& [policy, text] : {std::pair(RecomputePolicy::Full, "each block recomputed"),
                                     std::pair(RecomputePolicy::Sqrt,
                                               "recomputed between sqrt(n) "
                                               "checkpoints")}) {
    BaselineSpec spec = parse_baseline("single");
    spec.recompute = policy;
    spec.dp = 1;
    spec.micro_batches = 1;
    try {
      add(text,
          make_baseline(spec, training_, find_batch(problem_.network), problem_.machine).saved);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
    }
  }
}

void Explainer::add_homes(std::vector<Alternative>& list) {
  const auto add = [&](const std::string& choice, auto&& change) {
    Strategy changed = strategy_;
    for (Residency& weight : changed.weights) change(weight);
    if (changed.weights != strategy_.weights)
      add_unless_same(list, measured("weights", choice, changed));
  };
  const bool shared = std::ranges::any_of(
      strategy_.groups, [](const std::vector<DeviceId>& group) { return group.size() > 1; });
  if (shared) {
    const auto stages = [](const std::vector<Residency>& weights) {
      const auto [least, most] = std::ranges::minmax(weights, {}, &Residency::zero);
      return least.zero == most.zero
                 ? fmt::format("ZeRO stage {}", int{least.zero})
                 : fmt::format("ZeRO stages {} to {}", int{least.zero}, int{most.zero});
    };
    for (const int by : {-1, 1}) {
      std::vector<Residency> weights = strategy_.weights;
      const auto move = [by](Residency& weight) {
        weight.zero = static_cast<uint8_t>(std::clamp(int{weight.zero} + by, 0, 3));
      };
      std::ranges::for_each(weights, move);
      if (!weights.empty())
        add(fmt::format("{} instead of {}", stages(weights), stages(strategy_.weights)), move);
    }
  }
  add("all updated on the device", [](Residency& weight) { weight.host_update = false; });
  add("all updated on the host", [](Residency& weight) { weight.host_update = true; });
  add("all stay on the device", [](Residency& weight) { weight.host = false; });
  add("all rest in host memory", [](Residency& weight) { weight.host = true; });
}

void Explainer::add_movement(std::vector<Alternative>& list) {
  for (const bool up : {false, true}) {
    Strategy changed = strategy_;
    changed.bucket = Bytes(up ? 2 * strategy_.bucket.value : strategy_.bucket.value / 2);
    if (changed.bucket.value < 1) continue;
    add_unless_same(list, measured("buckets",
                                   fmt::format("{} instead of {}", format_bytes(changed.bucket),
                                               format_bytes(strategy_.bucket)),
                                   changed));
  }
  const bool moved =
      std::ranges::find(strategy_.saved, MemoryAction::Offload) != strategy_.saved.end();
  for (const int32_t ahead : {strategy_.prefetch / 2, 2 * strategy_.prefetch + 1}) {
    if (!moved || ahead == strategy_.prefetch) continue;
    Strategy changed = strategy_;
    changed.prefetch = ahead;
    add_unless_same(
        list,
        measured("fetching", fmt::format("{} ops ahead instead of {}", ahead, strategy_.prefetch),
                 changed));
  }
}

void Explainer::add_turns(std::vector<Alternative>& list) {
  if (!strategy_.in_turn) return;
  Strategy changed = strategy_;
  changed.in_turn = false;
  add_unless_same(list, measured("copies", "beside kernels instead of in turn", changed));
}

void Explainer::add_cuts(std::vector<Alternative>& list) {
  const int64_t now = strategy_.micro_batches;
  const BatchAxes batch = find_batch(problem_.network);
  for (const int64_t parts : {2 * now, now / 2}) {
    // Of a single micro-batch there is no half, and a cut that leaves no whole samples is none.
    if (parts < 1 || (parts < now && now % 2 != 0) || batch.samples % parts != 0) continue;
    const std::string choice = fmt::format("{} instead of {}", parts, now);
    try {
      const TrainingGraph training =
          cut_training(problem_.network, batch, parts, problem_.training).training;
      Strategy changed = strategy_;
      changed.micro_batches = parts;
      add_unless_same(list, measured("micro-batches", choice, training, changed));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      list.push_back(
          {.decision = "micro-batches", .choice = choice, .impossible = error.message()});
    }
  }
  if (strategy_.stages.size() < 2) return;
  for (const ScheduleKind kind : {ScheduleKind::GPipe, ScheduleKind::OneFOneB}) {
    if (kind == strategy_.schedule) continue;
    Strategy changed = strategy_;
    changed.schedule = kind;
    add_unless_same(list, measured("schedule", std::string(schedule_name(kind)), changed));
  }
}

void Explainer::add_named(std::vector<Alternative>& list) {
  const size_t devices = problem_.machine.devices.size();
  constexpr size_t kMostTensorParallel = 8;
  std::vector<std::string> names = {"single", "single:recompute=full"};
  if (devices > 1) {
    names = {"data-parallel", "data-parallel:recompute=full", "zero:stage=3"};
    if (devices <= kMostTensorParallel) names.push_back(fmt::format("megatron:tp={}", devices));
    names.push_back(fmt::format("1f1b:stages={}", std::min(devices, kMostTensorParallel)));
  }
  for (const std::string& name : names) {
    try {
      const PreparedStep step =
          prepare_step(problem_.network, parse_baseline(name), problem_.machine, problem_.training);
      add_unless_same(list, measured("everything", name, step.training, step.strategy));
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::Internal) throw;
      list.push_back({.decision = "everything", .choice = name, .impossible = error.message()});
    }
  }
}

}  // namespace windlass
