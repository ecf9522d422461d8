// Steps that were predicted and then carried out on this host, and how well one meets the other:
// plain data, its statistics, and both as text and JSON.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/plan/performance_model.h"

namespace windlass {

struct SweepPoint {
  BatchPoint predicted, measured;  // of `measured` no phases
  bool profiled = false;           // kernels of this batch were the input of the prediction
};

// One way to save memory on one model.
struct SweepGroup {
  std::string model, method;
  std::vector<SweepPoint> points;  // ascending batches
  // Largest batch inside of the limit: as predicted, and whether that many ran inside of it and
  // one sample more took more than the limit. None: not tried.
  std::optional<int64_t> largest;
  std::optional<bool> largest_runs, next_exceeds;

  double peak_r2() const;
  double rate_r2() const;
  // Mean of |predicted / measured - 1|.
  double peak_error() const;
  double rate_error() const;
  // The most samples a second of the points that fit; 0: none does.
  double best_rate(bool measured) const;
  // Median relative error of throughput at the other points, after a correction by the measured
  // steps of the three smallest batches; and that of PAPAYA's line through these. None: fewer than
  // four points.
  std::optional<double> few_shot_error() const;
  std::optional<double> papaya_error() const;
};

struct SweepModel {
  std::string name;
  Bytes limit;                     // of the device
  std::vector<int64_t> profiled;   // the two batches whose kernels were measured
  std::vector<SweepGroup> groups;  // the first is plain
};

struct MeasuredSweep {
  std::string machine, provenance;
  std::vector<SweepModel> models;

  // What is asked of each group: R2 of peaks and of throughput at least, mean error of throughput
  // below.
  static constexpr double kPeakBar = 0.999, kRateBar = 0.97, kErrorBar = 0.08;
  static bool passed(const SweepGroup& group);
};

// Whether a method's best throughput inside of the limit is above plain's, as predicted and as
// measured; none if they differ by less than `close` in the measurement.
struct SweepDecision {
  bool predicted = false, measured = false;
};
std::optional<SweepDecision> decision_of(const SweepGroup& plain, const SweepGroup& method,
                                         double close = 0.05);

// Throughput of plain training over that of a method, at the same batches of a model: the least and
// the most, measured and predicted.
struct SweepCost {
  double best = 0, worst = 0, predicted_best = 0, predicted_worst = 0;
  std::string best_at, worst_at;  // "gpt2, 8 samples"
};
std::optional<SweepCost> cost_of(const MeasuredSweep& sweep, const std::string& method);

std::string sweep_text(const MeasuredSweep& sweep);
nlohmann::ordered_json sweep_json(const MeasuredSweep& sweep);

}  // namespace windlass
