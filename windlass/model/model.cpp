#include "windlass/model/model.h"

#include <algorithm>
#include <filesystem>
#include <iterator>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/graph/expert_slots.h"
#include "windlass/graph/fuse.h"
#include "windlass/model/huggingface/huggingface.h"
#include "windlass/model/onnx/onnx_import.h"
#include "windlass/model/padding_rows.h"
#include "windlass/model/weights.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

namespace fs = std::filesystem;

// What is trained, as the user says. A glob of --train may stand against one of --freeze.
void choose_trained(Graph& graph, const ModelOptions& options) {
  const auto choose = [&](const std::string& pattern, bool trained) {
    bool matched = false;
    for (Tensor& tensor : graph.tensors) {
      if (tensor.role != TensorRole::Weight || !matches_glob(tensor.name, pattern)) continue;
      tensor.trainable = trained;
      matched = true;
    }
    if (matched) return;
    for (const Tensor& tensor : graph.tensors) {
      if (tensor.role != TensorRole::Buffer || !matches_glob(tensor.name, pattern)) continue;
      if (!trained) return;  // it is not trained as it is
      fail_input("--train \"{}\": \"{}\" cannot be trained; it holds statistics or whole numbers",
                 pattern, tensor.name);
    }
    fail_input("no weight matches --{} \"{}\"", trained ? "train" : "freeze", pattern);
  };
  for (const std::string& pattern : options.freeze) choose(pattern, false);
  for (const std::string& pattern : options.train) choose(pattern, true);
}

Model load_from_source(const std::string& name, const ModelOptions& options) {
  std::error_code ignored;
  const fs::file_status status = fs::status(name, ignored);
  if (fs::is_directory(status)) {
    if (fs::exists(fs::path(name) / "config.json", ignored)) return load_huggingface(name, options);
    fail_input(
        "the folder holds no config.json; give the ONNX file itself, or a Hugging Face folder");
  }
  if (fs::exists(status)) {
    if (!fs::is_regular_file(status)) fail_input("not a regular file");
    const std::string extension = lower_case(fs::path(name).extension().string());
    if (extension == ".json") return load_huggingface(name, options);
    return load_onnx(name, options);
  }
  const bool path_like =
      name.find('/') != std::string::npos || name.ends_with(".onnx") || name.ends_with(".json");
  if (path_like && !is_zoo_name(name)) fail_input("no such file");
  Model model;
  model.source = "zoo";
  model.graph = build_zoo_model(name, options);
  return model;
}

// Finds the weights of a Hugging Face folder, if it has a checkpoint.
void attach_checkpoint(Model& model, const std::string& name) {
  std::error_code ignored;
  if (model.source != "huggingface" || !fs::is_directory(name, ignored)) return;
  const auto path = find_safetensors(name);
  if (!path) return;
  const Safetensors checkpoint = read_safetensors(*path);
  try {
    model.weights = hf_weights(model.graph, checkpoint, model.notes);
  } catch (const Error& error) {
    throw Error(error.kind(), fmt::format("{}: {}\nGive the config.json itself to go without the "
                                          "checkpoint",
                                          *path, error.message()));
  }
}

}  // namespace

Model load_model(const std::string& name, const ModelOptions& options) {
  try {
    if (name.empty()) fail_input("no model is named");
    Model model = load_from_source(name, options);
    // A file keeps the spelling it was exported with; built models have fused attention.
    if (!options.fuse && model.source != "onnx") unfuse_attention(model.graph);
    if (options.dtype) model.graph = with_dtype(model.graph, *options.dtype);
    if (options.expert_capacity > 0) {
      model.graph = with_expert_slots(model.graph, options.expert_capacity);
      model.notes.push_back(fmt::format(
          "rows of experts are in slots, {} times an even share for the tokens of each sample: a "
          "step in which an expert is chosen more often ends with an error; with "
          "--expert-capacity {} none does",
          options.expert_capacity, experts_of(model.graph)));
    }
    attach_checkpoint(model, name);
    choose_trained(model.graph, options);
    if (model.source == "onnx" && model.graph.loss.valid())
      std::ranges::move(keep_padding_rows(model, options.train), std::back_inserter(model.notes));
    std::ranges::move(note_padding_rows(model), std::back_inserter(model.notes));
    return model;
  } catch (const Error& error) {
    if (error.message().starts_with(name)) throw;
    throw error.within(name);
  }
}

}  // namespace windlass
