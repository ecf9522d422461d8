#include <cmath>

#include <nlohmann/json.hpp>

#include "windlass/report/methods_text.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

// JSON has no infinities.
ordered_json number(double value) {
  return std::isfinite(value) ? ordered_json(value) : ordered_json(nullptr);
}

ordered_json point_json(const MethodCurve& curve, size_t i) {
  const BatchPoint& point = curve.points[i];
  ordered_json json = {{"batch", point.batch},
                       {"fits", point.fits},
                       {"step_time_s", point.time.value},
                       {"samples_per_s", point.rate()},
                       {"peak_bytes", point.peak.value}};
  for (size_t p = 0; p < kStepPhases; ++p)
    json[std::string(phase_name(static_cast<StepPhase>(p))) + "_peak_bytes"] =
        point.phases[p].value;
  if (const auto range = curve.correction.time_range(point)) json["step_time_range"] = *range;
  if (const auto range = curve.correction.peak_range(point)) json["peak_range"] = *range;
  if (i < curve.made_of.size()) json["made_of"] = curve.made_of[i];
  return json;
}

ordered_json model_json(const PerformanceModel& model) {
  ordered_json peak;
  for (size_t p = 0; p < kStepPhases; ++p)
    peak[phase_name(static_cast<StepPhase>(p))] = {
        {"bytes", number(model.peak.intercept[p])},
        {"bytes_per_sample", number(model.peak.slope[p])}};
  peak["largest_error"] = number(model.peak.error);
  const auto full = model.time.saturation();
  return {{"peak", peak},
          {"time",
           {{"floor_s", number(model.time.floor)},
            {"offset_s", number(model.time.offset)},
            {"s_per_sample", number(model.time.slope)},
            {"sharpness", model.time.sharpness},
            {"saturation_batch", full ? number(*full) : ordered_json(1)},
            {"largest_error", number(model.time.error)}}}};
}

ordered_json papaya_json(const MethodAdvice& advice, double card, bool plain) {
  const PapayaModel& fit = advice.curve.model->papaya;
  ordered_json json = {{"bytes_per_sample", number(fit.alpha)},
                       {"bytes", number(fit.beta)},
                       {"s_per_sample", number(fit.gamma)},
                       {"s", number(fit.delta)},
                       {"hinge", {{"a_s", fit.a}, {"k_s_per_sample", fit.k}, {"c_s", fit.c}}},
                       {"memory_r2", number(fit.memory_r2)},
                       {"throughput_r2", number(fit.linear_r2)},
                       {"hinge_throughput_r2", number(fit.hinge_r2)},
                       {"largest_batch", number(fit.largest_batch(card))}};
  if (plain) return json;
  json["score"] = number(advice.papaya.score);
  json["point"] = number(advice.papaya.point);
  json["pays"] = advice.papaya.pays;
  return json;
}

ordered_json crossing_json(const Crossing& crossing, const char* key) {
  ordered_json json = {{"ever", crossing.ever}};
  if (crossing.below) json[key] = number(*crossing.below);
  return json;
}

}  // namespace

ordered_json methods_json(const MethodsReport& report) {
  ordered_json json = {{"model", report.model},
                       {"machine", report.machine},
                       {"runner", report.runner},
                       {"provenance", "simulated, " + report.provenance + " cost model"},
                       {"devices", report.devices},
                       {"limit_bytes", report.limit.value},
                       {"card_bytes", report.card.value}};
  auto& methods = json["methods"] = ordered_json::array();
  for (const MethodAdvice& advice : report.methods) {
    const MethodCurve& curve = advice.curve;
    const bool plain = &advice == &report.methods.front();
    ordered_json entry = {{"method", curve.name}, {"lossy", curve.lossy}};
    entry["largest_batch"] = curve.largest ? ordered_json(*curve.largest) : ordered_json(nullptr);
    if (const BatchPoint* best = curve.best()) {
      entry["best_batch"] = best->batch;
      entry["best_samples_per_s"] = best->rate();
    }
    if (!plain) {
      entry["pays"] = advice.pays;
      entry["because"] = advice.because;
      if (advice.gain > 0) entry["gain"] = advice.gain;
      if (advice.compared_at) {
        entry["compared_at_batch"] = *advice.compared_at;
        entry["time_ratio"] = advice.slower;
        entry["saved_bytes"] = advice.saved.value;
        entry["s_per_saved_byte"] = advice.seconds_per_byte;
      }
      if (advice.from_batch) entry["faster_from_batch"] = number(*advice.from_batch);
      entry["memory"] = crossing_json(advice.memory, "pays_below_bytes");
      entry["depth"] = crossing_json(advice.depth, "pays_from_factor");
    }
    if (const Correction& by = curve.correction; by.any()) {
      entry["correction"] = {
          {"times", by.time.points},           {"time_scale", by.time.scale},
          {"time_offset_s", by.time.offset},   {"time_noise", by.time.noise},
          {"times_in_parts", by.parts.points}, {"host_scale", by.parts.host},
          {"device_scale", by.parts.device},   {"peaks", by.peak.points},
          {"peak_scale", by.peak.scale},       {"peak_offset_bytes", by.peak.offset},
          {"peak_noise", by.peak.noise}};
    }
    auto& points = entry["points"] = ordered_json::array();
    for (size_t i = 0; i < curve.points.size(); ++i) points.push_back(point_json(curve, i));
    if (curve.model) {
      entry["model"] = model_json(*curve.model);
      entry["papaya"] = papaya_json(advice, static_cast<double>(report.card.value), plain);
    }
    methods.push_back(std::move(entry));
  }
  return json;
}

}  // namespace windlass
