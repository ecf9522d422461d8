// A network as PyTorch modules: a class for each kind of block, and one that calls them in order.
#pragma once

#include <string>
#include <vector>

#include "windlass/export/settings.h"

namespace windlass {

struct TorchModules {
  std::string code;                 // "class Part1(nn.Module): ...", "class Model(nn.Module): ..."
  std::vector<std::string> inputs;  // what Model.forward() takes: inputs and labels, by name
};

// For one micro-batch of a replica. What most of a block's saved bytes do, all of it does. Weights
// begin as initial_values() has them. Throws Error{Unsupported} naming the op that has no words.
TorchModules torch_modules(const ExportSubject& subject, const TargetSettings& settings);

}  // namespace windlass
