// The independent checker behind `windlass check`: does a task graph carry out a strategy, and does
// a timeline carry out the task graph? Knows neither simulator nor search nor how lowering works:
// what must be there follows from the training graph, the layouts of strategy/layout.h, the number
// of moves that strategy/redistribute.h takes between two of them, and the traffic that
// cost/traffic.h gives a collective. Those three are trusted.
//
// check_tasks() walks the tasks once in the order of their ids and keeps for every buffer what it
// holds: which tensor of which micro-batch, in which layout over which group, which terms of which
// weight's gradient, which version of a weight. Checked are
//  - the strategy: check_strategy(), and that the pieces of every op tile its loops;
//  - the shape of the graph: check_task_graph(), predecessors before their tasks, the teams;
//  - coverage: every op of the forward and of the backward pass once for each micro-batch and team,
//    recomputation at most once, exchange inside of an op exactly where it is coupled;
//  - dataflow: every operand of every op is in a buffer of the right memory that holds the right
//    tensor and micro-batch in the layout the op wants, whole where it must not be a partial sum,
//    and every result goes to a buffer of its own size;
//  - gradients: every term of every micro-batch is added once, partial sums are reduced once, over
//    exactly the members that hold them, with the bytes that are there; nothing is added later;
//  - updates: every weight once on every team of one group that makes its gradient, from the
//    gradient of the whole step; every copy of it is new at the end; nobody reads it too late;
//  - order: of two tasks that use a buffer and one of which writes it, one happens before the other
//    through predecessors and lanes alone (vector clocks, one entry a lane), so that a run with
//    other durations has no race either. A buffer is released after its last user by definition
//    (task_graph.h), so it cannot be read after its release.
// Not checked: the routes and bytes of redistributions of activations, kernel prices beyond the
// multiply-adds of an op, and whether the kernels compute what they should; of a strategy with
// demand paging (virtual_memory) coverage and order alone.
//
// Time O(uses + tasks x lanes + n log n); the redistributions between two layouts are worked out
// once each.
#pragma once

#include <string>
#include <vector>

#include "windlass/plan/plan.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// What is wrong, one line each with the names of ops and tensors, the first ones only if there are
// many; empty if nothing is.
std::vector<std::string> check_tasks(const TrainingGraph& training, const Machine& machine,
                                     const Strategy& strategy, const TaskGraph& tasks);

// The same for a timeline: everything of sim/timeline_check.h, which sweeps over the timeline to
// find the peaks again; and that no memory exceeds its limit.
std::vector<std::string> check_run(const TaskGraph& tasks, const TaskTimes& times,
                                   const SimResult& result);

// And for what a plan promises: its time and its peaks are those of the result. `overhead` is what
// a step takes beside its tasks.
std::vector<std::string> check_prediction(const Prediction& prediction, const Machine& machine,
                                          const TaskGraph& tasks, const SimResult& result,
                                          Seconds overhead = {});

// The prediction that a result makes.
Prediction predict(const Machine& machine, const TaskGraph& tasks, const SimResult& result,
                   std::string termination, Seconds overhead = {});

}  // namespace windlass
