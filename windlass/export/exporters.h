// Plans in the formats of other programs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "windlass/export/settings.h"

namespace windlass {

// Settings of another system. `notes`: what its user has to do beside, a line each.
struct ExportedText {
  std::string text;
  std::vector<std::string> notes = {};
};

struct SettingsExporter {
  std::string_view name;  // as --to takes it
  std::string_view what;  // one line for people
  TargetRules rules;
  ExportedText (*write)(const TargetSettings& settings);
};
// deepspeed, megatron, torchtitan, accelerate, trainer.
const std::vector<SettingsExporter>& settings_exporters();

ExportedText deepspeed_settings(const TargetSettings& settings);
ExportedText megatron_settings(const TargetSettings& settings);
ExportedText torchtitan_settings(const TargetSettings& settings);
ExportedText accelerate_settings(const TargetSettings& settings);
ExportedText trainer_settings(const TargetSettings& settings);

// A simulated step as tables and graphs. `training` gives tasks their names.
// Tasks, a line each: number, kind, name, micro-batch, devices, lanes, start and end in seconds.
std::string tasks_csv(const SimulatedStep& step, const Graph& training);
// The forward pass with what is decided for each op, for Graphviz. Throws Error{Unsupported} for
// packs of layers.
std::string strategy_dot(const TrainingGraph& training, const Strategy& strategy);
// Allocations of each device as PyTorch's memory viewer (pytorch.org/memory_viz) reads them, in
// JSON. One segment a device, addresses by first fit.
std::string memory_snapshot(const SimulatedStep& step, const Graph& training);

}  // namespace windlass
