#include "windlass/report/explain_text.h"

#include <algorithm>
#include <cmath>
#include <map>

#include <fmt/format.h>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/machine/device_names.h"
#include "windlass/report/decisions.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

std::string percent(double share) { return fmt::format("{:.1f} %", 100 * share); }

std::string signed_seconds(Seconds difference) {
  if (difference.value == 0) return "same";
  return (difference.value < 0 ? "-" : "+") + format_seconds(Seconds(std::abs(difference.value)));
}

std::string longer(Seconds difference) {
  if (difference.value == 0) return "as long";
  return fmt::format("{} {}", format_seconds(Seconds(std::abs(difference.value))),
                     difference.value < 0 ? "less" : "more");
}

std::string signed_bytes(Bytes difference) {
  if (difference.value == 0) return "same";
  return (difference.value < 0 ? "-" : "+") + format_bytes(Bytes(std::abs(difference.value)));
}

std::string fit_text(const Outcome& outcome) {
  return outcome.fits ? "fits" : fmt::format("does not fit {}", outcome.obstacle);
}

// A device name and its like, cut to a size that a table bears.
std::string short_reason(const std::string& reason) { return printable(reason, 90); }

// Parts of a step by their share, the largest first.
std::vector<std::pair<double, std::string_view>> time_parts(const SimulationReport& report) {
  const double whole = std::max(1e-12, report.step_time.value);
  const auto share = [&](Nanoseconds time) { return static_cast<double>(time) * 1e-9 / whole; };
  const Breakdown& mean = report.mean;
  std::vector<std::pair<double, std::string_view>> parts = {
      {share(mean.compute), "computing"},
      {share(mean.recompute), "recomputing and compressing"},
      {share(mean.communication), "waiting for other devices"},
      {share(mean.swap), "waiting for copies to and from the host"},
      {share(mean.update), "updating weights"},
      {share(mean.bubble), "idle for want of work or memory"},
      {report.overhead.value / whole, "on the host beside all tasks"}};
  std::ranges::stable_sort(parts, [](const auto& a, const auto& b) { return a.first > b.first; });
  std::erase_if(parts, [](const auto& part) { return part.first < 0.0005; });
  return parts;
}

std::string stages_text(const Strategy& strategy, const Machine& machine) {
  const auto devices = [&](int32_t group) {
    return device_names(machine, strategy.groups[static_cast<size_t>(group)]);
  };
  if (strategy.stages.size() == 1)
    return fmt::format("1 group: {}", devices(strategy.stages[0].group));
  std::string text =
      fmt::format("{} stages, {}:", strategy.stages.size(), schedule_name(strategy.schedule));
  constexpr size_t kShown = 8;
  for (size_t s = 0; s < std::min(kShown, strategy.stages.size()); ++s)
    text += fmt::format("{} {} ops on {}", s == 0 ? "" : ",",
                        strategy.stages[s].last - strategy.stages[s].first,
                        devices(strategy.stages[s].group));
  if (strategy.stages.size() > kShown)
    text += fmt::format(" and {} more", strategy.stages.size() - kShown);
  return text;
}

struct WeightTotals {
  int64_t all = 0, on_host = 0, updated_on_host = 0;
  std::map<int, int64_t> by_zero;
};
WeightTotals weight_totals(const Strategy& strategy) {
  WeightTotals totals;
  for (const Residency& weight : strategy.weights) {
    ++totals.all;
    totals.on_host += weight.host ? 1 : 0;
    totals.updated_on_host += weight.host_update ? 1 : 0;
    ++totals.by_zero[weight.zero];
  }
  return totals;
}

// The choices that fit, and are exact, the fastest first.
const Alternative* best_that_fits(const std::vector<Alternative>& others) {
  const Alternative* best = nullptr;
  for (const Alternative& other : others)
    if (other.one && other.one->fits && other.same_result &&
        (!best || other.one->step_time < best->one->step_time))
      best = &other;
  return best;
}

std::string next_best(const Explained& explained, const std::vector<Alternative>& others) {
  const Alternative* best = best_that_fits(others);
  if (!best) return "None of the other choices fits.\n";
  const Seconds difference = best->one->step_time - explained.plan.step_time;
  const std::string what = fmt::format("{}: {}", best->decision, best->choice);
  if (difference.value < 0)
    return fmt::format(
        "\"{}\" fits and would be {} faster ({}): {}.\n", what,
        format_seconds(Seconds(-difference.value)),
        percent(-difference.value / explained.plan.step_time.value),
        explained.given ? "the strategy was given; \"windlass plan\" looks for the best"
                        : "the search has not found it; plan again with --from or more --effort");
  if (difference.value == 0) return fmt::format("\"{}\" fits and would take as long.\n", what);
  return fmt::format("Next best that fits is \"{}\": {} slower ({}).\n", what,
                     format_seconds(difference),
                     percent(difference.value / explained.plan.step_time.value));
}

// `alike` > 1: with columns for the same change to all that are alike.
std::string alternatives_table(const Explained& explained, const std::vector<Alternative>& others,
                               size_t alike, size_t top, bool decisions) {
  std::vector<Align> columns = {Align::Left,  Align::Left,  Align::Right,
                                Align::Right, Align::Right, Align::Right};
  std::vector<std::string> head = {"", "", "step", "", "peak", ""};
  if (alike > 1) {
    columns.insert(columns.end(), {Align::Right, Align::Right});
    head.insert(head.end(), {fmt::format("all {} alike", alike), "peak"});
  }
  columns.push_back(Align::Left);
  head.emplace_back("");
  Table table(columns);
  table.add(head);
  std::string last;
  for (size_t i = 0; i < std::min(top, others.size()); ++i) {
    const Alternative& other = others[i];
    const std::string& decision = decisions && other.decision != last ? other.decision : "";
    last = other.decision;
    std::vector<std::string> cells = {decision, other.choice};
    if (!other.one) {
      cells.resize(columns.size() - 1, "-");
      cells.push_back("not possible: " + short_reason(other.impossible));
      table.add(cells);
      continue;
    }
    const Outcome& one = *other.one;
    cells.insert(
        cells.end(),
        {format_seconds(one.step_time), signed_seconds(one.step_time - explained.plan.step_time),
         format_bytes(one.peak), signed_bytes(one.peak - explained.plan.peak)});
    std::string remark = fit_text(one);
    if (alike > 1) {
      cells.push_back(other.all ? signed_seconds(other.all->step_time - explained.plan.step_time)
                                : "");
      cells.push_back(other.all ? signed_bytes(other.all->peak - explained.plan.peak) : "");
      if (other.all && other.all->fits != one.fits)
        remark += other.all->fits ? "; all alike fit" : "; all alike do not";
    }
    if (!other.same_result) remark += "; changes the mathematics";
    cells.push_back(remark);
    table.add(cells);
  }
  std::string text = table.text("  ");
  if (others.size() > top)
    text += fmt::format("  and {} more (--top {} shows all)\n", others.size() - top, others.size());
  return text;
}

std::string head(const Explained& explained) {
  const StepFacts& facts = explained.report.facts;
  const MemoryReport& fullest = tightest(explained.report);
  return fmt::format(
      "{} on {}: {} a step of {} samples, {} of {} on the fullest device{}\n", facts.model,
      facts.machine, format_seconds(explained.plan.step_time), facts.samples,
      format_bytes(fullest.peak), format_bytes(fullest.limit),
      explained.plan.fits ? "" : fmt::format("; it does not fit {}", explained.plan.obstacle));
}

}  // namespace

const MemoryReport& tightest(const SimulationReport& report) {
  const MemoryReport* found = nullptr;
  for (const MemoryReport& memory : report.memories)
    if (!memory.devices.empty() &&
        (!found || memory.limit - memory.peak < found->limit - found->peak))
      found = &memory;
  return *found;
}

std::string overview_text(const Explained& explained, const std::vector<Alternative>& others) {
  const Strategy& strategy = explained.strategy;
  const MemoryReport& device = tightest(explained.report);
  std::string text = head(explained) + "\n";
  Table table({Align::Left, Align::Left});
  std::string time;
  for (const auto& [share, name] : time_parts(explained.report))
    time += fmt::format("{}{} {}", time.empty() ? "" : ", ", name, percent(share));
  table.add({"time", time});
  table.add(
      {"memory",
       fmt::format(
           "{}: {} of {} at its peak, {} free; {}", device.name, format_bytes(device.peak),
           format_bytes(device.limit),
           format_bytes(Bytes(std::max<int64_t>(0, device.limit.value - device.peak.value))),
           device.peak_task.empty()
               ? std::string("before the step begins")
               : fmt::format("at {}, in {}", format_seconds(device.peak_time), device.peak_task))});
  std::string kinds;
  for (size_t k = 0; k < kBufferKinds; ++k)
    if (device.at_peak[k].value > 0)
      kinds += fmt::format("{}{} {}", kinds.empty() ? "" : ", ",
                           buffer_kind_name(static_cast<BufferKind>(k)),
                           format_bytes(device.at_peak[k]));
  if (device.workspace.value > 0)
    kinds += fmt::format(", workspace {}", format_bytes(device.workspace));
  table.add({"alive then", kinds});
  for (size_t i = 0; i < std::min<size_t>(4, device.largest.size()); ++i)
    table.add({"", fmt::format("{} ({}) {}", device.largest[i].name,
                               buffer_kind_name(device.largest[i].kind),
                               format_bytes(device.largest[i].bytes))});
  table.add({"structure", stages_text(strategy, explained.machine)});
  const std::vector<DeviceId> unused = unused_devices(strategy, explained.machine);
  if (!unused.empty()) table.add({"not used", device_names(explained.machine, unused)});
  table.add({"runner", explained.report.facts.runner.name});
  table.add(
      {"batch", fmt::format("{} samples in {} micro-batch{}", explained.report.facts.samples,
                            strategy.micro_batches, strategy.micro_batches == 1 ? "" : "es")});
  std::string saved;
  for (const auto& [action, total] : saved_totals(explained.training, strategy))
    saved += fmt::format("{}{} {} ({})", saved.empty() ? "" : ", ", action_phrase(action),
                         format_bytes(total.bytes), total.tensors);
  table.add({"saved tensors", saved});
  const WeightTotals weights = weight_totals(strategy);
  std::string zero;
  for (const auto& [stage, count] : weights.by_zero)
    if (stage > 0) zero += fmt::format(", {} by ZeRO stage {}", count, stage);
  table.add({"weights", fmt::format("{}: {} rest in host memory, {} are updated there{}",
                                    weights.all, weights.on_host, weights.updated_on_host, zero)});
  text += table.text("  ");
  text += "\nwhat other choices would have cost, one at a time\n";
  text += alternatives_table(explained, others, 1, others.size(), true);
  return text + next_best(explained, others);
}

std::string op_text(const Explained& explained, OpId id, const OpParts& parts,
                    const std::vector<Alternative>& others, size_t alike, size_t top) {
  const Graph& graph = explained.training.graph;
  const Op& op = graph[id];
  const Strategy& strategy = explained.strategy;
  const LoopNest nest = loops_of(graph, op);
  std::string text = head(explained) + fmt::format("\n{} ({})\n", op.name, op_info(op.kind).name);
  Table table({Align::Left, Align::Left});
  std::string loops;
  for (const LoopDim& loop : nest.loops)
    loops += fmt::format("{}{} {}", loops.empty() ? "" : ", ", loop.name, loop.size);
  table.add({"loops", loops});
  table.add(
      {"split",
       format_sharding(strategy.shardings[static_cast<size_t>(strategy.ops[id.index()])], nest)});
  const auto stage =
      static_cast<size_t>(stage_of_ops(strategy, explained.training.forward_ops)[id.index()]);
  const auto& group = strategy.groups[static_cast<size_t>(strategy.stages[stage].group)];
  table.add({"on", fmt::format("{} device{} from {}, stage {} of {}", group.size(),
                               group.size() == 1 ? "" : "s", explained.machine[group.front()].name,
                               stage + 1, strategy.stages.size())});
  for (const OpWork& work : parts.work)
    table.add(
        {std::string(task_kind_name(work.kind)),
         fmt::format("{} x {} of each device: {} of the step", work.runs, format_seconds(work.each),
                     percent(work.total / explained.plan.step_time))});
  text += table.text("  ");
  if (!parts.moves.empty()) {
    Table moves({Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Left});
    for (const OpMove& move : parts.moves)
      moves.add({std::string(task_kind_name(move.kind)), move.tensor,
                 fmt::format("{} x", move.runs), format_bytes(move.bytes),
                 format_seconds(move.total),
                 move.others > 0 ? fmt::format("with up to {} others", move.others) : ""});
    text += "\nwhat it exchanges: bytes that a device sends, time under way\n" + moves.text("  ");
  }
  if (others.empty()) return text + "\nThere is no other way to split it over its devices.\n";
  text += fmt::format("\nother ways to split it, everything else unchanged\n{}",
                      alternatives_table(explained, others, alike, top, false));
  return text + next_best(explained, others);
}

std::string why(const Explained& explained, const TensorChoice& choice,
                const std::vector<Alternative>& others) {
  if (choice.choice.empty())
    return "Nothing is decided about it: it does not live from the forward to the backward pass.";
  if (others.empty()) return fmt::format("It {}: there is no other choice for it.", choice.phrase);
  const Seconds now = explained.plan.step_time;
  const auto keep = std::ranges::find(others, "keep", &Alternative::choice);
  if (keep != others.end() && keep->one) {
    const Outcome& kept = *keep->one;
    const Seconds cost = now - kept.step_time;
    const std::string price = cost.value > 0 ? "costs " + format_seconds(cost) : "costs no time";
    if (!kept.fits) {
      const MemoryReport& device = tightest(explained.report);
      return fmt::format(
          "It {}: kept, the peak would be {}, {} more than now, of which {} are free; that it {} "
          "{}.",
          choice.phrase, format_bytes(kept.peak),
          format_bytes(Bytes(std::max<int64_t>(0, kept.peak.value - explained.plan.peak.value))),
          format_bytes(Bytes(std::max<int64_t>(0, device.limit.value - explained.plan.peak.value))),
          choice.phrase, price);
    }
    return fmt::format("It {}; kept it would fit too, and the step would take {}.", choice.phrase,
                       longer(kept.step_time - now));
  }
  const Alternative* best = best_that_fits(others);
  if (!best) return fmt::format("It {}: no other choice fits.", choice.phrase);
  return fmt::format("It {}: the next best choice, \"{}\", takes {} and {} at the peak.",
                     choice.phrase, best->choice, longer(best->one->step_time - now),
                     best->one->peak == explained.plan.peak
                         ? "as much memory"
                         : signed_bytes(best->one->peak - explained.plan.peak));
}

std::string tensor_text(const Explained& explained, const TensorChoice& choice,
                        const TensorParts& parts, const std::vector<Alternative>& others) {
  const Tensor& tensor = explained.training.graph[choice.tensor];
  std::string text = head(explained) + fmt::format("\n{} ({}, {}, {} in all)\n", tensor.name,
                                                   role_name(tensor.role), format_type(tensor.type),
                                                   format_bytes(choice.bytes));
  Table table({Align::Left, Align::Left});
  if (!choice.choice.empty()) table.add({"now", choice.choice});
  table.add({"on a device",
             fmt::format("{} at most, {} at the peak of the fullest",
                         format_bytes(parts.most_on_device), format_bytes(parts.at_peak))});
  text += table.text("  ");
  if (!parts.stays.empty()) {
    Table lives({Align::Left, Align::Left, Align::Right, Align::Left});
    constexpr size_t kShown = 12;
    for (size_t i = 0; i < std::min(kShown, parts.stays.size()); ++i) {
      const TensorStay& stay = parts.stays[i];
      lives.add({stay.memory, std::string(buffer_kind_name(stay.kind)), format_bytes(stay.bytes),
                 stay.always ? "all the time"
                             : fmt::format("{} to {}", format_seconds(stay.begin),
                                           format_seconds(stay.end))});
    }
    text += fmt::format("\nwhen it lives{}\n{}",
                        parts.micro_batches > 1
                            ? fmt::format(" (the first of {} micro-batches)", parts.micro_batches)
                            : "",
                        lives.text("  "));
    if (parts.stays.size() > kShown)
      text += fmt::format("  and {} more stays\n", parts.stays.size() - kShown);
  }
  if (!others.empty())
    text += fmt::format("\nother choices, everything else unchanged\n{}",
                        alternatives_table(explained, others, choice.alike, others.size(), false));
  return text + why(explained, choice, others) + "\n";
}

}  // namespace windlass
