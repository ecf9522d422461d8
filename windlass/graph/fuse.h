// Recognising what an exporter took apart: normalisations, activations, linear layers, attention.
//
// Fused ops keep less for the backward pass: a fused LayerNorm its input and two numbers a row
// instead of five tensors, fused attention no score matrix at all. A pattern is only replaced where
// nobody else reads what it would no longer produce. Expects a simplified graph (simplify.h).
#pragma once

#include "windlass/graph/graph.h"

namespace windlass {

// How often each pattern was found.
struct FusionReport {
  int layer_norms = 0;
  int rms_norms = 0;
  int activations = 0;  // GELU, SiLU, hard swish, Mish
  int linears = 0;
  int attentions = 0;
};

FusionReport fuse(Graph& graph);

// The single passes, in the order in which `fuse` runs them. Each returns how often it matched.
int fuse_activations(Graph& graph);
int fuse_layer_norms(Graph& graph);
int fuse_rms_norms(Graph& graph);
int fuse_linears(Graph& graph);
int fuse_attention(Graph& graph);

// The opposite: every Attention as products, masks, softmax and dropout, which keeps the matrix of
// probabilities for the backward pass. Returns how many there were.
int unfuse_attention(Graph& graph);

// Every tanh GELU as the eight ops that Hugging Face's NewGELUActivation runs one by one:
// 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))). Returns how many there were.
int unfuse_tanh_gelu(Graph& graph);

// Every RmsNorm as the six ops that models write out, in fp32: square, mean, a small number added,
// reciprocal root, and two products; 16-bit values are converted on both sides. Returns how many.
int unfuse_rms_norms(Graph& graph);

}  // namespace windlass
