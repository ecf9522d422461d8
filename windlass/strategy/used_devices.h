// The devices that take part in a strategy. Others of the machine hold nothing and do nothing.
#pragma once

#include <string>
#include <vector>

#include "windlass/strategy/strategy.h"

namespace windlass {

// Ascending.
std::vector<DeviceId> used_devices(const Strategy& strategy);
std::vector<DeviceId> unused_devices(const Strategy& strategy, const Machine& machine);
std::vector<std::string> unused_device_names(const Strategy& strategy, const Machine& machine);

}  // namespace windlass
