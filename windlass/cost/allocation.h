// How memory is handed out.
#pragma once

#include <cstdint>

#include "windlass/base/units.h"

namespace windlass {

// Allocators hand out multiples of this.
constexpr int64_t kAllocationUnit = 512;
constexpr Bytes allocated(int64_t bytes) {
  return Bytes((bytes + kAllocationUnit - 1) / kAllocationUnit * kAllocationUnit);
}

}  // namespace windlass
