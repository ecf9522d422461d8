#include "windlass/report/simulation_text.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include <fmt/format.h>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/report/labels.h"

namespace windlass {
namespace {

// "12.3", "1,234".
std::string three_digits(double value) {
  return value < 999.5 ? fmt::format("{:.3g}", value)
                       : format_integer(static_cast<int64_t>(std::llround(value)));
}

std::string percent_text(double share) {
  if (share > 0 && share < 0.0005) return "<0.1%";
  return fmt::format("{:.1f}%", 100 * share);
}

std::string or_dash(Bytes bytes) { return bytes.value > 0 ? format_bytes(bytes) : "-"; }

std::string left_out(size_t all, size_t shown, std::string_view what) {
  if (all <= shown) return "";
  return fmt::format("  and {} {} (--top {} shows all)\n", all - shown, what, all);
}

std::string alike(const std::string& name, size_t others) {
  return others == 0 ? name : fmt::format("{} and {} alike", name, others);
}

// Teams that spend their time alike to the digits shown are one row.
std::string time_table(const SimulationReport& report, size_t top) {
  struct Row {
    std::vector<std::string> cells;
    size_t others = 0;
  };
  const double step = std::max(1e-9, report.step_time.value) * 1e9;
  const auto cells_of = [&](const Breakdown& time) {
    std::vector<std::string> cells;
    for (Nanoseconds part :
         {time.compute, time.recompute, time.communication, time.swap, time.update, time.bubble})
      cells.push_back(part == 0 ? "-" : percent_text(static_cast<double>(part) / step));
    return cells;
  };
  std::vector<std::pair<std::string, Row>> rows;
  for (const TeamReport& team : report.teams) {
    std::vector<std::string> cells = cells_of(team.time);
    if (!rows.empty() && rows.back().second.cells == cells)
      ++rows.back().second.others;
    else
      rows.push_back({team.name, {std::move(cells), 0}});
  }
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right});
  const auto add = [&](std::string name, std::vector<std::string> cells) {
    cells.insert(cells.begin(), std::move(name));
    table.add(std::move(cells));
  };
  add("", {"compute", "recompute", "communication", "swap", "update", "bubble"});
  const size_t shown = std::min(rows.size(), top);
  for (size_t i = 0; i < shown; ++i)
    add(alike(rows[i].first, rows[i].second.others), rows[i].second.cells);
  if (rows.size() > 1) add("all devices", cells_of(report.mean));
  return "\nwhere the time goes (communication and swap: waited for)\n" + table.text("  ") +
         left_out(rows.size(), shown, "more");
}

std::vector<std::string> memory_cells(const MemoryReport& memory) {
  const auto at_peak = [&](BufferKind kind) { return memory.at_peak[static_cast<size_t>(kind)]; };
  const Bytes other = at_peak(BufferKind::Transient) + at_peak(BufferKind::Communication) +
                      at_peak(BufferKind::Input) + memory.workspace;
  const double share = memory.limit.value > 0 ? memory.peak / memory.limit : 0;
  return {format_bytes(memory.peak),
          format_bytes(memory.limit),
          percent_text(share),
          or_dash(at_peak(BufferKind::Weight)),
          or_dash(at_peak(BufferKind::WeightGradient)),
          or_dash(at_peak(BufferKind::OptimizerState)),
          or_dash(at_peak(BufferKind::Activation) + at_peak(BufferKind::Stash)),
          or_dash(other)};
}

// The fullest first; memories alike to the digits shown are one row.
std::string memory_table(const SimulationReport& report, size_t top) {
  std::vector<const MemoryReport*> sorted;
  for (const MemoryReport& memory : report.memories)
    if (!memory.devices.empty() || memory.peak.value > 0) sorted.push_back(&memory);
  std::stable_sort(sorted.begin(), sorted.end(), [](const MemoryReport* a, const MemoryReport* b) {
    return std::tuple(a->devices.empty(), -a->peak.value) <
           std::tuple(b->devices.empty(), -b->peak.value);
  });
  std::vector<std::pair<std::string, size_t>> names;
  std::vector<std::vector<std::string>> rows;
  for (const MemoryReport* memory : sorted) {
    std::vector<std::string> cells = memory_cells(*memory);
    if (!rows.empty() && rows.back() == cells) {
      ++names.back().second;
    } else {
      const size_t hosts = memory->hosts.empty() ? 0 : memory->hosts.size() - 1;
      names.emplace_back(alike(memory->name, hosts), 0);
      rows.push_back(std::move(cells));
    }
  }
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Right, Align::Right});
  table.add(
      {"", "peak", "limit", "use", "weights", "gradients", "optimizer", "activations", "other"});
  const size_t shown = std::min(rows.size(), top);
  for (size_t i = 0; i < shown; ++i) {
    rows[i].insert(rows[i].begin(), alike(names[i].first, names[i].second));
    table.add(std::move(rows[i]));
  }
  return "\nmemory at its peak, of each device\n" + table.text("  ") +
         left_out(rows.size(), shown, "more");
}

std::string tensor_table(const std::vector<AliveTensor>& tensors) {
  Table table({Align::Left, Align::Left, Align::Right, Align::Right});
  for (const AliveTensor& tensor : tensors)
    table.add({tensor.name, std::string(buffer_kind_name(tensor.kind)),
               tensor.buffers > 1 ? fmt::format("{} x", tensor.buffers) : "",
               format_bytes(tensor.bytes)});
  return table.text("  ");
}

const MemoryReport* fullest_device(const SimulationReport& report) {
  const MemoryReport* worst = nullptr;
  for (const MemoryReport& memory : report.memories)
    if (!memory.devices.empty() && (!worst || memory.peak > worst->peak)) worst = &memory;
  return worst;
}

std::string peak_section(const SimulationReport& report) {
  const MemoryReport* worst = fullest_device(report);
  if (!worst) return "";
  const std::string when =
      worst->peak_task.empty()
          ? "at the start"
          : fmt::format("at {}, in {}", format_seconds(worst->peak_time), worst->peak_task);
  return fmt::format("\nlargest at the peak of {} ({})\n{}", worst->name, when,
                     tensor_table(worst->largest));
}

// Links alike to the digits shown are one row.
std::string link_table(const SimulationReport& report, size_t top) {
  if (report.links.empty()) return "";
  struct Row {
    const LinkReport* first;
    std::vector<std::string> cells;
    size_t links;
  };
  std::vector<Row> rows;
  for (const LinkReport& link : report.links) {
    std::vector<std::string> cells = {
        format_bytes(*std::max_element(link.bytes.begin(), link.bytes.end())),
        format_bandwidth(link.bandwidth), percent_text(link.utilisation), percent_text(link.busy)};
    const auto same =
        std::find_if(rows.begin(), rows.end(), [&](const Row& row) { return row.cells == cells; });
    if (same != rows.end())
      same->links += link.directions.size();
    else
      rows.push_back({&link, std::move(cells), link.directions.size()});
  }
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right});
  table.add({"", "bytes", "bandwidth", "utilisation", "busy"});
  const size_t shown = std::min(rows.size(), top);
  for (size_t i = 0; i < shown; ++i) {
    rows[i].cells.insert(rows[i].cells.begin(), alike(rows[i].first->name, rows[i].links - 1));
    table.add(std::move(rows[i].cells));
  }
  return "\nlinks by utilisation\n" + table.text("  ") + left_out(rows.size(), shown, "more");
}

std::string head(const SimulationReport& report) {
  const StepFacts& facts = report.facts;
  return printable(fmt::format("{} on {}, {}\n", facts.model, facts.machine, facts.strategy));
}

std::string from_line(const StepFacts& facts) {
  return fmt::format("simulated, {} cost model, run by {}", facts.provenance, facts.runner.name);
}

// What a card shows that also holds a context and what its allocator does not give back.
void add_runner(const SimulationReport& report, Table& table) {
  const MemoryReport* worst = fullest_device(report);
  if (is_windlass(report.facts.runner) || worst == nullptr) return;
  table.add({"card", fmt::format("shows {} at the peak, with context and fragmentation",
                                 format_bytes(worst->footprint))});
}

void add_arithmetic(const SimulationReport& report, Table& table) {
  const Flops flops = report.facts.model_flops;
  if (flops.value <= 0 || report.step_time.value <= 0) return;
  std::string text = fmt::format(
      "{} a device, recomputation not counted",
      format_flops_rate(FlopsPerSecond(flops.value / report.step_time.value /
                                       static_cast<double>(std::max<size_t>(1, report.devices)))));
  if (report.use.mfu > 0)
    text += fmt::format("; MFU {}, HFU {} of the {} peak", percent_text(report.use.mfu),
                        percent_text(report.use.hfu), precision_name(report.use.precision));
  table.add({"arithmetic", text});
}

std::string failure_text(const SimulationReport& report, size_t top) {
  const MemoryFailure& failure = *report.failure;
  std::string text = head(report) + "  does not fit: out of memory\n";
  Table facts({Align::Left, Align::Left});
  facts.add({"where", failure.memory});
  facts.add({"when", failure.task.empty()
                         ? "before the step begins"
                         : fmt::format("{} into the step, to start {}",
                                       format_seconds(failure.time), failure.task)});
  facts.add({"missing", fmt::format("{} beyond the limit of {}", format_bytes(failure.missing),
                                    format_bytes(failure.limit))});
  if (failure.minimum_limit)
    facts.add({"would need",
               fmt::format("a limit of {} on each device with this strategy ({} "
                           "bytes)",
                           format_bytes(*failure.minimum_limit), failure.minimum_limit->value)});
  else
    facts.add({"would need", "more host memory: no limit of the devices helps"});
  facts.add({"from", from_line(report.facts)});
  text += facts.text("  ");
  text +=
      fmt::format("\nalive in {} then, by size\n{}", failure.memory, tensor_table(failure.alive));
  text += "\nWithout limits the same step would look like this:\n";
  return text + memory_table(report, top);
}

}  // namespace

std::string simulation_text(const SimulationReport& report, size_t top) {
  if (report.failure) return failure_text(report, top);
  const StepFacts& facts = report.facts;
  Table table({Align::Left, Align::Left});
  std::string step = format_seconds(report.step_time);
  if (facts.range)
    step += fmt::format(" ({} to {}, as the device was calibrated)",
                        format_seconds(facts.range->first), format_seconds(facts.range->second));
  table.add({"step", step});
  std::string rate = rate_label(report.samples_per_second()) + " samples/s";
  if (facts.tokens_per_sample)
    rate += fmt::format(
        ", {} tokens/s",
        format_integer(static_cast<int64_t>(report.samples_per_second() *
                                            static_cast<double>(*facts.tokens_per_sample))));
  table.add({"rate", rate});
  add_arithmetic(report, table);
  table.add({"batch", facts.micro_batches == 1
                          ? fmt::format("{} sample{}", facts.samples, facts.samples == 1 ? "" : "s")
                          : fmt::format("{} samples in {} micro-batches", facts.samples,
                                        facts.micro_batches)});
  if (facts.degrees) {
    table.add({"split", degrees_text(*facts.degrees)});
    if (!facts.degrees->packs) table.add({"memory", memory_methods_text(*facts.degrees)});
  }
  if (facts.parameters > 0)
    table.add({"parameters", fmt::format("{}, {} bytes each at the peak of the fullest device",
                                         format_count(static_cast<double>(facts.parameters)),
                                         three_digits(report.bytes_per_parameter()))});
  table.add({"devices", report.devices < report.all_devices
                            ? fmt::format("{} of {}", report.devices, report.all_devices)
                            : fmt::format("{}", report.devices)});
  if (report.overhead.value > 0)
    table.add({"host", fmt::format("{} of the step: data, loss, set-up of the optimizer",
                                   format_seconds(report.overhead))});
  add_runner(report, table);
  table.add({"from", from_line(facts)});
  return head(report) + table.text("  ") + time_table(report, top) + memory_table(report, top) +
         peak_section(report) + link_table(report, top);
}

}  // namespace windlass
