// The zoo: well-known networks by name, built from their published definitions.
//
// `NAME` or `NAME:key=value,...`, e.g. "gpt2-xl", "resnet-50", "gpt2:layers=10,hidden=256". Each
// file of `zoo/` defines one family `ZooFamily zoo_<file>()`; the build collects them into the
// table.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/graph/graph.h"
#include "windlass/model/model.h"

namespace windlass {

// Parameters of a family by name; counts, or 0 and 1 for switches.
using ZooParameters = std::map<std::string, int64_t>;

// One named size of a family.
struct ZooPreset {
  std::string name;          // "gpt2-xl"
  ZooParameters parameters;  // what differs from the family's defaults
  std::vector<std::string> aliases = {};
};

struct ZooFamily {
  std::string name;         // "gpt2"; a preset of that name is implied if none is listed
  std::string description;  // one line, with the source of the definition
  ZooParameters
      defaults;  // every parameter the family takes; "batch", and "sequence" or "image" where
                 // they apply, are set from the options and may also be given by name
  std::vector<ZooPreset> presets;
  // Builds the graph, loss included. Parameters are complete and positive where 0 makes no sense;
  // combinations that are impossible throw Error{Input}.
  std::function<Graph(const std::string& name, const ZooParameters&)> build;
};

std::vector<ZooFamily> zoo_families();

// All preset names, ascending.
std::vector<std::string> zoo_names();

bool is_zoo_name(std::string_view name);

// Throws Error{Input}, with the nearest known name or parameter, when there is no such model.
Graph build_zoo_model(const std::string& name, const ModelOptions& options = {});

}  // namespace windlass
