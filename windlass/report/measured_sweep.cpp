#include "windlass/report/measured_sweep.h"

#include <algorithm>
#include <cmath>
#include <set>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/plan/few_shot.h"

namespace windlass {
namespace {

constexpr size_t kFewShots = 3;

template <typename Value>
std::vector<double> values(const SweepGroup& group, bool measured, const Value& value) {
  std::vector<double> list;
  for (const SweepPoint& point : group.points)
    list.push_back(value(measured ? point.measured : point.predicted));
  return list;
}

double peak_of(const BatchPoint& point) { return static_cast<double>(point.peak.value); }
double rate_of(const BatchPoint& point) { return point.rate(); }

double mean_error(const std::vector<double>& measured, const std::vector<double>& predicted) {
  double sum = 0;
  for (size_t i = 0; i < measured.size(); ++i) sum += std::abs(predicted[i] / measured[i] - 1);
  return measured.empty() ? 0 : sum / static_cast<double>(measured.size());
}

double median(std::vector<double> list) {
  std::ranges::sort(list);
  const size_t half = list.size() / 2;
  return list.size() % 2 == 1 ? list[half] : (list[half - 1] + list[half]) / 2;
}

std::string percent(std::optional<double> share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

std::string largest_text(const SweepGroup& group) {
  if (!group.largest) return "-";
  std::string text = std::to_string(*group.largest);
  if (group.largest_runs && !*group.largest_runs) return text + " (does not run)";
  if (group.next_exceeds && !*group.next_exceeds) return text + " (more fit)";
  if (group.largest_runs && group.next_exceeds) return text + " exact";
  return group.largest_runs ? text + " runs" : text;
}

std::vector<std::string> methods_of(const MeasuredSweep& sweep) {
  std::vector<std::string> names;
  for (const SweepModel& model : sweep.models)
    for (const SweepGroup& group : model.groups)
      if (group.method != "plain" && std::ranges::find(names, group.method) == names.end())
        names.push_back(group.method);
  return names;
}

nlohmann::ordered_json optional_json(const auto& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
}

}  // namespace

double SweepGroup::peak_r2() const {
  return r_squared(values(*this, true, peak_of), values(*this, false, peak_of));
}
double SweepGroup::rate_r2() const {
  return r_squared(values(*this, true, rate_of), values(*this, false, rate_of));
}
double SweepGroup::peak_error() const {
  return mean_error(values(*this, true, peak_of), values(*this, false, peak_of));
}
double SweepGroup::rate_error() const {
  return mean_error(values(*this, true, rate_of), values(*this, false, rate_of));
}

double SweepGroup::best_rate(bool measured) const {
  double best = 0;
  for (const SweepPoint& point : points) {
    const BatchPoint& side = measured ? point.measured : point.predicted;
    if (side.fits) best = std::max(best, side.rate());
  }
  return best;
}

std::optional<double> SweepGroup::few_shot_error() const {
  if (points.size() <= kFewShots) return std::nullopt;
  std::vector<MeasuredPoint> measured;
  std::vector<BatchPoint> predicted;
  for (size_t i = 0; i < kFewShots; ++i) {
    const BatchPoint& point = points[i].measured;
    measured.push_back({point.batch, method, point.peak, point.time});
    predicted.push_back(points[i].predicted);
  }
  const Correction correction = fit_correction(measured, predicted);
  std::vector<double> errors;
  for (size_t i = kFewShots; i < points.size(); ++i)
    errors.push_back(std::abs(correction.applied(points[i].predicted, Bytes(INT64_MAX)).rate() /
                                  points[i].measured.rate() -
                              1));
  return median(errors);
}

std::optional<double> SweepGroup::papaya_error() const {
  if (points.size() <= kFewShots) return std::nullopt;
  std::vector<BatchPoint> first;
  for (size_t i = 0; i < kFewShots; ++i) first.push_back(points[i].measured);
  const PapayaModel papaya = fit_performance(first).papaya;
  std::vector<double> errors;
  for (size_t i = kFewShots; i < points.size(); ++i) {
    const auto batch = static_cast<double>(points[i].measured.batch);
    errors.push_back(std::abs(batch / papaya.line_at(batch) / points[i].measured.rate() - 1));
  }
  return median(errors);
}

bool MeasuredSweep::passed(const SweepGroup& group) {
  return group.peak_r2() >= kPeakBar && group.rate_r2() >= kRateBar &&
         group.rate_error() < kErrorBar && group.largest_runs.value_or(true) &&
         group.next_exceeds.value_or(true);
}

std::optional<SweepDecision> decision_of(const SweepGroup& plain, const SweepGroup& method,
                                         double close) {
  const double was = plain.best_rate(true), is = method.best_rate(true);
  if (was <= 0 || is <= 0 || std::abs(is / was - 1) < close) return std::nullopt;
  return SweepDecision{method.best_rate(false) > plain.best_rate(false), is > was};
}

std::optional<SweepCost> cost_of(const MeasuredSweep& sweep, const std::string& method) {
  std::optional<SweepCost> cost;
  for (const SweepModel& model : sweep.models)
    for (const SweepGroup& group : model.groups) {
      if (group.method != method) continue;
      for (const SweepPoint& point : group.points) {
        const auto plain = std::ranges::find(model.groups.front().points, point.measured.batch,
                                             [](const SweepPoint& p) { return p.measured.batch; });
        if (plain == model.groups.front().points.end()) continue;
        const double times = plain->measured.rate() / point.measured.rate();
        const double foretold = plain->predicted.rate() / point.predicted.rate();
        const std::string at = fmt::format("{}, {} samples", model.name, point.measured.batch);
        if (!cost) cost = {times, times, foretold, foretold, at, at};
        if (times < cost->best)
          cost->best = times, cost->predicted_best = foretold, cost->best_at = at;
        if (times > cost->worst)
          cost->worst = times, cost->predicted_worst = foretold, cost->worst_at = at;
      }
    }
  return cost;
}

std::string sweep_text(const MeasuredSweep& sweep) {
  std::string text =
      fmt::format("steps on {}, predicted from {}\n", sweep.machine, sweep.provenance);
  size_t passed = 0, groups = 0, decided = 0, right = 0;
  for (const SweepModel& model : sweep.models) {
    text += fmt::format("\n{}, limit {}; kernels profiled at batches {} and {}\n", model.name,
                        format_bytes(model.limit), model.profiled.front(), model.profiled.back());
    Table points({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
                  Align::Right, Align::Right});
    points.add({"", "batch", "peak", "measured", "error", "samples/s", "measured", "error"});
    Table table({Align::Left, Align::Right, Align::Right, Align::Right, Align::Right, Align::Right,
                 Align::Right, Align::Left, Align::Left});
    table.add({"", "peak R2", "error", "samples/s R2", "error", "few-shot", "PAPAYA's form",
               "largest batch", "pays"});
    for (const SweepGroup& group : model.groups) {
      for (const SweepPoint& point : group.points)
        points.add(
            {group.method,
             fmt::format("{}{}", point.measured.batch, point.predicted.fits ? "" : " (over)"),
             format_bytes(point.predicted.peak), format_bytes(point.measured.peak),
             fmt::format("{:+.2f} %",
                         100 * (peak_of(point.predicted) / peak_of(point.measured) - 1)),
             fmt::format("{:.4g}", point.predicted.rate()),
             fmt::format("{:.4g}", point.measured.rate()),
             fmt::format("{:+.1f} %", 100 * (point.predicted.rate() / point.measured.rate() - 1))});
      std::string pays = "-";
      if (const auto decision = decision_of(model.groups.front(), group)) {
        const bool agree = decision->predicted == decision->measured;
        pays = fmt::format("{}{}", decision->measured ? "yes" : "no",
                           agree ? ", as predicted" : ", predicted otherwise");
        ++decided;
        right += agree ? 1 : 0;
      }
      table.add({group.method, fmt::format("{:.5f}", group.peak_r2()),
                 fmt::format("{:.2f} %", 100 * group.peak_error()),
                 fmt::format("{:.4f}", group.rate_r2()),
                 fmt::format("{:.1f} %", 100 * group.rate_error()), percent(group.few_shot_error()),
                 percent(group.papaya_error()), largest_text(group), pays});
      ++groups;
      passed += MeasuredSweep::passed(group) ? 1 : 0;
    }
    text += points.text("  ") + "\n" + table.text("  ");
  }
  Table costs({Align::Left, Align::Right, Align::Right, Align::Left, Align::Right, Align::Right,
               Align::Left});
  costs.add({"", "at best", "predicted", "", "at worst", "predicted", ""});
  for (const std::string& method : methods_of(sweep))
    if (const auto cost = cost_of(sweep, method))
      costs.add({method, fmt::format("{:.2f}x", cost->best),
                 fmt::format("{:.2f}x", cost->predicted_best), cost->best_at,
                 fmt::format("{:.2f}x", cost->worst), fmt::format("{:.2f}x", cost->predicted_worst),
                 cost->worst_at});
  text += "\nthroughput of plain training over that of a method, at the same batch\n";
  text += costs.text("  ");
  text += fmt::format(
      "\n{} of {} groups within the bars (R2 of peaks {}, of throughput {}, mean error below "
      "{:.0f} "
      "%, largest batch);\n{} of {} decisions right where throughputs differ by 5 % or more\n",
      passed, groups, MeasuredSweep::kPeakBar, MeasuredSweep::kRateBar,
      100 * MeasuredSweep::kErrorBar, right, decided);
  return text;
}

nlohmann::ordered_json sweep_json(const MeasuredSweep& sweep) {
  nlohmann::ordered_json json = {{"machine", sweep.machine}, {"provenance", sweep.provenance}};
  bool passed = true;
  auto& models = json["models"] = nlohmann::ordered_json::array();
  for (const SweepModel& model : sweep.models) {
    nlohmann::ordered_json entry = {{"model", model.name},
                                    {"limit_bytes", model.limit.value},
                                    {"profiled_batches", model.profiled},
                                    {"groups", nlohmann::ordered_json::array()}};
    for (const SweepGroup& group : model.groups) {
      nlohmann::ordered_json made = {{"method", group.method},
                                     {"peak_r2", group.peak_r2()},
                                     {"peak_error", group.peak_error()},
                                     {"samples_per_s_r2", group.rate_r2()},
                                     {"samples_per_s_error", group.rate_error()},
                                     {"few_shot_error", optional_json(group.few_shot_error())},
                                     {"papaya_few_shot_error", optional_json(group.papaya_error())},
                                     {"largest_batch", optional_json(group.largest)},
                                     {"largest_batch_runs", optional_json(group.largest_runs)},
                                     {"one_more_exceeds", optional_json(group.next_exceeds)},
                                     {"passed", MeasuredSweep::passed(group)}};
      if (const auto decision = decision_of(model.groups.front(), group))
        made["pays"] = {{"predicted", decision->predicted}, {"measured", decision->measured}};
      for (const SweepPoint& point : group.points)
        made["points"].push_back({{"batch", point.measured.batch},
                                  {"fits", point.predicted.fits},
                                  {"predicted_peak_bytes", point.predicted.peak.value},
                                  {"measured_peak_bytes", point.measured.peak.value},
                                  {"predicted_step_time_s", point.predicted.time.value},
                                  {"measured_step_time_s", point.measured.time.value},
                                  {"predicted_samples_per_s", point.predicted.rate()},
                                  {"measured_samples_per_s", point.measured.rate()},
                                  {"profiled", point.profiled}});
      passed = passed && MeasuredSweep::passed(group);
      entry["groups"].push_back(std::move(made));
    }
    models.push_back(std::move(entry));
  }
  for (const std::string& method : methods_of(sweep))
    if (const auto cost = cost_of(sweep, method))
      json["costs"].push_back({{"method", method},
                               {"best", cost->best},
                               {"predicted_best", cost->predicted_best},
                               {"best_at", cost->best_at},
                               {"worst", cost->worst},
                               {"predicted_worst", cost->predicted_worst},
                               {"worst_at", cost->worst_at}});
  json["passed"] = passed;
  return json;
}

}  // namespace windlass
