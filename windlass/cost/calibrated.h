// Analytic prices moved to where kernels of a device were measured: by family of ops and by size.
#pragma once

#include <optional>
#include <string>

#include "windlass/cost/cost_model.h"

namespace windlass {

// The family that a piece of work is priced as: that of the kernel with the most bytes and
// arithmetic.
std::string calibrated_family(const Work& work);

// `analytic` is what the model says of the work on the device. Between two sizes that were measured
// times follow a power law, beyond them the nearest ratio holds: larger work never gets cheaper.
Seconds calibrated(const Work& work, Seconds analytic, const Calibration& calibration,
                   CalibrationEnd end);

// Bytes of the operands of the largest of its kernels: what workspace is told in proportion to. At
// least an allocation: what is held beside a few numbers says nothing of kernels with many.
Bytes largest_operands(const Work& work);
// Bytes that its kernels hold beside operands and results; none: its family was not seen.
std::optional<Bytes> calibrated_workspace(const Work& work, const Calibration& calibration);

// The machine whose links take what copies to its calibrated devices took at an end of their range.
Machine with_copies_at(Machine machine, CalibrationEnd end);

// No price is less than its analytic one times this.
double least_ratio(const Calibration& calibration, CalibrationEnd end);

}  // namespace windlass
