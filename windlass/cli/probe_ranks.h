// `windlass machine probe` in several processes: the hosts they run on, and the links between them.
#pragma once

#include "windlass/cli/machine_flags.h"
#include "windlass/machine/probe.h"
#include "windlass/run/ranks.h"

namespace windlass {

// All ranks call it; all get the same machine. Processes on different computers: a host each, with
// `--devices` CPU devices or its cards; of several processes of a computer the first one measures,
// and it has as many devices by default. Processes of one computer: each is a host of its own, as
// `local` with `--hosts` has them, unless there are cards. Throws Error{Runtime} on all ranks if a
// link or a rank does not answer for `time_out` seconds, or if the ranks of a computer do not stand
// side by side.
ProbeResult probe_ranks(Ranks& ranks, const MachineFlags& flags, double time_out);

}  // namespace windlass
