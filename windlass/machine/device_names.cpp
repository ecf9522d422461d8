#include "windlass/machine/device_names.h"

#include <algorithm>

#include <fmt/format.h>

namespace windlass {

std::string device_names(const Machine& machine, std::span<const DeviceId> devices) {
  constexpr size_t kMostRuns = 4;
  const auto name = [&](DeviceId device) -> const std::string& { return machine[device].name; };
  if (devices.empty()) return "";
  std::string text;
  size_t runs = 0;
  for (size_t begin = 0; begin < devices.size(); ++runs) {
    size_t end = begin + 1;
    while (end < devices.size() && devices[end].value == devices[end - 1].value + 1) ++end;
    text += (begin == 0 ? "" : "+") + name(devices[begin]);
    if (end - begin > 1) text += ".." + name(devices[end - 1]);
    begin = end;
  }
  if (runs > kMostRuns)
    return fmt::format("{}..{} ({} devices)", name(devices.front()), name(devices.back()),
                       devices.size());
  return text;
}

std::string limit_text(const Machine& machine) {
  const auto [least, most] = std::ranges::minmax(
      machine.devices, {}, [](const Device& device) { return device.limit.value; });
  if (least.limit == most.limit) return format_bytes(least.limit);
  return fmt::format("{} to {}", format_bytes(least.limit), format_bytes(most.limit));
}

}  // namespace windlass
