// The runtime of those who are linked with it: the shared library, and tests.
#pragma once

#include "windlass/run/runtime.h"

namespace windlass {

Runtime& linked_runtime();

}  // namespace windlass
