// Sizes for the open dimensions of a file's inputs.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/model/onnx/onnx_file.h"

namespace windlass {

// What an open dimension counts, and so which flag gives its size.
enum class DimensionKind : uint8_t { Batch, Sequence, Image, Other };

// By its name: "batch" in it, or n or b alone; "seq", "time", "len" or "token" in it, or t or s
// alone; "height" or "width" in it, or h or w alone. A name that tells nothing leaves its place:
// axis 0 is the batch; axis 1 of whole numbers, or of three axes, the sequence; axes 2 and 3 of
// four the image.
DimensionKind classify_dimension(std::string_view symbol, const OnnxValue& input, size_t axis);

// Binds open dimensions to what the user asked for. Dimensions of one name have one size. Only the
// batch has a default, which is 1.
class DimensionBinder {
 public:
  explicit DimensionBinder(const ModelOptions& options) : options_(options) {}

  // The shape of an input. Throws Error{Input} naming the flag that is missing.
  Shape bind(const OnnxValue& input);
  // Throws Error{Input} if the user gave a size that no dimension took.
  void check_all_used() const;

  bool found_open() const { return !sizes_.empty(); }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  int64_t bind_open(const OnnxValue& input, size_t axis);

  const ModelOptions& options_;
  std::map<std::string, int64_t> sizes_;  // of open dimensions, by name
  std::set<std::string> used_names_;      // of options.dimensions
  std::set<DimensionKind> used_kinds_;    // whose flag was taken
  std::vector<const OnnxValue*> fixed_;   // inputs whose dimension 0 is fixed
  std::vector<std::string> notes_;
};

}  // namespace windlass
