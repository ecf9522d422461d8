// A plan: decisions, what they were made for, what is to be expected of them, and who made them. It
// stands on its own: the machine is part of it, and the model is named with everything that is
// needed to load it again. docs/plan_format.md describes the file.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/cost/runner.h"
#include "windlass/graph/graph.h"
#include "windlass/machine/machine.h"
#include "windlass/plan/termination.h"
#include "windlass/strategy/strategy.h"

namespace windlass {

constexpr int64_t kPlanVersion = 1;

// How the model was asked for, as the command line takes it. Unset: the model's own default.
struct ModelRequest {
  std::string source;  // MODEL: a file, a folder, or a zoo name with parameters
  std::optional<int64_t> batch = {}, sequence = {}, image = {};
  std::map<std::string, int64_t> dimensions = {};
  std::string loss = {};                             // as parse_loss takes it; empty: unset
  std::optional<DType> dtype = {};                   // of weights and activations
  std::vector<std::string> freeze = {}, train = {};  // globs
  bool fuse = true, as_exported = false;
  double expert_capacity = 0;     // of rows in slots (graph/expert_slots.h); 0: not in slots
  TrainingOptions training = {};  // with what the runner says: set_training()
  Runner runner = {};             // who carries the step out
  bool operator==(const ModelRequest&) const;
};

// A run of forward ops that are split alike: "m0/4 n/2", loops by name.
struct ShardingRun {
  size_t first = 0, count = 0;
  std::string split;
  bool operator==(const ShardingRun&) const = default;
};

struct Prediction {
  std::string termination;  // "optimal", "feasible", "limit", "given"
  Seconds step_time;
  std::vector<int64_t> device_peaks;  // bytes, by device; 0 for devices that are not used
  std::vector<int64_t> host_peaks;    // bytes, by node
  // What other limits of each device would give, as the search found: limits ascending.
  std::vector<FrontierPoint> frontier = {};
  bool operator==(const Prediction&) const = default;
};

struct Provenance {
  std::string windlass;  // version of the program
  std::string method;    // of the search, or "given"
  int64_t seed = 0;      // not negative
  std::string cost;      // where the times come from: CostModel::provenance()
  bool operator==(const Provenance&) const = default;
};

// What a kernel took when it was measured: see run/profile.h for how kernels are named.
struct MeasuredKernel {
  std::string kernel;
  int64_t time_ns = 0;
  int64_t workspace_bytes = 0;
  bool operator==(const MeasuredKernel&) const = default;
};

struct Plan {
  ModelRequest model;
  uint64_t model_fingerprint = 0;  // of the graph of the whole batch, or of a bare layer profile
  Machine machine;
  uint64_t machine_fingerprint = 0;
  int64_t samples = 0;              // in a step, over all micro-batches
  Strategy strategy;                // without `shardings` and `ops`: those need the loops' names
  std::vector<ShardingRun> splits;  // instead of them; cover the forward ops in order, unless packs
  Prediction prediction;
  Provenance provenance;
  // The prices behind the prediction, where they were measured: a run and a check use the same.
  std::vector<MeasuredKernel> kernels = {};
};

// A stable hash over structure, shapes, types, attributes and constants; names do not count.
uint64_t fingerprint(const Graph& graph);
// A stable hash over everything that a machine is, names included; descriptions do not count.
uint64_t fingerprint(const Machine& machine);
// "0f3a...": 16 hexadecimal digits.
std::string format_fingerprint(uint64_t fingerprint);

// Puts a plan together. `training` is the graph that the strategy is for, of one micro-batch;
// `whole` the graph of the batch as it was loaded. Prediction and provenance are left to the
// caller.
Plan make_plan(const ModelRequest& model, const Graph& whole, int64_t samples,
               const TrainingGraph& training, const Machine& machine, const Strategy& strategy);

// The strategy of a plan for the training graph of one micro-batch, and whether it is one. Throws
// Error{Input} if a loop is not one of its op (with the loops it has), or if it is no strategy for
// this graph and machine.
Strategy strategy_of(const Plan& plan, const TrainingGraph& training);

// Throw Error{Input} if the model or the machine is not the one that the plan was made for.
void check_model(const Plan& plan, const Graph& whole);
void check_machine(const Plan& plan, const Machine& machine);

// "m0/4 n/2x3 copy/2" for an op, and back. A loop whose name is not unique in its op is written
// "#3". "whole" is no split at all.
std::string sharding_to_text(const Sharding& sharding, const LoopNest& nest);
Sharding sharding_from_text(std::string_view text, const LoopNest& nest);

// The text of a plan file: the same for the same plan, byte for byte. Throws Error{Unsupported} if
// the machine cannot be described by a machine file.
std::string plan_to_json(const Plan& plan);
// Reads it. `where` begins messages. Throws Error{Input} naming the key; unknown keys are refused
// with the nearest known one. Safe on any bytes: counts are bounded before memory is taken.
Plan plan_from_json(std::string_view text, const std::string& where);

// The part of a plan file that says how packs of layers run. Reading checks nothing but ranges and
// lengths: check_packs() has the rest.
nlohmann::ordered_json packs_to_json(const PackStrategy& packs);
PackStrategy packs_from_json(const nlohmann::json& value, const std::string& where);

// What is asked for as one line, without the runner: the same for the same request.
std::string format_request(const ModelRequest& model);

// Reads a file; writes one as a whole or not at all: to a temporary file beside it that is then
// renamed. Throw Error{Input} or Error{Runtime} beginning with the path.
Plan read_plan(const std::string& path);
void write_plan(const Plan& plan, const std::string& path);

}  // namespace windlass
