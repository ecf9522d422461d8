// Moves of the slow executor: from member to member, to hosts and back.
#pragma once

#include "windlass/task/reference/held_values.h"

namespace windlass::reference {

// Collective, Send, Reduce and Gather.
void exchange_values(HeldValues& held, const TaskGraph& tasks, TaskId id);

// From i to To i, for each of the members.
void copy_values(HeldValues& held, const TaskGraph& tasks, TaskId id,
                 const std::vector<int64_t>& members);

}  // namespace windlass::reference
