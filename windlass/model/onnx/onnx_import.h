// Models from ONNX files.
#pragma once

#include <string>

#include "windlass/model/model.h"

namespace windlass {

// Imports the file. Weights stay on disk: the graph knows their shapes, Model::weights where they
// lie. Throws Error{Input} for broken files and Error{Unsupported} listing every unsupported node
// at once.
Model load_onnx(const std::string& path, const ModelOptions& options = {});

// The same for a file held in memory; external data is looked for in `folder`.
Model import_onnx(std::string_view bytes, const std::string& where, const std::string& folder,
                  const ModelOptions& options = {});

}  // namespace windlass
