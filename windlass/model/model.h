// Models: a Graph from an ONNX file, a Hugging Face config or a zoo name.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "windlass/graph/graph.h"
#include "windlass/graph/loss_spec.h"

namespace windlass {

// How to read a model. Unset fields mean the model's own default.
struct ModelOptions {
  std::optional<int64_t> batch = {};               // samples per step
  std::optional<int64_t> sequence = {};            // tokens per sample
  std::optional<int64_t> image = {};               // image height and width
  std::map<std::string, int64_t> dimensions = {};  // symbolic ONNX dimensions by name
  std::optional<LossSpec> loss = {};               // if the model has none of its own
  bool without_loss = false;                       // attach none: an ONNX file is only to be run
  std::optional<DType> dtype = {};                 // of weights and activations
  bool fuse = true;                      // recognise LayerNorm, GELU, attention, ... in ONNX files
  bool as_exported = false;              // take an ONNX file literally: restore nothing that the
                                         // exporter folded into other parameters
  double expert_capacity = 0;            // of rows in slots (graph/expert_slots.h); 0: not in slots
  std::vector<std::string> freeze = {};  // weights that are not trained, by glob
  std::vector<std::string> train = {};   // stored tensors that are, whatever they look like or
                                         // `freeze` says, by glob
};

// Where the value of a weight lies in a file, so that it is read only when someone asks for it.
struct WeightLocation {
  std::string file;
  int64_t offset = 0;
  int64_t bytes = 0;
  DType dtype = DType::F32;      // as stored, little-endian; the graph may use another
  std::vector<std::byte> value;  // the bytes themselves if they are few or not stored plainly
  // If not empty, the value is theirs laid end to end: experts that are stored one by one. Then
  // only `bytes`, their sum, and `dtype` count of the fields above.
  std::vector<WeightLocation> parts = {};
};

struct Model {
  std::string source;              // "zoo", "huggingface", "onnx"
  Graph graph;                     // with a loss
  std::vector<std::string> notes;  // what the user should know: checker skipped, loss attached, ...
  std::map<TensorId, WeightLocation> weights;  // where the values lie, if files have them
};

// Reads MODEL as the command line takes it: an ONNX file, a config.json or a folder with one and
// perhaps a checkpoint (model.safetensors), or a zoo name with parameters. Throws Error{Input} or
// Error{Unsupported}, beginning with `name`.
Model load_model(const std::string& name, const ModelOptions& options = {});

}  // namespace windlass
