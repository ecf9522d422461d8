// windlass as a library: the stages in the order data flows.
#pragma once

#include "windlass/graph/blocks.h"         // find_blocks(graph) -> repeated structure
#include "windlass/graph/differentiate.h"  // differentiate(graph) -> TrainingGraph; totals_of(training)
#include "windlass/model/model.h"          // load_model(name) -> Model with a Graph
