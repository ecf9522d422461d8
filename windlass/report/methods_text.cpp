#include "windlass/report/methods_text.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>

#include "windlass/base/table.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

std::string rate_text(double rate) { return fmt::format("{:.4g}", rate); }

// With a digit more where two would hide the difference.
std::string ratio_text(double ratio) {
  return std::abs(ratio - 1) < 0.01 ? fmt::format("{:.3f}x", ratio) : fmt::format("{:.2f}x", ratio);
}

std::string label_of(const MethodCurve& curve) {
  return curve.lossy ? curve.name + " (lossy)" : curve.name;
}

std::string bytes_text(double bytes) {
  const std::string text =
      format_bytes(Bytes(static_cast<int64_t>(std::min(std::abs(bytes), 9e18))));
  return bytes < 0 ? "-" + text : text;
}

std::string verdict_table(const MethodsReport& report) {
  Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Left});
  table.add({"", "largest batch", "best", "samples/s", "of plain", "time", "cost a GiB saved", ""});
  for (const MethodAdvice& advice : report.methods) {
    const MethodCurve& curve = advice.curve;
    const bool plain = &advice == &report.methods.front();
    const BatchPoint* best = curve.best();
    const bool compared = advice.compared_at && !plain;
    table.add(
        {label_of(curve), curve.largest ? fmt::format("{}", *curve.largest) : "none",
         best != nullptr ? fmt::format("{}", best->batch) : "-",
         best != nullptr ? rate_text(best->rate()) : "-",
         plain || advice.gain <= 0 ? "-" : ratio_text(advice.gain),
         compared ? fmt::format("{:.2f}x", advice.slower) : "-",
         compared && advice.saved.value > 0
             ? format_seconds(Seconds(advice.seconds_per_byte * static_cast<double>(kGiB.value)))
             : "-",
         plain         ? ""
         : advice.pays ? "pays"
                       : "does not pay"});
  }
  return table.text("  ");
}

std::string reasons(const MethodsReport& report) {
  std::string text;
  for (size_t i = 1; i < report.methods.size(); ++i) {
    const MethodAdvice& advice = report.methods[i];
    text += fmt::format("  {} {}because {}\n", label_of(advice.curve),
                        advice.pays ? "pays, " : "does not pay, ", advice.because);
    std::string where;
    const auto add = [&](const std::string& part) { where += (where.empty() ? "" : "; ") + part; };
    if (advice.from_batch && *advice.from_batch > 1)
      add(fmt::format("faster than plain at best from a batch of {:.0f} on",
                      std::ceil(*advice.from_batch)));
    if (advice.memory.below)
      add(fmt::format("pays up to {} of memory for tensors", bytes_text(*advice.memory.below)));
    else if (advice.memory.ever)
      add("pays whatever the memory");
    else if (advice.curve.model)
      add("pays at no size of memory");
    if (advice.depth.below)
      add(fmt::format("here from {:.2g} times the depth on", *advice.depth.below));
    if (!where.empty()) text += fmt::format("    {}\n", where);
  }
  return text;
}

// What was measured, and how well the corrected predictions meet it.
std::string correction_lines(const MethodsReport& report) {
  std::string text;
  for (const MethodAdvice& advice : report.methods) {
    const Correction& by = advice.curve.correction;
    if (!by.any()) continue;
    const BatchPoint* best = advice.curve.best();
    const auto range = [&](const std::optional<double>& part) {
      return part ? fmt::format(", {} samples within {:.1f} %", best->batch, 100 * *part)
                  : std::string();
    };
    text += fmt::format("  {}: ", advice.curve.name);
    if (by.time.points > 0)
      text += fmt::format("time x {:.3f} {} {} by {} measured{}", by.time.scale,
                          by.time.offset < 0 ? "-" : "+",
                          format_seconds(Seconds(std::abs(by.time.offset))), by.time.points,
                          best != nullptr ? range(by.time_range(*best)) : "");
    if (by.parts.points > 0)
      text += fmt::format("host x {:.3f}, device x {:.3f} by {} measured{}", by.parts.host,
                          by.parts.device, by.parts.points,
                          best != nullptr ? range(by.time_range(*best)) : "");
    if (by.peak.points > 0)
      text += fmt::format("{}peak x {:.3f} {} {} by {} measured{}",
                          by.time.points + by.parts.points > 0 ? "; " : "", by.peak.scale,
                          by.peak.offset < 0 ? "-" : "+", bytes_text(std::abs(by.peak.offset)),
                          by.peak.points, best != nullptr ? range(by.peak_range(*best)) : "");
    text += "\n";
  }
  return text.empty() ? "" : "\npredictions are moved by what was measured\n" + text;
}

std::string curve_table(const MethodsReport& report) {
  std::set<int64_t> batches;
  for (const MethodAdvice& advice : report.methods)
    for (const BatchPoint& point : advice.curve.points) batches.insert(point.batch);
  std::vector<Align> aligns(report.methods.size() + 1, Align::Right);
  Table table(aligns);
  std::vector<std::string> head = {"batch"};
  for (const MethodAdvice& advice : report.methods) head.push_back(advice.curve.name);
  table.add(head);
  for (int64_t batch : batches) {
    std::vector<std::string> row = {fmt::format("{}", batch)};
    for (const MethodAdvice& advice : report.methods) {
      const BatchPoint* point = advice.curve.at(batch);
      row.push_back(point != nullptr && point->fits ? rate_text(point->rate()) : "-");
    }
    table.add(row);
  }
  return "\nsamples a second, by batch (-: does not fit)\n" + table.text("  ");
}

std::string mixture_lines(const MethodsReport& report) {
  std::string text;
  for (const MethodAdvice& advice : report.methods) {
    const MethodCurve& curve = advice.curve;
    for (size_t i = 0; i < curve.made_of.size(); ++i)
      if (curve.made_of[i] != "plain")
        text += fmt::format("  {} samples: {}\n", curve.points[i].batch, curve.made_of[i]);
  }
  return text.empty() ? "" : "\nwhat the mixture is\n" + text;
}

std::string model_table(const MethodsReport& report) {
  Table peaks({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
               Align::Right, Align::Right, Align::Right, Align::Right});
  peaks.add({"", "forward", "backward", "update", "error", "time: floor", "offset", "a sample",
             "90 % at", "error"});
  Table papaya({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
                Align::Right, Align::Right, Align::Left});
  papaya.add({"", "memory", "R2", "time", "R2", "hinge R2", "largest batch", "score / point", ""});
  for (const MethodAdvice& advice : report.methods) {
    if (!advice.curve.model) continue;
    const PerformanceModel& model = *advice.curve.model;
    std::vector<std::string> row = {advice.curve.name};
    for (size_t p = 0; p < kStepPhases; ++p)
      row.push_back(fmt::format("{} + b {}", bytes_text(model.peak.intercept[p]),
                                bytes_text(model.peak.slope[p])));
    const auto seconds = [](double value) {
      return value < 0 ? "-" + format_seconds(Seconds(-value)) : format_seconds(Seconds(value));
    };
    row.push_back(fmt::format("{:.1f} %", 100 * model.peak.error));
    row.push_back(seconds(model.time.floor));
    row.push_back(seconds(model.time.offset));
    row.push_back(seconds(model.time.slope));
    const auto full = model.time.saturation();
    row.push_back(full ? fmt::format("b = {:.0f}", std::ceil(*full)) : "b = 1");
    row.push_back(fmt::format("{:.1f} %", 100 * model.time.error));
    peaks.add(row);
    const bool plain = &advice == &report.methods.front();
    const PapayaModel& fit = model.papaya;
    papaya.add(
        {advice.curve.name, fmt::format("{} + b {}", bytes_text(fit.beta), bytes_text(fit.alpha)),
         fmt::format("{:.4f}", fit.memory_r2),
         fmt::format("{} + b {}", seconds(fit.delta), seconds(fit.gamma)),
         fmt::format("{:.3f}", fit.linear_r2), fmt::format("{:.3f}", fit.hinge_r2),
         fit.alpha > 0 ? fmt::format("{:.0f}", std::floor(fit.largest_batch(
                                                   static_cast<double>(report.card.value))))
                       : "-",
         plain ? "-" : fmt::format("{:.3g} / {:.3g}", advice.papaya.score, advice.papaya.point),
         plain                ? ""
         : advice.papaya.pays ? "pays"
                              : "does not pay"});
  }
  return "\nthe models: peak of each phase and time of a step, b samples\n" + peaks.text("  ") +
         "\nPAPAYA's model, fitted to the same steps (largest batch by its rule of 80 %)\n" +
         papaya.text("  ");
}

}  // namespace

std::string methods_text(const MethodsReport& report) {
  return printable(fmt::format(
             "{} on {}, {} for tensors on each device; simulated, {}, run by {}\n", report.model,
             report.machine, format_bytes(report.limit), report.provenance, report.runner)) +
         verdict_table(report) + "\n" + reasons(report) + correction_lines(report) +
         curve_table(report) + mixture_lines(report) + "\n" + methods_plot(report) +
         model_table(report);
}

}  // namespace windlass
