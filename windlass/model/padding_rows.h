// Rows of embedding tables that PyTorch would not train.
#pragma once

#include <string>
#include <vector>

#include "windlass/model/model.h"

namespace windlass {

// One note for each trained table with a row of zeros among others. PyTorch begins the row of a
// padding index with zeros and keeps it; neither ONNX nor a checkpoint says which it is, and so it
// is trained here like the others. The first few rows and the last are looked at.
std::vector<std::string> note_padding_rows(const Model& model);

}  // namespace windlass
