#include "windlass/model/padding_rows.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/model/weights.h"

namespace windlass {
namespace {

constexpr int64_t kFirstRows = 4;
constexpr const char* kKept = ".kept";  // ends the name of the op that keeps a row

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

// Tables that embeddings look up and that are trained, with their padding rows.
std::map<TensorId, int64_t> find_padding_rows(const Model& model) {
  std::map<TensorId, int64_t> rows_of;
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
    if (const auto row = find_padding_row(stored, rows)) rows_of.emplace(op.inputs[1], *row);
  }
  return rows_of;
}

// Whether what an embedding looks up is replaced by zeros where it is its padding row.
bool is_kept(const Graph& graph, const std::vector<std::vector<OpId>>& consumers, const Op& op) {
  const std::vector<OpId>& readers = consumers[op.outputs[0].index()];
  return readers.size() == 1 && graph[readers[0]].kind == OpKind::Where &&
         graph[readers[0]].name == op.name + kKept;
}

TensorId add_tensor(Graph& graph, Tensor tensor) {
  graph.tensors.push_back(std::move(tensor));
  return TensorId(graph.tensors.size() - 1);
}

TensorId add_number(Graph& graph, const std::string& name, DType dtype, double value) {
  graph.constants.push_back({{value}});
  return add_tensor(graph, {.name = name,
                            .type = {dtype, {}},
                            .role = TensorRole::Constant,
                            .producer = {},
                            .constant = static_cast<int32_t>(graph.constants.size() - 1)});
}

// Zeros instead of what `op` looks up wherever the index is `row`; the result keeps its id.
std::vector<Op> keep_row(Graph& graph, Op& op, int64_t row) {
  const TensorId ids = op.inputs[0], result = op.outputs[0];
  const TensorType id_type = graph[ids].type, type = graph[result].type;
  Shape tall = id_type.shape;
  tall.push_back(1);
  const auto made = [&](const std::string& part, TensorType of) {
    return add_tensor(graph, {.name = op.name + part, .type = std::move(of), .producer = {}});
  };
  const TensorId number =
      add_number(graph, op.name + ".padding", id_type.dtype, static_cast<double>(row));
  const TensorId zero = add_number(graph, op.name + ".zero", type.dtype, 0);
  const TensorId equal = made(".is_padding", {DType::Bool, id_type.shape});
  const TensorId mask = made(".mask", {DType::Bool, tall});
  const TensorId looked_up = made(".rows", type);
  op.outputs[0] = looked_up;
  return {{.kind = OpKind::Binary,
           .attrs = BinaryAttrs{BinaryFn::Equal},
           .inputs = {ids, number},
           .outputs = {equal},
           .name = op.name + ".is_padding"},
          {.kind = OpKind::Reshape,
           .attrs = ShapeAttrs{tall},
           .inputs = {equal},
           .outputs = {mask},
           .name = op.name + ".mask"},
          {.kind = OpKind::Where,
           .attrs = NoAttrs{},
           .inputs = {mask, zero, looked_up},
           .outputs = {result},
           .name = op.name + kKept}};
}

}  // namespace

std::vector<std::string> keep_padding_rows(Model& model, const std::vector<std::string>& train) {
  std::map<TensorId, int64_t> rows_of = find_padding_rows(model);
  Graph& graph = model.graph;
  const auto consumers = consumers_of(graph);
  std::erase_if(rows_of, [&](const auto& entry) {
    const TensorId table = entry.first;
    const bool wanted = std::ranges::any_of(
        train, [&](const std::string& glob) { return matches_glob(graph[table].name, glob); });
    return wanted || !std::ranges::all_of(consumers[table.index()], [&](OpId id) {
             return graph[id].kind == OpKind::Embedding && graph[id].inputs[1] == table;
           });
  });
  if (rows_of.empty()) return {};
  std::vector<Op> ops;
  for (Op& op : graph.ops) {
    const auto found = op.kind == OpKind::Embedding ? rows_of.find(op.inputs[1]) : rows_of.end();
    std::vector<Op> after;
    if (found != rows_of.end()) after = keep_row(graph, op, found->second);
    ops.push_back(std::move(op));
    std::ranges::move(after, std::back_inserter(ops));
  }
  graph.ops = std::move(ops);
  for (size_t i = 0; i < graph.ops.size(); ++i)
    for (TensorId id : graph.ops[i].outputs) graph[id].producer = OpId(i);
  check_graph(graph);
  std::vector<std::string> notes;
  for (const auto& [table, row] : rows_of)
    notes.push_back(
        fmt::format("\"{}\": row {} is zero, as that of a padding index is, and not trained; "
                    "--train NAME trains "
                    "it",
                    graph[table].name, row));
  return notes;
}

std::vector<std::string> note_padding_rows(const Model& model) {
  const auto consumers = consumers_of(model.graph);
  std::set<TensorId> kept;
  for (const Op& op : model.graph.ops)
    if (op.kind == OpKind::Embedding && is_kept(model.graph, consumers, op))
      kept.insert(op.inputs[1]);
  std::vector<std::string> notes;
  for (const auto& [table, row] : find_padding_rows(model))
    if (!kept.contains(table))
      notes.push_back(fmt::format(
          "\"{}\": row {} is zero, as that of a padding index is; PyTorch does not train such a "
          "row, which the file does not say: here it is trained",
          model.graph[table].name, row));
  return notes;
}

}  // namespace windlass
