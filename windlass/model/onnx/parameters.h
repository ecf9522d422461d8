// Which stored float tensors are parameters. ONNX does not say; their place in the graph and their
// values do.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "windlass/graph/graph.h"

namespace windlass {

// A stored tensor that is taken for a buffer, and why.
struct Demotion {
  std::string name;
  std::string reason;  // "an additive mask"
};

// The elements of a weight, if they can be looked at.
using WeightValues = std::function<std::optional<std::vector<double>>(const Tensor&)>;

// A stored tensor as the file has it.
struct StoredName {
  std::string name;
  bool is_buffer = false;  // without a doubt: whole numbers, running statistics
};

// Turns weights into buffers that training cannot or should not touch:
//  - they have no elements;
//  - no gradient of any output reaches them (a causal mask that is only compared, a table of
//    indices);
//  - they are frequencies: all that becomes of them, combined with nothing but positions and
//    constants, goes into sines and cosines (rotary and sinusoidal embeddings); or, if their names
//    are not those of parameters, with data and into both (random Fourier features);
//  - they are only added to, multiplied with or chosen instead of other values, perhaps cut,
//    reshaped or looked up before, and their values give them away (value_tables.h): masks, waves,
//    distances, grids; infinities also if a function is taken of them before;
//  - they are waves that go into a product with a weight (positions with a layer of their own);
//  - they are one filter that a convolution takes to all channels;
//  - they are factors of products and convolutions, or joined to other values, their values are
//    those of a formula, and their names are not those of parameters: edge filters,
//    wavelets, adjacencies, filter banks, bases, coordinates;
//  - they are vectors that rise or fall, and of which elements are looked up by what is computed:
//    schedules of diffusion;
//  - they are called mean or std, and data are standardised with them before any weight meets them;
//  - they are called a mask, and are zeros and ones;
//  - they have the name of a constant that was moved out of the graph, or names of what PyTorch's
//    modules keep beside something else: the vectors of spectral norm, scale and shift of a batch
//    norm that is written out with its running statistics (those that an op reads are trained);
//    or the noise of a noisy layer;
//  - they are stored behind a buffer of the same module: PyTorch stores parameters first. For this
//    the names `in_order` are those of a file that PyTorch wrote, else there are none.
// Weights that a glob of `train` matches stay.
std::vector<Demotion> demote_buffers(Graph& graph, const WeightValues& values,
                                     const std::vector<std::string>& train,
                                     const std::vector<StoredName>& in_order);

// Weights that neither their names, which are not those that modules or people give to parameters,
// nor anything else tells to be such: they may be buffers. Of single numbers names tell nothing.
// None that a glob of `train` matches.
std::vector<std::string> doubtful_weights(const Graph& graph,
                                          const std::vector<std::string>& train);

// Weights without a name that are only combined with other values: an exporter computed them, of
// parameters (the scale of a group norm) or of buffers. None that a glob of `train` matches.
std::vector<std::string> computed_weights(const Graph& graph,
                                          const std::vector<std::string>& train);

// Whether a gradient of `from` could reach a weight.
bool gradient_reaches_weight(const Graph& graph, TensorId from);

// "a, b (additive masks); c (...)", for people; long lists are cut.
std::string describe(const std::vector<Demotion>& demotions);

}  // namespace windlass
