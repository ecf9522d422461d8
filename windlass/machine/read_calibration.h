// The section "calibration" of a device type in a machine file (docs/machine_format.md).
#pragma once

#include "windlass/base/json_object.h"
#include "windlass/machine/machine.h"

namespace windlass {

// Throws Error{Input} naming the place, also where larger kernels would take less.
Calibration read_calibration(JsonObject object);

}  // namespace windlass
