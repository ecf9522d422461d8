// How much of its peak a device reaches on a product: tiles, waves of tiles, and short inner sizes.
#pragma once

#include "windlass/cost/cost_model.h"

namespace windlass {

// Rate for a precision; a device that does not list it runs fp64 at half of fp32, others as fp32.
FlopsPerSecond peak_of(const DeviceType& device, Precision precision);

// Whether it multiplies a precision by units of its own, which are faster than those for fp32.
bool has_matrix_units(const DeviceType& device, Precision precision);

// Parts of a device that work on a tile each (SMs, cores), from its data sheet: 7 times the fourth
// root of fp32 TFLOPS times GB/s. Within 20 % of the true number of SMs for V100, 2080 Ti, A100,
// 3090, 4090 and H100, twice that of the 1080 Ti.
double parallel_units(const DeviceType& device);

// Time units that `tiles` per unit take: 1 up to one tile each, then as many as tiles and on
// average half a one lost in the last wave.
double waves(double tiles_per_unit);

// Share of peak_of(device, kernel.precision) on a kernel with multiply_adds; in (0, 1], and up to
// the gain above that where Winograd's algorithm is used.
double efficiency(const Kernel& kernel, const DeviceType& device, const AnalyticOptions& options);

// No less than the efficiency on any piece of the kernel: all tiles full and all units busy, as far
// as its sizes allow.
double best_efficiency(const Kernel& kernel, const DeviceType& device,
                       const AnalyticOptions& options);

}  // namespace windlass
