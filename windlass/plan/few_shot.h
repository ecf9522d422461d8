// A few measured steps move a prediction: from a CSV file that somebody wrote beside their own
// training, on whatever machine.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/plan/performance_model.h"

namespace windlass {

struct MeasuredPoint {
  int64_t batch = 0;
  std::string method;
  std::optional<Bytes> peak;
  std::optional<Seconds> time;
};

// "batch,method,peak_bytes,step_time_s", a header and a line for each step; either of the last two
// may be empty. Throw Error{Input} naming the line.
std::vector<MeasuredPoint> measured_from_csv(std::string_view text, const std::string& where);
// A file of these; or as FILE@BATCH or FILE@BATCH,METHOD a trace or a snapshot of PyTorch
// (read_trace.h), which is one step.
std::vector<MeasuredPoint> read_measured(const std::string& name);

// measured = offset + scale x predicted. One point moves times by a scale (another host, another
// clock) and peaks by an offset (a context, a workspace); two or more give both, by least squares
// of relative errors. The scale stays within a factor of ten.
struct Correction {
  double time_offset = 0, time_scale = 1;  // seconds
  double peak_offset = 0, peak_scale = 1;  // bytes
  size_t times = 0, peaks = 0;             // points behind them
  // Largest relative error that is left at those points; none: too few to tell.
  std::optional<double> time_range, peak_range;

  bool any() const { return times + peaks > 0; }
  // The point as it is to be expected. Whether it fits is asked of the corrected peak.
  BatchPoint applied(const BatchPoint& predicted, Bytes limit) const;
};
// `predicted`: for each measured point the simulated one of the same batch and method.
Correction fit_correction(const std::vector<MeasuredPoint>& measured,
                          const std::vector<BatchPoint>& predicted);

}  // namespace windlass
