#include "windlass/machine/device_names.h"

#include <algorithm>

#include <fmt/format.h>

namespace windlass {

std::string device_names(const Machine& machine, std::span<const DeviceId> devices) {
  constexpr size_t kMostNames = 4;
  const auto name = [&](DeviceId device) -> const std::string& { return machine[device].name; };
  if (devices.empty()) return "";
  const bool consecutive = std::ranges::adjacent_find(devices, [](DeviceId a, DeviceId b) {
                             return b.value != a.value + 1;
                           }) == devices.end();
  if (devices.size() == 1) return name(devices[0]);
  if (consecutive) return fmt::format("{}..{}", name(devices.front()), name(devices.back()));
  if (devices.size() > kMostNames)
    return fmt::format("{}..{} ({} devices)", name(devices.front()), name(devices.back()),
                       devices.size());
  std::string text = name(devices[0]);
  for (DeviceId device : devices.subspan(1)) text += "+" + name(device);
  return text;
}

std::string limit_text(const Machine& machine) {
  const auto [least, most] = std::ranges::minmax(
      machine.devices, {}, [](const Device& device) { return device.limit.value; });
  if (least.limit == most.limit) return format_bytes(least.limit);
  return fmt::format("{} to {}", format_bytes(least.limit), format_bytes(most.limit));
}

}  // namespace windlass
