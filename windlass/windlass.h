// windlass as a library: the stages, each with what it does. `cmake --install` and then
// find_package(windlass) give programs the target windlass::windlass; examples/library/ is one.
#pragma once

#include "windlass/cost/cost_model.h"      // analytic_cost_model() -> CostModel
#include "windlass/graph/batch.h"          // find_batch(graph), cut_batch(graph) -> one micro-batch
#include "windlass/graph/blocks.h"         // find_blocks(graph) -> repeated structure
#include "windlass/graph/differentiate.h"  // differentiate(graph) -> TrainingGraph
#include "windlass/machine/read_machine.h"  // load_machine(name) -> Machine
#include "windlass/model/model.h"           // load_model(name) -> Model with a Graph
#include "windlass/plan/check.h"            // check_tasks(...), check_run(...) -> what is wrong
#include "windlass/plan/plan.h"             // read_plan(path), write_plan(plan, path)
#include "windlass/plan/step.h"             // simulate_step(training, strategy, machine, cost)
#include "windlass/report/simulation.h"     // report_simulation(step) -> SimulationReport
#include "windlass/run/runtime.h"    // open_runtime().train(...) -> Training: steps, checkpoints
#include "windlass/search/search.h"  // search_one_device(problem) -> SearchResult
#include "windlass/sim/simulate.h"   // simulate(tasks, machine, cost) -> SimResult
#include "windlass/strategy/baselines.h"  // prepare_step(graph, spec, machine) -> Strategy by name
#include "windlass/task/lower.h"          // lower(training, strategy, machine) -> TaskGraph
