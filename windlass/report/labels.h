// How tasks and buffers are called in reports and traces.
#pragma once

#include <string>
#include <string_view>

#include "windlass/task/packs/pack_tasks.h"
#include "windlass/task/task_graph.h"

namespace windlass {

// "transformer.h.0.ln_1", or what a transfer moves; "task 12" if `training` is absent or tells
// nothing.
std::string task_subject(const TaskGraph& graph, const Graph* training, TaskId task);

// "forward transformer.h.0.ln_1 (micro-batch 3)".
std::string task_label(const TaskGraph& graph, const Graph* training, TaskId task);

// The tensor that a buffer holds a piece of; "buffer 7" if it is not known.
std::string buffer_label(const TaskGraph& graph, const Graph* training, BufferId buffer);

// "weights of layers 3-7", "input of layer 3, samples 0-15": of packs of layers.
std::string pack_label(const PackLabel& label);

// "transformer.h.*.ln_1.weight" for "transformer.h.3.ln_1.weight": the same in every layer.
std::string numbers_folded(std::string_view name);

// "gpu0..gpu7"; "host" where there is no team.
std::string team_label(const TaskGraph& graph, TeamId team);

// Samples a second: "39.73", "14,370".
std::string rate_label(double rate);

// "compute"; of a lane that sends to other devices also to whom.
std::string lane_label(const TaskGraph& graph, LaneId lane);

// "nvlink0 gpu0 > switch0"; without the name if that is "gpu0-switch0".
std::string direction_label(const Machine& machine, const LinkDirection& direction);
// The first direction and how many more: "nvlink0 gpu0 > switch0 and 7 alike".
std::string link_label(const Machine& machine, const SharedLink& link);

}  // namespace windlass
