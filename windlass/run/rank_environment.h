// Where this process stands among those of a run, as whoever started it says: torchrun, mpirun,
// srun, or `windlass train --hosts`.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "windlass/run/ranks.h"

namespace windlass {

// Of local processes that `windlass train` starts itself: the file where they meet.
inline constexpr const char* kMeetingVariable = "WINDLASS_MEETING";

// `get` is getenv. None: nobody says anything, or there is one process only. Understood are
// - RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT (torchrun; with its agent's store if there is one),
// - OMPI_COMM_WORLD_RANK and _SIZE (mpirun): MASTER_ADDR may be left away if all are on this host,
// - SLURM_PROCID, SLURM_STEP_NUM_TASKS (srun): MASTER_ADDR is the first host of the step if it is
//   not set.
// MASTER_PORT is 29500 if it is not set. Throws Error{Input} naming the variable that is missing
// (also if just one of RANK and WORLD_SIZE is set, and nobody else says anything) or is no number
// in its range.
std::optional<RankPlace> rank_from_environment(const std::function<const char*(const char*)>& get);

// Whether an address is one that no other host reaches.
bool is_loopback(const std::string& address);

// The first host of a list as Slurm writes them: "node[03-07,12],login" has "node03".
std::string first_host(const std::string& list);

}  // namespace windlass
