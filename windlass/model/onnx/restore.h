// Undoing what exporters do to parameters, so that training sees the network as it was defined.
//
// PyTorch's exporter, asked for inference (its default), folds batch normalisation into
// convolutions, computes with parameters where it can (relative position tables are gathered,
// weights transposed), and stores equal values once, aliased by Identity nodes: freshly initialised
// biases, for instance. What is gone can be recognised by names and values; these are the tests.
#pragma once

#include <optional>
#include <string_view>
#include <vector>

#include "windlass/model/onnx/onnx_file.h"

namespace windlass {

// Names that PyTorch's exporter gives to values it made itself: "onnx::Add_123", "215",
// "/Constant_1".
bool is_anonymous_name(std::string_view name);

// Whether a stored value of one element is a parameter, not a constant of the computation. PyTorch
// stores the latter as Constant nodes or without a name, like operands that it computed with; of
// these the first reader is in the name. Its newer exporter (IR version 10 on) names all; names of
// parameters have a dot.
bool is_parameter_number(const OnnxFile& file, const OnnxTensor& tensor);

// Whether a stored value of one element without a name that is taken for a constant may as well
// have been computed from a parameter by PyTorch's exporter: only arithmetic reads it.
bool may_be_folded_parameter(std::string_view name);

// How two nodes are related by their names. PyTorch (from 1.13 on) names a node by the module it
// comes from, "/decoder/w/MatMul", and adds numbers where a module is used again,
// "/decoder/w_1/MatMul".
enum class Kinship : uint8_t {
  None,
  Module,  // they do the same in one module
  Again,   // the second is what the first is, in a further use of its module
};
Kinship kinship(std::string_view first, std::string_view second);

// Whether batch normalisation was folded into a convolution with these weights: PyTorch's exporter
// then stores new values for both, without names, where it keeps the names of all others.
bool is_folded_convolution(const OnnxFile& file, std::string_view weight, std::string_view bias);

// Whether the convolutions into which batch normalisation was folded had biases of their own
// before.
//
// An inference: such a bias leaves nothing in the values. But PyTorch numbers every value of the
// graph, stored ones first, and names the folded weights by their numbers. So the first of these
// numbers counts all that came before: the graph's inputs, the stored values that are still there,
// one counter of each batch normalisation that is left, weight, scale, shift, mean, variance,
// counter and lost output of each that was folded, the outputs of all nodes, and what else was
// dropped on the way. If the latter are exactly as many as the folded convolutions, and these are
// more than a few, they are taken to be the biases: all or none, as networks are written.
bool had_folded_biases(const OnnxFile& file);

// Whether PyTorch's exporter was asked for training: it left something that it removes or folds for
// inference, dropout that drops something, batch normalisation of the batch, or the transpose of a
// stored value. Then equal values are stored once only if they are one parameter under several
// names.
bool is_exported_for_training(const OnnxFile& file);

// Whether a BatchNormalization normalises by the statistics of the batch and keeps them.
bool is_training_norm(const OnnxNode& node);

// Endings by which PyTorch modules call what is stored but not trained.
bool is_buffer_name(std::string_view name);
// Of these, the running statistics of batch normalisation, which training updates by itself.
bool is_statistic_name(std::string_view name);

// Whether all values are one number, so that equality with another tensor says nothing.
bool is_uniform(const std::vector<double>& values);

// Whether the values are those of an additive mask: zeros and one large negative number.
bool is_additive_mask(const std::vector<double>& values);

// A relative position bias [.., heads, n, n] over windows of n = side^2 places, computed from a
// table of (2 side - 1)^2 rows: entry (i, j) depends on the offset between places i and j only.
struct RelativeBias {
  int64_t side = 0;
  int64_t heads = 0;
  std::vector<double> table;  // [(2 side - 1)^2, heads]
  std::vector<double> index;  // [n * n]: row of the table
};
std::optional<RelativeBias> find_relative_bias(const Shape& shape,
                                               const std::vector<double>& values);

}  // namespace windlass
