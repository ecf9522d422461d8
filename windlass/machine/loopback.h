// How fast processes of this host talk to each other over its loopback network.
#pragma once

#include "windlass/base/units.h"

namespace windlass {

struct LoopbackFigures {
  BytesPerSecond bandwidth;  // of one direction
  Seconds latency;           // of a short message
};

// Takes some hundredths of a second. Throws Error{Runtime} if the host has no loopback network.
LoopbackFigures measure_loopback();

}  // namespace windlass
