#include "windlass/model/padding_rows.h"

#include <algorithm>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/model/weights.h"

namespace windlass {
namespace {

constexpr int64_t kFirstRows = 4;

// Where one of `rows` rows lies.
WeightLocation row_of(const WeightLocation& table, int64_t rows, int64_t row) {
  WeightLocation location;
  location.file = table.file;
  location.bytes = table.bytes / rows;
  location.dtype = table.dtype;
  const int64_t begin = row * location.bytes;
  location.offset = table.offset + begin;
  if (!table.value.empty())
    location.value.assign(table.value.begin() + begin,
                          table.value.begin() + begin + location.bytes);
  return location;
}

// What cannot be read is told to whoever trains.
bool is_zero(const WeightLocation& location) {
  std::vector<float> values(static_cast<size_t>(stored_elements(location)));
  try {
    read_weight(location, DType::F32, std::as_writable_bytes(std::span(values)));
  } catch (const Error&) {
    return false;
  }
  return std::ranges::all_of(values, [](float value) { return value == 0; });
}

// The only row of zeros among those that are looked at.
std::optional<int64_t> find_padding_row(const WeightLocation& table, int64_t rows) {
  std::set<int64_t> looked_at = {rows - 1};
  for (int64_t row = 0; row < std::min(rows, kFirstRows); ++row) looked_at.insert(row);
  std::optional<int64_t> found;
  for (int64_t row : looked_at) {
    if (!is_zero(row_of(table, rows, row))) continue;
    if (found) return std::nullopt;
    found = row;
  }
  return looked_at.size() > 1 ? found : std::nullopt;
}

}  // namespace

std::vector<std::string> note_padding_rows(const Model& model) {
  std::vector<std::string> notes;
  std::set<TensorId> seen;
  for (const Op& op : model.graph.ops) {
    if (op.kind != OpKind::Embedding || !seen.insert(op.inputs[1]).second) continue;
    const Tensor& table = model.graph[op.inputs[1]];
    const auto found = model.weights.find(op.inputs[1]);
    if (!table.trainable || found == model.weights.end()) continue;
    const WeightLocation& stored = found->second;
    const int64_t elements = element_count(table.type.shape), rows = table.type.shape[0];
    if (!stored.parts.empty() || !is_float(stored.dtype) || elements == 0 ||
        stored.bytes != elements * element_bytes(stored.dtype))
      continue;
    if (const auto row = find_padding_row(stored, rows))
      notes.push_back(fmt::format(
          "\"{}\": row {} is zero, as that of a padding index is; PyTorch does not train such a "
          "row, which the file does not say: here it is trained",
          table.name, *row));
  }
  return notes;
}

}  // namespace windlass
