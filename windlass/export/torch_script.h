// A plan as a PyTorch script: the network as modules, one class for blocks that repeat, what each
// block saves kept, computed again or moved to host memory, replicas by DistributedDataParallel.
// It runs with torch 1.13 and later, on CPUs with Gloo or on GPUs.
#pragma once

#include <string>
#include <vector>

#include "windlass/export/exporters.h"

namespace windlass {

TargetRules torch_script_rules();

// Throws Error{Unsupported} naming the op that it has no words for. Decisions about saved tensors
// become decisions about blocks: what most of a block's bytes do.
ExportedText torch_script(const ExportSubject& subject, const TargetChoice& choice);

// A type of elements, and a number of it, as Python writes them.
std::string_view torch_dtype(DType dtype);
std::string torch_number(double value, DType dtype);
// The Python expression of an op, given those of its operands; several results are a tuple. Throws
// Error{Unsupported}.
std::string torch_expression(const Graph& graph, const Op& op,
                             const std::vector<std::string>& operands);

}  // namespace windlass
