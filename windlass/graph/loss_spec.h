// Losses that can be attached to a network without one, by name.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "windlass/graph/builder.h"

namespace windlass {

enum class LossKind : uint8_t {
  CrossEntropy,        // over classes, labels are whole numbers
  MeanSquaredError,    // of the prediction and a target of its shape, like the following
  BinaryCrossEntropy,  // of logits and a target between 0 and 1
  MeanAbsoluteError,
  Huber,  // squared up to `delta`, straight beyond
};

// A loss and its parameters. All are means over whatever the labels hold; PyTorch's functions of
// these names, with their defaults, are meant.
struct LossSpec {
  LossSpec(LossKind which = LossKind::CrossEntropy) : kind(which) {}  // NOLINT: a kind is a loss

  LossKind kind;
  std::optional<int64_t> axis = {};  // of classes; unset: inferred (class_axis)
  int64_t ignore = -100;             // label that cross-entropy leaves out
  double delta = 1;                  // of Huber
  bool operator==(const LossSpec&) const = default;
};

// "cross-entropy", "cross-entropy:axis=1,ignore=0", "mse", "bce", "l1", "huber:delta=0.5". Throws
// Error{Input} naming what is wrong and what is known.
LossSpec parse_loss(std::string_view text);
std::string format_loss(const LossSpec& spec);
// "mean squared error": for people.
std::string_view loss_title(LossKind kind);

// The axis of classes of logits: that of a softmax which makes them, unless it goes over the
// samples; of images [b, c, h, w] the second, as PyTorch has it; of [b, a, b] the one that the last
// product or convolution made its features, followed through transposes and elementwise ops; else
// the last.
int64_t class_axis(const Graph& graph, TensorId logits);

// Attaches the loss to `prediction`, with a new label input, and returns it. The label is called
// "labels", of other losses than cross-entropy "target", or "loss_labels" and "loss_target" beside
// an input of that name.
TensorId attach_loss(GraphBuilder& builder, TensorId prediction, const LossSpec& spec);

}  // namespace windlass
