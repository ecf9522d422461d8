// What the host that windlass runs on has, and how fast it is.
#pragma once

#include <cstdint>

#include "windlass/base/units.h"

namespace windlass {

// Rates are measured where they are named so. "One" is by one thread alone, "all" by one thread on
// each core at the same time.
struct HostFigures {
  int64_t cores = 1;        // this process may use; a container's limit counts
  Bytes memory;             // physical, or a container's limit
  FlopsPerSecond peak_one;  // fp32 multiply-adds in registers, in the widest vectors there are
  FlopsPerSecond peak_all;
  BytesPerSecond triad_one;  // a[i] = b[i] + s c[i] over more than the caches hold
  BytesPerSecond triad_all;
  BytesPerSecond copy_one;  // memcpy: bytes copied, each of which is read and written
  BytesPerSecond copy_all;
  Seconds handoff{10e-6};  // from a thread that says so to another that waits for it
};

// Takes about a quarter of a second and 120 MiB. Another load on the host lowers the
// figures, as it would lower a run.
HostFigures measure_host();

}  // namespace windlass
