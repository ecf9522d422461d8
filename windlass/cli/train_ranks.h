// Training in several processes: those that this one starts itself, and what they make sure of
// before they train together.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "windlass/cli/cli.h"
#include "windlass/cli/train_flags.h"
#include "windlass/run/ranks.h"

namespace windlass {

// Whether this process shall start others, and wait for them: --hosts, and nobody has started it as
// one of several.
bool starts_ranks(const TrainFlags& flags);
// Starts them with the command line of this process. Prints what they print. The exit code is that
// of the first that failed; those that do not end by themselves afterwards are killed.
ExitCode start_ranks(const TrainFlags& flags);

// With --least-hosts: the machine has as many hosts as there are processes. Throws Error{Input} if
// they are too few, or the plan is for a number of its own.
void take_hosts_left(TrainFlags& flags, const Ranks* ranks);

// What must be the same on all ranks before anything is loaded: names of facts, and what they are
// here. Throws as ModelFlags::model() does.
std::vector<std::pair<std::string, std::string>> settings_of(const TrainFlags& flags);

// All ranks must see the folder that rank 0 sees there: each writes its part of a checkpoint.
// Throws Error{Runtime} naming those that do not, on all ranks.
void check_shared_folder(Ranks& ranks, const std::string& folder);

// --rehearse: exit code 3 if something is wrong.
ExitCode run_rehearsal(const TrainFlags& flags);

}  // namespace windlass
