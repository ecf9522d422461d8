#include "windlass/model/onnx/dimensions.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

struct Flag {
  std::string_view name;
  const std::optional<int64_t>& size;
};

Flag flag_of(DimensionKind kind, const ModelOptions& options) {
  static const std::optional<int64_t> kNone;
  switch (kind) {
    case DimensionKind::Batch: return {"--batch", options.batch};
    case DimensionKind::Sequence: return {"--seq", options.sequence};
    case DimensionKind::Image: return {"--image", options.image};
    case DimensionKind::Other: break;
  }
  return {"", kNone};
}

bool names(std::string_view symbol, std::initializer_list<std::string_view> parts,
           std::initializer_list<std::string_view> whole) {
  return std::ranges::any_of(parts, [&](auto part) { return symbol.find(part) != symbol.npos; }) ||
         std::ranges::find(whole, symbol) != whole.end();
}

}  // namespace

DimensionKind classify_dimension(std::string_view symbol, const OnnxValue& input, size_t axis) {
  const std::string name = lower_case(symbol);
  // PyTorch's name for a dimension that got none contains the name of the input.
  if (name.find("_dynamic_axes_") == std::string::npos) {
    if (names(name, {"batch"}, {"n", "b"})) return DimensionKind::Batch;
    if (names(name, {"seq", "time", "len", "token"}, {"t", "s"})) return DimensionKind::Sequence;
    if (names(name, {"height", "width"}, {"h", "w"})) return DimensionKind::Image;
  }
  const size_t rank = input.dimensions.size();
  if (axis == 0) return DimensionKind::Batch;
  if (axis == 1 && (is_integer(input.dtype) || rank == 3)) return DimensionKind::Sequence;
  if (axis >= 2 && rank == 4) return DimensionKind::Image;
  return DimensionKind::Other;
}

Shape DimensionBinder::bind(const OnnxValue& input) {
  Shape shape;
  for (size_t axis = 0; axis < input.dimensions.size(); ++axis) {
    const std::optional<int64_t> size = input.dimensions[axis].size;
    shape.push_back(size ? *size : bind_open(input, axis));
  }
  if (shape.size() > 1 && input.dimensions[0].size) fixed_.push_back(&input);
  return shape;
}

int64_t DimensionBinder::bind_open(const OnnxValue& input, size_t axis) {
  const std::string& symbol = input.dimensions[axis].symbol;
  const std::string place = fmt::format("{}:{}", input.name, axis);
  const std::string key = symbol.empty() ? place : symbol;
  for (const std::string& name : {key, place}) {
    const auto given = options_.dimensions.find(name);
    if (given == options_.dimensions.end()) continue;
    used_names_.insert(name);
    return sizes_[key] = given->second;
  }
  if (const auto known = sizes_.find(key); known != sizes_.end()) return known->second;
  const DimensionKind kind = classify_dimension(symbol, input, axis);
  const Flag flag = flag_of(kind, options_);
  if (flag.size) {
    used_kinds_.insert(kind);
    return sizes_[key] = *flag.size;
  }
  if (kind == DimensionKind::Batch) {
    notes_.push_back(
        fmt::format("dimension \"{}\" is taken as the batch and set to 1; see --batch", key));
    return sizes_[key] = 1;
  }
  fail_input("dimension {} of input \"{}\" is open; give its size with {}--dim {}=N", axis,
             input.name, flag.name.empty() ? "" : fmt::format("{} N or ", flag.name), key);
}

void DimensionBinder::check_all_used() const {
  std::vector<std::string> known;
  for (const auto& [name, size] : sizes_) known.push_back(name);
  for (const auto& [name, size] : options_.dimensions)
    if (!used_names_.contains(name))
      fail_input("no open dimension is called \"{}\"{}; there {}", name, did_you_mean(name, known),
                 known.empty() ? "are none" : "are: " + join(known, ", "));
  for (const DimensionKind kind : {DimensionKind::Sequence, DimensionKind::Image}) {
    const Flag flag = flag_of(kind, options_);
    if (flag.size && !used_kinds_.contains(kind))
      fail_input("{0} cannot be chosen: {1}; export with dynamic_axes to leave it open", flag.name,
                 known.empty() ? "the file fixes the size of its inputs"
                               : "the file leaves only these open: " + join(known, ", "));
  }
  if (!options_.batch || used_kinds_.contains(DimensionKind::Batch) || fixed_.empty()) return;
  const auto agrees = [&](const OnnxValue* input) {
    return *input->dimensions[0].size == *options_.batch;
  };
  if (std::ranges::any_of(fixed_, agrees)) return;
  const OnnxValue& input = *fixed_.front();
  fail_input(
      "the file fixes dimension 0 of input \"{0}\" at {1}, --batch asks for {2}; export with "
      "dynamic_axes={{\"{0}\": {{0: \"batch\"}}}} to choose it",
      input.name, *input.dimensions[0].size, *options_.batch);
}

}  // namespace windlass
