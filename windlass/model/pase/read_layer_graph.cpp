// Graph files: JSON as data sets of PaSE's graphs have it. Keys that do not matter to the costs
// (stride, pad, created_as) are allowed and left alone.

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/model/pase/layer_graph.h"

namespace windlass {
namespace {

using nlohmann::json;

constexpr size_t kMostLayers = 100000, kMostEdges = 1000000, kMostOperands = 4096;
constexpr int64_t kMostExtent = int64_t{1} << 40;

const json& member(const json& object, const char* key, std::string_view where) {
  if (!object.is_object()) fail_input("{}: expected an object", where);
  const auto found = object.find(key);
  if (found == object.end()) fail_input("{}: \"{}\" is missing", where, key);
  return *found;
}

int64_t integer(const json& value, const std::string& where, int64_t least, int64_t most) {
  const bool fits = value.is_number_integer() &&
                    (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{1} << 62);
  if (!fits || value.get<int64_t>() < least || value.get<int64_t>() > most)
    fail_input("{}: found {}, expected a whole number from {} to {}", where, show_json(value),
               least, most);
  return value.get<int64_t>();
}

int64_t integer_or(const json& object, const char* key, int64_t fallback, const std::string& where,
                   int64_t most) {
  const auto found = object.find(key);
  return found == object.end() ? fallback
                               : integer(*found, fmt::format("{}: {}", where, key), 0, most);
}

const json& list(const json& value, std::string_view where, size_t most) {
  if (!value.is_array() || value.size() > most)
    fail_input("{}: found {}, expected a list of at most {}", where, show_json(value), most);
  return value;
}

Extents extents(const json& value, const std::string& where) {
  Extents result;
  for (const json& size : list(value, where, 8))
    result.push_back(integer(size, where, 1, kMostExtent));
  return result;
}

std::vector<Extents> shapes(const json& value, const std::string& where) {
  std::vector<Extents> result;
  for (const json& shape : list(value, where, kMostOperands))
    result.push_back(extents(shape, where));
  return result;
}

LayerKind kind_of(const std::string& name, const std::string& where) {
  for (size_t k = 0; k <= static_cast<size_t>(LayerKind::Variable); ++k)
    if (layer_kind_name(static_cast<LayerKind>(k)) == name) return static_cast<LayerKind>(k);
  fail_input("{}: \"{}\" is no type of layer that is known", where, name);
}

// One axis or several, negative ones from the end.
Extents axes(const json& value, const std::string& where, size_t rank) {
  Extents result;
  const auto add = [&](const json& axis) {
    const auto bound = static_cast<int64_t>(rank);
    const int64_t at = integer(axis, where, -bound, bound - 1);
    result.push_back(at < 0 ? at + bound : at);
  };
  if (value.is_array())
    for (const json& axis : list(value, where, 8)) add(axis);
  else
    add(value);
  return result;
}

Layer layer_of(const json& value, const std::string& where, size_t id) {
  Layer layer;
  if (integer(member(value, "id", where), where + ".id", 0, INT32_MAX) != static_cast<int64_t>(id))
    fail_input("{}: expected id {}, the position in the list", where, id);
  const json& type = member(value, "type", where);
  if (!type.is_string()) fail_input("{}.type: expected a text", where);
  layer.kind = kind_of(type.get<std::string>(), where + ".type");
  layer.space = extents(member(value, "iteration_space", where), where + ".iteration_space");
  layer.inputs = shapes(member(value, "inputs", where), where + ".inputs");
  layer.outputs = shapes(member(value, "outputs", where), where + ".outputs");
  const json& attributes = member(value, "attributes", where);
  const std::string place = where + ".attributes";
  if (!attributes.is_object()) fail_input("{}: expected an object", place);
  if (const auto found = attributes.find("fltr"); found != attributes.end())
    layer.filter = extents(*found, place + ".fltr");
  if (const auto found = attributes.find("axis"); found != attributes.end())
    layer.axes = axes(*found, place + ".axis", layer.space.size());
  if (const auto found = attributes.find("eq"); found != attributes.end()) {
    if (!found->is_string()) fail_input("{}.eq: expected a text", place);
    layer.equation = found->get<std::string>();
  }
  layer.pointwise = integer_or(attributes, "pw_op_cnt", 0, place, 1000000);
  layer.units = integer_or(attributes, "num_units", 0, place, kMostExtent);
  layer.layers = integer_or(attributes, "num_layers", 0, place, kMostExtent);
  return layer;
}

}  // namespace

bool is_layer_graph(std::string_view text) {
  try {
    const json document = parse_json(text, true);
    return document.is_object() && document.contains("vertices") && document.contains("edges");
  } catch (const Error&) {
    return false;
  }
}

LayerGraph layer_graph_from_json(std::string_view text, const std::string& where) {
  json document;
  try {
    document = parse_json(text);
  } catch (const Error& error) {
    fail_input("{}: {}", where, error.what());
  }
  LayerGraph graph;
  const json& vertices =
      list(member(document, "vertices", where), where + ": vertices", kMostLayers);
  graph.name = document.contains("graph") && document["graph"].is_string()
                   ? document["graph"].get<std::string>()
                   : "graph";
  graph.batch = integer(member(document, "batch", where), where + ": batch", 1, kMostExtent);
  graph.cutoff = integer(member(document, "cutoff", where), where + ": cutoff", 1, kMostExtent);
  for (size_t v = 0; v < vertices.size(); ++v)
    graph.layers.push_back(layer_of(vertices[v], fmt::format("{}: vertices[{}]", where, v), v));
  if (graph.layers.empty()) fail_input("{}: vertices: there are none", where);
  const json& edges = list(member(document, "edges", where), where + ": edges", kMostEdges);
  for (size_t e = 0; e < edges.size(); ++e) {
    const std::string place = fmt::format("{}: edges[{}]", where, e);
    if (!edges[e].is_array() || edges[e].size() != 4)
      fail_input("{}: expected [source, output, target, input]", place);
    size_t at[4] = {};
    for (size_t i = 0; i < 4; ++i)
      at[i] = static_cast<size_t>(integer(edges[e][i], place, 0, INT32_MAX));
    graph.edges.push_back({at[0], at[1], at[2], at[3]});
  }
  check_layer_graph(graph, where);
  return graph;
}

}  // namespace windlass
