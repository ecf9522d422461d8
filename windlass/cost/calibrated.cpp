#include "windlass/cost/calibrated.h"

#include <algorithm>
#include <cmath>

#include "windlass/cost/allocation.h"

namespace windlass {
namespace {

double ratio_at(const KernelRatio& point, CalibrationEnd end) {
  if (end == CalibrationEnd::Low) return point.low;
  return end == CalibrationEnd::High ? point.high : point.ratio;
}

// At the upper end everything is busy at once.
double crowd(const Calibration& calibration, CalibrationEnd end) {
  if (end != CalibrationEnd::High) return 1;
  return std::max(
      {calibration.beside_devices, calibration.beside_copies, calibration.beside_updates});
}

}  // namespace

std::string calibrated_family(const Work& work) {
  // Operations for a byte, so that one number says which kernel counts.
  constexpr double kPerByte = 8;
  const Kernel* most = nullptr;
  double largest = -1;
  for (const Kernel& kernel : work.kernels) {
    const double size = 2 * kernel.multiply_adds + kernel.pointwise +
                        kPerByte * static_cast<double>((kernel.read + kernel.written).value);
    if (size > largest) most = &kernel, largest = size;
  }
  if (most == nullptr) return "";
  return most->compression ? "compression" : std::string(family_name(most->family));
}

Seconds calibrated(const Work& work, Seconds analytic, const Calibration& calibration,
                   CalibrationEnd end) {
  const auto found = calibration.families.find(calibrated_family(work));
  const double all = crowd(calibration, end);
  if (found == calibration.families.end() || analytic.value <= 0) return analytic * all;
  const std::vector<KernelRatio>& points = found->second;
  if (analytic <= points.front().analytic) return analytic * ratio_at(points.front(), end) * all;
  if (analytic >= points.back().analytic) return analytic * ratio_at(points.back(), end) * all;
  const auto above = std::ranges::upper_bound(points, analytic, {}, &KernelRatio::analytic);
  const KernelRatio &low = *(above - 1), &high = *above;
  const double place = std::log(analytic.value / low.analytic.value) /
                       std::log(high.analytic.value / low.analytic.value);
  const double ratio =
      std::exp((1 - place) * std::log(ratio_at(low, end)) + place * std::log(ratio_at(high, end)));
  return analytic * ratio * all;
}

Bytes largest_operands(const Work& work) {
  Bytes most;
  for (const Kernel& kernel : work.kernels) most = std::max(most, kernel.read + kernel.written);
  return most.value > 0 ? std::max(most, Bytes(kAllocationUnit)) : most;
}

std::optional<Bytes> calibrated_workspace(const Work& work, const Calibration& calibration) {
  const auto found = calibration.workspace.find(calibrated_family(work));
  if (found == calibration.workspace.end()) return std::nullopt;
  const double operands = static_cast<double>(largest_operands(work).value);
  const double most = std::min(9e18, std::ceil(found->second * operands));
  return Bytes(static_cast<int64_t>(most));
}

Machine with_copies_at(Machine machine, CalibrationEnd end) {
  if (end == CalibrationEnd::Usual) return machine;
  for (const Device& device : machine.devices) {
    const std::vector<CopyTime>& copies = machine.device_types[device.type].calibration.copies;
    if (copies.empty()) continue;
    // One factor for all sizes, the mean of what they have.
    double logs = 0;
    for (const CopyTime& copy : copies)
      logs += std::log((end == CalibrationEnd::Low ? copy.low : copy.high) / copy.time);
    const double factor = std::exp(logs / static_cast<double>(copies.size()));
    for (Link& link : machine.links)
      if (link.a == device.endpoint || link.b == device.endpoint) {
        link.bandwidth = link.bandwidth / factor;
        link.latency = link.latency * factor;
      }
  }
  return machine;
}

double least_ratio(const Calibration& calibration, CalibrationEnd end) {
  double least = 1;
  for (const auto& [name, points] : calibration.families)
    for (const KernelRatio& point : points) least = std::min(least, ratio_at(point, end));
  return least;
}

}  // namespace windlass
