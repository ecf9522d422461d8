#include <algorithm>
#include <cmath>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/text.h"
#include "windlass/report/json.h"
#include "windlass/report/labels.h"
#include "windlass/report/lives.h"
#include "windlass/report/page/page.h"
#include "windlass/report/page/page_layers.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

double in_seconds(Nanoseconds time) { return static_cast<double>(time) * 1e-9; }

const MemoryReport* fullest(const SimulationReport& report) {
  const MemoryReport* most = nullptr;
  for (const MemoryReport& memory : report.memories)
    if (!memory.devices.empty() && (!most || memory.peak > most->peak)) most = &memory;
  return most;
}

std::string devices_of_plan(const PagePlan& plan) {
  const auto& devices = plan.machine.devices;
  const std::string& type = plan.machine.device_types[devices.front().type].name;
  const bool mixed = std::ranges::any_of(
      devices, [&](const Device& device) { return device.type != devices.front().type; });
  return mixed ? fmt::format("{} devices of {}", plan.report.devices, plan.machine.name)
               : fmt::format("{} x {}", plan.report.devices, type);
}

ordered_json breakdown_row(const std::string& name, size_t devices, const Breakdown& time) {
  return {{"name", name},
          {"devices", devices},
          {"compute", in_seconds(time.compute)},
          {"recompute", in_seconds(time.recompute)},
          {"communication", in_seconds(time.communication)},
          {"swap", in_seconds(time.swap)},
          {"update", in_seconds(time.update)},
          {"bubble", in_seconds(time.bubble)}};
}

ordered_json breakdown(const SimulationReport& report) {
  constexpr size_t kMostTeams = 64;
  ordered_json rows = ordered_json::array();
  rows.push_back(breakdown_row("mean of all devices", report.devices, report.mean));
  if (report.teams.size() > 1)
    for (size_t t = 0; t < std::min(report.teams.size(), kMostTeams); ++t)
      rows.push_back(
          breakdown_row(report.teams[t].name, report.teams[t].devices, report.teams[t].time));
  return rows;
}

// The kinds of buffers as the page groups them; workspace is with the others.
struct Groups {
  int64_t weights = 0, gradients = 0, optimizer = 0, activations = 0, other = 0;
};

Groups groups_of(const std::array<int64_t, kBufferKinds>& by_kind, int64_t workspace) {
  const auto of = [&](BufferKind kind) { return by_kind[static_cast<size_t>(kind)]; };
  return {of(BufferKind::Weight), of(BufferKind::WeightGradient), of(BufferKind::OptimizerState),
          of(BufferKind::Activation) + of(BufferKind::Stash),
          of(BufferKind::Transient) + of(BufferKind::Communication) + of(BufferKind::Input) +
              workspace};
}

ordered_json curve(const std::vector<MemorySample>& samples, int64_t peak) {
  // Units in which the largest number has about 20 bits.
  int64_t unit = 1;
  while (peak / unit >= int64_t{1} << 20) unit *= 2;
  ordered_json json = {{"unit", unit}};
  ordered_json times = ordered_json::array(), weights = times, gradients = times, optimizer = times,
               activations = times, other = times;
  for (const MemorySample& sample : samples) {
    const Groups bytes = groups_of(sample.by_kind, sample.workspace);
    times.push_back(sample.time);
    weights.push_back(bytes.weights / unit);
    gradients.push_back(bytes.gradients / unit);
    optimizer.push_back(bytes.optimizer / unit);
    activations.push_back(bytes.activations / unit);
    other.push_back(bytes.other / unit);
  }
  json["times_ns"] = std::move(times);
  json["weights"] = std::move(weights);
  json["gradients"] = std::move(gradients);
  json["optimizer"] = std::move(optimizer);
  json["activations"] = std::move(activations);
  json["other"] = std::move(other);
  return json;
}

ordered_json memories(const PagePlan& plan, int64_t points) {
  constexpr size_t kMostMemories = 64;
  constexpr int64_t kMostPoints = 8'000;
  const size_t count = std::min(plan.report.memories.size(), kMostMemories);
  points = std::clamp<int64_t>(kMostPoints / std::max<int64_t>(1, static_cast<int64_t>(count)), 60,
                               points);
  const auto samples = memory_samples(plan.step.tasks, plan.step.times, plan.step.whole(), points);
  ordered_json list = ordered_json::array();
  for (size_t m = 0; m < count; ++m) {
    const MemoryReport& memory = plan.report.memories[m];
    if (memory.devices.empty() && memory.peak.value == 0) continue;
    std::array<int64_t, kBufferKinds> by_kind{};
    for (size_t k = 0; k < kBufferKinds; ++k) by_kind[k] = memory.at_peak[k].value;
    const Groups at_peak = groups_of(by_kind, memory.workspace.value);
    ordered_json largest = ordered_json::array();
    for (const AliveTensor& tensor : memory.largest)
      largest.push_back({{"name", tensor.name},
                         {"kind", buffer_kind_name(tensor.kind)},
                         {"buffers", tensor.buffers},
                         {"bytes", tensor.bytes.value}});
    list.push_back({{"name", memory.name},
                    {"host", memory.devices.empty()},
                    {"count", std::max(memory.devices.size(), memory.hosts.size())},
                    {"limit", memory.limit.value},
                    {"peak", memory.peak.value},
                    {"peak_time", memory.peak_time.value},
                    {"peak_task", memory.peak_task},
                    {"at_peak",
                     {{"weights", at_peak.weights},
                      {"gradients", at_peak.gradients},
                      {"optimizer", at_peak.optimizer},
                      {"activations", at_peak.activations},
                      {"other", at_peak.other}}},
                    {"largest", std::move(largest)},
                    {"curve", curve(samples[m], memory.peak.value)}});
  }
  return list;
}

ordered_json links(const PagePlan& plan) {
  constexpr size_t kMostLinks = 64;
  ordered_json list = ordered_json::array();
  for (const LinkReport& link : plan.report.links) {
    if (list.size() >= kMostLinks) break;
    const Bytes most = *std::ranges::max_element(link.bytes);
    list.push_back({{"name", link.name},
                    {"count", link.directions.size()},
                    {"bytes", most.value},
                    {"bandwidth", link.bandwidth.value},
                    {"busy", link.busy},
                    {"utilisation", link.utilisation}});
  }
  return list;
}

ordered_json frontier(const PagePlan& plan) {
  ordered_json points = ordered_json::array();
  for (const FrontierPoint& point : plan.plan.prediction.frontier)
    points.push_back({point.limit.value, point.step_time.value});
  return points;
}

ordered_json baselines(const PagePlan& plan) {
  ordered_json list = ordered_json::array();
  for (const StrategyRow& row : plan.baselines)
    list.push_back({{"name", row.name},
                    {"tuned", row.tuned},
                    {"why", row.why},
                    {"fits", row.fits},
                    {"step_time", row.step_time.value},
                    {"peak", row.peak}});
  return list;
}

// Throughput against batch, and what to make of it.
ordered_json method_curves(const MethodsReport& report) {
  ordered_json list = ordered_json::array();
  for (const MethodAdvice& advice : report.methods) {
    const MethodCurve& curve = advice.curve;
    ordered_json points = ordered_json::array();
    for (const BatchPoint& point : curve.points)
      if (point.fits) points.push_back({point.batch, point.rate(), point.peak.value});
    const bool plain = &advice == &report.methods.front();
    list.push_back({{"name", curve.name},
                    {"lossy", curve.lossy},
                    {"largest", curve.largest.value_or(0)},
                    {"pays", !plain && advice.pays},
                    {"because", curve.impossible.empty() ? advice.because : curve.impossible},
                    {"points", std::move(points)}});
  }
  return {{"base", report.base}, {"limit", report.limit.value}, {"list", std::move(list)}};
}

// What the numbers rest on, and where each comes from.
ordered_json assumptions(const PagePlan& plan) {
  ordered_json list = ordered_json::array();
  const auto add = [&](std::string what, std::string value, std::string source) {
    list.push_back({std::move(what), std::move(value), std::move(source)});
  };
  const Provenance& made = plan.plan.provenance;
  add("times", "simulated, task by task",
      made.cost.starts_with("measured") ? plan.report.facts.provenance
                                        : plan.report.facts.provenance + " cost model");
  add("plan",
      fmt::format("{}, found by \"{}\", seed {}", plan.plan.prediction.termination, made.method,
                  made.seed),
      fmt::format("{}, windlass {}", plan.path, made.windlass));
  add("model", plan.plan.model.source,
      "fingerprint " + format_fingerprint(plan.plan.model_fingerprint));
  add("machine", plan.machine.name,
      "fingerprint " + format_fingerprint(plan.plan.machine_fingerprint));
  for (const DeviceType& type : plan.machine.device_types) {
    std::string rates;
    for (const auto& [precision, rate] : type.peak)
      rates += fmt::format(", {} {}", format_flops_rate(rate), precision_name(precision));
    add(type.name,
        fmt::format("{} of memory ({} reserved), {}{}", format_bytes(type.memory),
                    format_bytes(type.reserved), format_bandwidth(type.memory_bandwidth), rates),
        type.source.empty() ? "machine file" : type.source);
  }
  for (const Node& node : plan.machine.nodes) {
    if (&node - plan.machine.nodes.data() >= 4) break;
    add(node.name,
        fmt::format("{} of host memory, {}", format_bytes(node.memory),
                    format_bandwidth(node.memory_bandwidth)),
        "machine file");
  }
  add("run by", plan.report.facts.runner.name,
      is_windlass(plan.report.facts.runner) ? "windlass's own runtime"
                                            : plan.report.facts.runner.description);
  if (!plan.plan.kernels.empty())
    add("kernels", fmt::format("{} measured", plan.plan.kernels.size()),
        "on this host, in the plan");
  return list;
}

// As `simulate --json` has them, and in words.
ordered_json page_degrees(const Degrees& degrees) {
  ordered_json json = degrees_json(degrees);
  json["text"] = degrees_text(degrees);
  json["memory"] = memory_methods_text(degrees);
  json["weight_bytes"] = degrees.weights;
  return json;
}

}  // namespace

std::string page_verdict(const PagePlan& plan, const Degrees& degrees) {
  const SimulationReport& report = plan.report;
  const StepFacts& facts = report.facts;
  if (report.failure) {
    const MemoryFailure& failure = *report.failure;
    std::string text = fmt::format(
        "Does not fit: {} on {} stops at the limit of {} on {}, where it would take {} "
        "more to go on.",
        facts.model, devices_of_plan(plan), format_bytes(failure.limit), failure.memory,
        format_bytes(failure.missing));
    if (failure.minimum_limit)
      text += fmt::format(" The same strategy runs with a limit of {} on each device.",
                          format_bytes(*failure.minimum_limit));
    return text;
  }
  std::string text =
      fmt::format("Fits: {} trains on {} with {} sample{} a step in {}, {} samples/s", facts.model,
                  devices_of_plan(plan), facts.samples, facts.samples == 1 ? "" : "s",
                  format_seconds(report.step_time), rate_label(report.samples_per_second()));
  if (facts.tokens_per_sample)
    text += fmt::format(
        " ({} tokens/s)",
        format_integer(static_cast<int64_t>(report.samples_per_second() *
                                            static_cast<double>(*facts.tokens_per_sample))));
  if (const MemoryReport* most = fullest(report))
    text += fmt::format("; the fullest device peaks at {} of {}", format_bytes(most->peak),
                        format_bytes(most->limit));
  text += ".";
  const StrategyRow* best = nullptr;
  for (const StrategyRow& row : plan.baselines)
    if (row.why.empty() && row.fits && (!best || row.step_time < best->step_time)) best = &row;
  if (best) {
    // As long, in the digits that are shown of it: often the plan is that strategy.
    constexpr double kAsLong = 0.005;
    const double ratio = best->step_time / std::max(Seconds(1e-12), report.step_time);
    text += fmt::format(
        " The best usual strategy that fits, {}, takes {}.", best->name,
        std::abs(ratio - 1) < kAsLong
            ? "as long"
            : fmt::format("{} ({:.2f} times as long)", format_seconds(best->step_time), ratio));
  }
  if (!best && !plan.baselines.empty()) text += " None of the usual strategies fits.";
  if (degrees.copies > 1)
    text += fmt::format(" {} devices do the same work for most ops.", degrees.copies);
  return text;
}

ordered_json page_plan_json(const PagePlan& plan, const PageOptions& options) {
  const SimulationReport& report = plan.report;
  const StepFacts& facts = report.facts;
  const Degrees degrees =
      degrees_of(plan.training, find_batch(plan.network), plan.strategy, facts.samples);
  const Utilisation use = utilisation_of(plan.step, plan.machine, facts.model_flops);
  ordered_json json;
  json["title"] = printable(fmt::format("{} on {}", facts.model, facts.machine), 200);
  json["path"] = plan.path;
  json["verdict"] = printable(page_verdict(plan, degrees), 2000);
  json["fits"] = !report.failure;
  json["model"] = facts.model;
  json["machine"] = facts.machine;
  json["strategy"] = facts.strategy;
  json["runner"] = facts.runner.name;
  json["samples"] = facts.samples;
  json["parameters"] = parameter_count(plan.network);
  json["step_time"] = report.step_time.value;
  json["overhead"] = report.overhead.value;
  json["samples_per_s"] = report.samples_per_second();
  if (facts.tokens_per_sample)
    json["tokens_per_s"] =
        report.samples_per_second() * static_cast<double>(*facts.tokens_per_sample);
  json["mfu"] = use.mfu;
  json["hfu"] = use.hfu;
  json["peak_flops"] = use.peak.value;
  json["precision"] = precision_name(use.precision);
  json["devices"] = report.devices;
  json["all_devices"] = report.all_devices;
  json["degrees"] = page_degrees(degrees);
  if (report.failure)
    json["failure"] = {{"reason", failure_reason(*report.failure)},
                       {"memory", report.failure->memory},
                       {"missing", report.failure->missing.value},
                       {"limit", report.failure->limit.value}};
  json["breakdown"] = breakdown(report);
  json["memories"] = memories(plan, options.memory_points);
  json["frontier"] = frontier(plan);
  json["baselines"] = baselines(plan);
  json["no_baselines"] = plan.no_baselines;
  if (plan.methods) json["methods"] = method_curves(*plan.methods);
  json["no_methods"] = plan.no_methods;
  json["packs"] = plan.strategy.packs.has_value();
  json["layers"] = page_layers_json(plan.network, plan.training, plan.strategy);
  json["links"] = links(plan);
  json["assumptions"] = assumptions(plan);
  json["timeline"] = page_timeline_json(plan.step, &plan.training.graph, options.timeline);
  return json;
}

}  // namespace windlass
