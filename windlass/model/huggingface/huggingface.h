// Models from Hugging Face `config.json` files.
#pragma once

#include <string>
#include <string_view>

#include "windlass/graph/graph.h"
#include "windlass/model/model.h"

namespace windlass {

// Builds the model that a config describes. `architectures` decides the head; without it the
// family's language-model (or image-classification) head is taken. Weights are named as in the
// Hugging Face checkpoint of that family. `where` begins error messages. Throws Error{Input} for
// broken configs and Error{Unsupported} for families or options windlass does not know, with those
// it does.
Model model_from_config(std::string_view json_text, const std::string& where,
                        const ModelOptions& options = {});

// Reads `path`, a config.json or a folder that holds one.
Model load_huggingface(const std::string& path, const ModelOptions& options = {});

}  // namespace windlass
