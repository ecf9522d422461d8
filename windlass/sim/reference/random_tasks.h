// Random task graphs, to hold simulators against each other and to time them.
#pragma once

#include "windlass/base/rng.h"
#include "windlass/sim/simulate.h"

namespace windlass {

struct RandomTasks {
  TaskGraph graph;
  TaskTimes times;
};

// Small and nasty: a few teams, tasks on several lanes, buffers of all sorts, shared links, many
// ties; limits that sometimes bind, predecessors that now and then come after their task.
RandomTasks random_tasks(Rng& rng, size_t count);

// Like a training step: each of the teams computes, sends, swaps and reduces, mostly on its newest
// results; about two predecessors and three uses a task. One in ten moves bytes. Limits never bind.
// What a team does repeats after `period` tasks, as layers and micro-batches do.
RandomTasks training_like_tasks(uint64_t seed, size_t count, size_t teams, size_t period = 200);

}  // namespace windlass
