#include "windlass/strategy/used_devices.h"

#include <set>

namespace windlass {
namespace {

std::set<DeviceId> members(const Strategy& strategy) {
  std::set<DeviceId> devices;
  if (strategy.packs)
    for (int32_t d = 0; d < strategy.packs->devices(); ++d)
      devices.insert(DeviceId(static_cast<size_t>(d)));
  for (const std::vector<DeviceId>& group : strategy.groups)
    devices.insert(group.begin(), group.end());
  return devices;
}

}  // namespace

std::vector<DeviceId> used_devices(const Strategy& strategy) {
  const std::set<DeviceId> devices = members(strategy);
  return {devices.begin(), devices.end()};
}

std::vector<DeviceId> unused_devices(const Strategy& strategy, const Machine& machine) {
  const std::set<DeviceId> used = members(strategy);
  std::vector<DeviceId> list = all_devices(machine);
  std::erase_if(list, [&](DeviceId device) { return used.contains(device); });
  return list;
}

std::vector<std::string> unused_device_names(const Strategy& strategy, const Machine& machine) {
  std::vector<std::string> names;
  for (DeviceId device : unused_devices(strategy, machine)) names.push_back(machine[device].name);
  return names;
}

}  // namespace windlass
