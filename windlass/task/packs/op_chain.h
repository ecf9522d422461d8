// A training step as a chain of layers, each of them its ops: what packs of layers are made of at
// the grain of ops.
#pragma once

#include <cstdint>
#include <vector>

#include "windlass/cost/layer_profile.h"
#include "windlass/graph/samples.h"
#include "windlass/task/facts.h"

namespace windlass {

struct ChainLayer {
  // In order, without views. Ops that read nothing but data and constants are no layer's: they run
  // wherever their results are read, which are not passed on.
  std::vector<OpId> forward, backward;
  // What the layer before passes on, and the gradient that is passed back to it: the tensors that
  // own the memory. None for the first layer; no gradient if nothing before is trained.
  TensorId input, gradient;
  std::vector<TensorId> data;   // that its ops depend on
  std::vector<TensorId> state;  // weights and buffers that they read
  // Terms of gradients that other ops read as well: added by a task of their own, by update.
  std::vector<std::pair<int32_t, TensorId>> shared_terms;
};

// Layers are those of graph/network_layers.h. `training` is of the whole batch and must outlive it.
// Throws Error{Unsupported} if the batch cannot be carried out in parts, if there is no place to
// cut the network, or if layers pass more than one tensor on: a skip connection across layers.
struct OpChain {
  explicit OpChain(const TrainingGraph& training);

  const TrainingGraph& training;
  TrainingFacts facts;
  SampleAxes samples;
  std::vector<int32_t> layer_of;  // by op of both passes
  std::vector<ChainLayer> layers;
  std::vector<int32_t> home;  // by update: the first layer that reads its weight
  LayerProfile bytes;         // without times and peaks

  bool is_data(TensorId tensor) const;  // of the step, or a constant that differs by sample
  bool is_state(TensorId tensor) const;
  // Depends on data and constants alone.
  bool is_plain(TensorId tensor) const { return plain_[tensor.index()]; }

 private:
  void find_plain();
  void list_forward();
  void list_backward();
  void pass_on();
  void pass_back();
  int32_t term_layer(int32_t update, TensorId term) const;
  std::vector<bool> plain_;  // by tensor
};

}  // namespace windlass
