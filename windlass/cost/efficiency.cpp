#include "windlass/cost/efficiency.h"

#include <algorithm>
#include <cmath>

namespace windlass {
namespace {

// Tiles that matrix libraries choose from, and how well each keeps a unit busy: a small tile reads
// more operands for each multiply-add.
struct Tile {
  double m, n, share;
};
constexpr Tile kTiles[] = {
    {256, 128, 1.0}, {128, 256, 1.0}, {128, 128, 0.97}, {128, 64, 0.85}, {64, 128, 0.85},
    {64, 64, 0.70},  {64, 32, 0.50},  {32, 64, 0.50},   {32, 32, 0.35},
};
constexpr double kSplitShare = 0.9;       // sums of split products are added once more
constexpr double kAttentionRows = 128;    // queries of a tile
constexpr double kOutputsPerUnit = 1024;  // results that keep a unit busy without tiles

double filled(double tiles_per_unit) { return tiles_per_unit / waves(tiles_per_unit); }

// What a product reaches of its best, with tiles of one size.
double tiled_share(const Kernel& kernel, const Tile& tile, double units,
                   const AnalyticOptions& options) {
  const auto m = static_cast<double>(kernel.m), n = static_cast<double>(kernel.n);
  const auto k = static_cast<double>(kernel.k);
  const double rows = std::ceil(m / tile.m), columns = std::ceil(n / tile.n);
  const double used = m * n / (rows * tile.m * columns * tile.n);
  const double load = static_cast<double>(kernel.batch) * rows * columns / units;
  const auto reached = [&](double inner, double tiles) {
    return tile.share * used * filled(tiles) * inner / (inner + options.inner_half);
  };
  const double split = std::min(1 / load, k / options.split_inner);
  const double whole = reached(k, load);
  return split <= 1 ? whole : std::max(whole, kSplitShare * reached(k / split, load * split));
}

double product_share(const Kernel& kernel, double units, const AnalyticOptions& options) {
  double best = 0;
  for (const Tile& tile : kTiles) best = std::max(best, tiled_share(kernel, tile, units, options));
  return best;
}

// No less than product_share() of any piece: a tile that is larger than the product is not full,
// and units without a tile have nothing to do, unless the inner size is split.
double best_product_share(const Kernel& kernel, double units, const AnalyticOptions& options) {
  const auto m = static_cast<double>(kernel.m), n = static_cast<double>(kernel.n);
  const auto k = static_cast<double>(kernel.k);
  double best = 0;
  for (const Tile& tile : kTiles) {
    const double used = std::min(1.0, m / tile.m) * std::min(1.0, n / tile.n);
    const double tiles =
        static_cast<double>(kernel.batch) * std::ceil(m / tile.m) * std::ceil(n / tile.n) / units;
    const double whole = std::min(1.0, tiles);
    const double split =
        kSplitShare * std::min(1.0, tiles * std::max(1.0, k / options.split_inner));
    best = std::max(best, tile.share * used * std::max(whole, split));
  }
  return best * k / (k + options.inner_half);
}

double attention_share(const Kernel& kernel, double units, const AnalyticOptions& options) {
  const double rows = std::ceil(static_cast<double>(kernel.m) / kAttentionRows);
  const double used = static_cast<double>(kernel.m) / (rows * kAttentionRows);
  const auto depth = static_cast<double>(kernel.k);
  return options.attention_share * used * filled(static_cast<double>(kernel.batch) * rows / units) *
         depth / (depth + options.inner_half / 2);
}

// What a device has for a precision.
struct Units {
  double units, peak, fp32;
  bool matrix;
  double matrix_share;  // 0: not known

  Units(const DeviceType& device, Precision precision)
      : units(parallel_units(device)),
        peak(peak_of(device, precision).value),
        fp32(peak_of(device, Precision::Fp32).value),
        matrix(has_matrix_units(device, precision)),
        matrix_share(device.matrix_share) {}

  // `share` is that of tiled products, `outputs_filled` that of the units without tiles.
  double reached(const Kernel& kernel, double share, double outputs_filled,
                 const AnalyticOptions& options) const {
    const double products = matrix_share > 0 ? matrix_share : options.matrix_share;
    double best = matrix ? products : options.vector_share;
    if (kernel.family == OpFamily::Convolution) best *= options.convolution_share;
    best *= share;
    const double untiled = options.pointwise_share * fp32 / peak * outputs_filled;
    const double result = std::clamp(std::max(best, untiled), 1e-9, 1.0);
    const bool winograd = kernel.winograd && !matrix && fp32 >= options.winograd_peak.value;
    return winograd ? result * options.winograd_gain : result;
  }
};

}  // namespace

FlopsPerSecond peak_of(const DeviceType& device, Precision precision) {
  const auto found = device.peak.find(precision);
  if (found != device.peak.end()) return found->second;
  const FlopsPerSecond fp32 = device.peak.at(Precision::Fp32);
  return precision == Precision::Fp64 ? fp32 / 2 : fp32;
}

bool has_matrix_units(const DeviceType& device, Precision precision) {
  return peak_of(device, precision).value > 1.5 * peak_of(device, Precision::Fp32).value;
}

double parallel_units(const DeviceType& device) {
  const double peak = device.peak.at(Precision::Fp32).value / 1e12;
  return std::max(1.0, 7 * std::pow(peak * device.memory_bandwidth.value / 1e9, 0.25));
}

double waves(double tiles_per_unit) {
  return tiles_per_unit <= 1 ? 1 : tiles_per_unit + (1 - 1 / tiles_per_unit) / 2;
}

double efficiency(const Kernel& kernel, const DeviceType& device, const AnalyticOptions& options) {
  if (kernel.m <= 0 || kernel.n <= 0 || kernel.k <= 0 || kernel.batch <= 0) return 1;
  const Units of(device, kernel.precision);
  const double share = kernel.family == OpFamily::Attention
                           ? attention_share(kernel, of.units, options)
                           : product_share(kernel, of.units, options);
  const double outputs = static_cast<double>(kernel.batch) * static_cast<double>(kernel.m) *
                         static_cast<double>(kernel.n);
  return of.reached(kernel, share, filled(outputs / (of.units * kOutputsPerUnit)), options);
}

double best_efficiency(const Kernel& kernel, const DeviceType& device,
                       const AnalyticOptions& options) {
  if (kernel.m <= 0 || kernel.n <= 0 || kernel.k <= 0 || kernel.batch <= 0)
    return std::max(1.0, options.winograd_gain);
  const Units of(device, kernel.precision);
  if (kernel.family != OpFamily::Attention)
    return of.reached(kernel, best_product_share(kernel, of.units, options), 1, options);
  const auto depth = static_cast<double>(kernel.k);
  const double share = options.attention_share *
                       std::min(1.0, static_cast<double>(kernel.m) / kAttentionRows) * depth /
                       (depth + options.inner_half / 2);
  return of.reached(kernel, share, 1, options);
}

}  // namespace windlass
