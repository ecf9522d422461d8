// The slow reference: every op, forward and backward, in double precision by plain loops.
//
// It is what fast code is compared with, and what folds constants while a model is imported. Values
// are doubles whatever the dtype; integer types hold whole numbers and integer division truncates.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/graph/coupled.h"
#include "windlass/graph/graph.h"
#include "windlass/graph/op_info.h"
#include "windlass/graph/op_piece.h"

namespace windlass {

// A dense tensor of doubles, row-major. Rank 0 has one element.
struct Array {
  Shape shape;
  std::vector<double> values;

  Array() = default;
  explicit Array(Shape s, double fill = 0);
  Array(Shape s, std::vector<double> v) : shape(std::move(s)), values(std::move(v)) {}
};

// Results of a forward op.
struct ForwardResult {
  std::vector<Array> outputs;
  std::vector<Array> auxiliaries;
};

// Where the random numbers of an op (dropout, random) come from; the same state draws the same
// numbers, so that a forward pass can be repeated.
struct RandomState {
  uint64_t seed = 0;
  uint64_t op = 0;
};

// Runs one forward op. Absent inputs are null. Inputs that the op writes in place are not changed.
// The auxiliaries are always there. Where the signature has output types, the shapes found are
// compared with them. Throws Error{Input} on values that make no sense (an index out of range),
// Error{Internal} for Update, which is reference_update of update.h.
//
// A piece of an op has its own signature, operands as they lie in its regions, and its facts; the
// random state is that of the whole op. A piece of a coupled loop has the merged statistics of all
// pieces, if there is an exchange (coupled.h).
ForwardResult interpret_forward(const Signature& signature, const std::vector<const Array*>& inputs,
                                RandomState random = {}, const PieceFacts& facts = {},
                                const Array* statistics = nullptr);

// Runs one backward op: gradients of the forward inputs from the gradients of the forward outputs
// (null where absent) and the saved tensors, parallel to `rule.saved`. It reads nothing else of the
// forward pass: throws Error{Internal} naming a tensor that it needs and the rule did not save.
// Entries that are not wanted or not computed are empty arrays of rank 0 without values.
std::vector<Array> interpret_backward(const Signature& signature, const GradientRule& rule,
                                      const std::vector<bool>& wanted,
                                      const std::vector<const Array*>& output_gradients,
                                      const std::vector<const Array*>& saved,
                                      RandomState random = {}, const PieceFacts& facts = {},
                                      const Array* statistics = nullptr);

// The first step of a coupled op, forward and backward: statistics of one piece, in the shape that
// exchange_of says.
Array interpret_statistics(const Signature& signature, const std::vector<const Array*>& inputs,
                           RandomState random = {}, const PieceFacts& facts = {});
Array interpret_gradient_statistics(const Signature& signature, const GradientRule& rule,
                                    const std::vector<bool>& wanted,
                                    const std::vector<const Array*>& output_gradients,
                                    const std::vector<const Array*>& saved, RandomState random = {},
                                    const PieceFacts& facts = {});

// The second: statistics of all pieces from those of each, in the order of the members.
Array merge_statistics(const Exchange& exchange, const std::vector<Array>& members);

// What a forward op leaves in the inputs that OpInfo::writes names, in that order: the running
// statistics of a batch norm, given what interpret_forward returned.
std::vector<Array> interpret_writes(const Signature& signature,
                                    const std::vector<const Array*>& inputs,
                                    const ForwardResult& result, const PieceFacts& facts = {});

// How many labels of a CrossEntropy count: what its pieces add up for PieceFacts::mean_count.
double counted_labels(const CrossEntropyAttrs& attrs, const Array& labels);

// Whether the forward op is worth running on known values while a graph is built: what exporters
// compute shapes, indices, masks and positions with. Not the ops of networks themselves, which take
// longer than their result is large.
bool can_fold(OpKind kind);

}  // namespace windlass
