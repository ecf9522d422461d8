// The values of a model's weights: which tensor of a checkpoint each one is, and reading it.
#pragma once

#include <cstddef>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "windlass/model/model.h"
#include "windlass/model/safetensors.h"

namespace windlass {

// Elements of what lies at a place.
int64_t stored_elements(const WeightLocation& location);

// Reads a value as elements of type `as` into `out`, which has a place for each. Floating-point
// types are rounded to nearest. Throws Error{Input} if the file has become shorter or unreadable,
// Error{Unsupported} if the types do not convert.
void read_weight(const WeightLocation& location, DType as, std::span<std::byte> out);

// For each weight of a graph built from a Hugging Face config, where its value lies in a
// checkpoint. The graph names and lays out weights as the checkpoints do; beyond that
//  - the name of the network ("transformer.", "model.", "bert.", ...) may be there or not;
//  - experts, stacked in the graph, are put together from one tensor each;
//  - of tied weights either one may be stored;
//  - norms may have the old names gamma and beta.
// A new classification head that the checkpoint lacks gets no location, and a note; heads, poolers
// and other parts of the checkpoint of which the graph has nothing get a note. Anything else that
// is missing, unknown or of another shape throws Error{Input} that lists the first few.
std::map<TensorId, WeightLocation> hf_weights(const Graph& graph, const Safetensors& checkpoint,
                                              std::vector<std::string>& notes);

}  // namespace windlass
