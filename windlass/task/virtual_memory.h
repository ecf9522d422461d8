// Virtual memory: what a program gets whose memory is paged transparently, without a plan.
#pragma once

#include "windlass/machine/machine.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// The same tasks under demand paging: a buffer that a task uses and that is not on the device comes
// in right before it; when there is no room, what was least recently used goes out, written back
// whether it changed or not. Each device keeps a little free for workspace. A step begins with the
// pages on the devices that it ends with (TaskGraph::carried). Throws Error{Input} if one task
// alone does not fit.
TaskGraph page_on_demand(const TaskGraph& graph, const Machine& machine);

}  // namespace windlass
