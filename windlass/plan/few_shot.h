// A few measured steps move a prediction.
#pragma once

#include <optional>
#include <vector>

#include "windlass/plan/performance_model.h"
#include "windlass/plan/read_measured.h"

namespace windlass {

// measured = offset + scale x predicted, as far as a few points say. They are weighed against what
// is known before (docs/when_memory_methods_pay.md): times of one host differ from predicted ones
// by a factor more than by an offset, peaks by an offset more than by a factor. So one point moves
// times by a scale and peaks by an offset, and noise of a few small batches is not carried out to
// large ones whole.
struct CorrectionLine {
  double offset = 0, scale = 1;  // seconds or bytes
  size_t points = 0;             // behind them; 0: predictions stay
  double noise = 0;  // relative, of one measured point: what is left, at least the usual
  double offset_variance = 0, scale_variance = 0, covariance = 0;

  double at(double predicted) const { return offset + scale * predicted; }
  // Two standard deviations of a measured point there, over at().
  double range(double predicted) const;
};

// measured = ((h host)^p + (d device)^p)^(1/p): where both are known apart (BatchPoint), each has a
// factor of its own, so that what small batches say of the host is not taken for what the device
// does with large ones. Before anything is measured, the host is known to a factor of 1.6, the
// device to a fifth.
struct CorrectionParts {
  double host = 1, device = 1;
  size_t points = 0;
  double noise = 0;                                               // as in CorrectionLine
  double host_variance = 0, device_variance = 0, covariance = 0;  // of their logarithms

  double at(const BatchPoint& predicted) const;
  double range(const BatchPoint& predicted) const;  // as in CorrectionLine
};

struct Correction {
  CorrectionLine time, peak;
  CorrectionParts parts;  // instead of `time`, if it has points

  bool any() const { return time.points + peak.points + parts.points > 0; }
  // The point as it is to be expected. Whether it fits is asked of the corrected peak.
  BatchPoint applied(const BatchPoint& predicted, Bytes limit) const;
  // Ranges of a point that was made by applied(); none: nothing was measured.
  std::optional<double> time_range(const BatchPoint& applied) const;
  std::optional<double> peak_range(const BatchPoint& applied) const;
};
// `predicted`: for each measured point the simulated one of the same batch and method.
Correction fit_correction(const std::vector<MeasuredPoint>& measured,
                          const std::vector<BatchPoint>& predicted);

}  // namespace windlass
