// The independent checker behind `windlass check`: does a task graph carry out a strategy, and does
// a timeline carry out the task graph? Knows neither simulator nor search nor how lowering works.
// It reads what the graph says and infers nothing; what must be there follows from the training
// graph, the layouts of strategy/layout.h, the shares of strategy/redistribute.h and the traffic
// that cost/traffic.h gives a collective or copies. Those are trusted.
//
// check_tasks() walks the tasks once in the order of their ids and keeps for every buffer what it
// holds: which tensor of which micro-batch or which sum of them, in which layout, in which shares,
// before or after its update. Checked are
//  - the strategy: check_strategy(), and that the pieces of every op tile its loops;
//  - the shape of the graph: check_task_graph(), predecessors before their tasks, the teams;
//  - coverage: every op of the forward and of the backward pass once for each micro-batch and team,
//    recomputation at most once, exchange inside of an op exactly where it is coupled;
//  - dataflow: a task has exactly the uses that its op has operands; each holds, through its views,
//    the tensor and micro-batch in the layout that the strategy's sharding gives; each result goes
//    to a buffer that is for it, and is added exactly where a sum was begun;
//  - moves: member by member, that the collective or the copies turn the one layout into the other,
//    every element from one who has it and every partial sum once; halos are added for gradients
//    only; the volume and the links of the traffic;
//  - gradients: every term of every micro-batch is in the sum that a weight is updated with, once,
//    with its partial sums reduced over exactly the members that hold them;
//  - updates: every weight and its state once on every member of one group, in the shares and on
//    the host or the device that the strategy says; every copy is new at the end; nobody reads it
//    too late;
//  - what is saved goes where the strategy says, in its bits; the bytes of every buffer;
//  - order: of two tasks that use a buffer and one of which writes it, one happens before the other
//    through predecessors and lanes alone (vector clocks, one entry a lane), so that a run with
//    other durations has no race either. A buffer is released after its last user by definition
//    (task_graph.h), so it cannot be read after its release.
// Not checked: kernel prices beyond the multiply-adds of an op, what is exchanged inside of an op,
// and whether the kernels compute what they should.
//
// Time O(uses + tasks x lanes + n log n); what follows from two layouts is worked out once.
#pragma once

#include <string>
#include <vector>

#include "windlass/plan/plan.h"
#include "windlass/sim/simulate.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// Prediction::termination of a plan that was written although it exceeds a limit. What it promises
// is of the step without limits.
inline constexpr const char* kUnfitting = "does not fit";

// What is wrong, one line each with the names of ops and tensors, the first ones only if there are
// many; empty if nothing is.
//
// Of packs of layers what is checked is the same in their terms, `training` being of the whole
// batch:
//  - coverage: every op of the forward pass on every sample once, on the device and in the
//    micro-batches that its forward pack has, the backward pass likewise; recomputing at most once,
//    in packs that recompute;
//  - dataflow, with micro-batches as ranges of samples: joined where passes cut them differently;
//  - where the backward pass reads from: kept, recomputed or offloaded, inputs from the host or
//    not;
//  - weights and gradients over the replicas: in shares, whole, or terms of a sum; every weight is
//    updated once, with every sample, where its first layer's pack is updated;
//  - bytes of buffers, traffic up to the rounding of its model, order.
// The window for weights is not checked, nor that pieces are moved together: a timeline shows what
// memory they take.
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
