// This host, found out.
#pragma once

#include <string>
#include <vector>

#include "windlass/machine/machine.h"

namespace windlass {

struct ProbeResult {
  Machine machine;
  std::vector<std::string> notes;  // what could not be found out and was assumed
};

// This host with its NVIDIA cards, if the program nvidia-smi is on PATH and finds any; else as one
// CPU device, which is `local`. Rates of the host are measured, those of cards are looked up.
ProbeResult probe_host();

}  // namespace windlass
