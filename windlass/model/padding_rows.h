// Rows of embedding tables that PyTorch would not train.
#pragma once

#include <string>
#include <vector>

#include "windlass/model/model.h"

namespace windlass {

// PyTorch begins the row of a padding index with zeros and gives it no gradient where it is looked
// up; neither ONNX nor a checkpoint says which row that is. A single row of zeros among others is
// taken for it. The first few rows and the last are looked at.

// Keeps such rows of trained tables zero: what is looked up there is replaced by zeros, which it
// is, so that no gradient reaches the row. Tables that something else reads as well stay as they
// are, since PyTorch trains their rows from there, and so do those that a glob of `train` matches.
// Returns a note for each table.
std::vector<std::string> keep_padding_rows(Model& model, const std::vector<std::string>& train);

// One note for each trained table with such a row that is trained like the others.
std::vector<std::string> note_padding_rows(const Model& model);

}  // namespace windlass
