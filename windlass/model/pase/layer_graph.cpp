#include "windlass/model/pase/layer_graph.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "windlass/base/error.h"

namespace windlass {
namespace {

constexpr std::array<std::string_view, 18> kKindNames = {
    "Conv",        "Pooling",    "FC",      "Einsum",
    "LSTM",        "Norm",       "Softmax", "SoftmaxCrossEntropy",
    "Elementwise", "ReduceMean", "Concat",  "Split",
    "Stack",       "Unstack",    "Ravel",   "Unravel",
    "Transpose",   "Variable"};

int64_t elements(const Extents& shape) {
  int64_t count = 1;
  for (int64_t size : shape) count *= size;
  return count;
}

// Checks one vertex; messages begin with `where`.
class LayerCheck {
 public:
  LayerCheck(const Layer& layer, const std::string& where) : layer_(layer), where_(where) {}

  void run() const {
    if (layer_.outputs.empty()) fail("has no output");
    switch (layer_.kind) {
      case LayerKind::Conv: return conv();
      case LayerKind::Pooling: return pooling();
      case LayerKind::FullyConnected: return fully_connected();
      case LayerKind::Einsum: return einsum();
      case LayerKind::Lstm: return lstm();
      case LayerKind::Norm:
      case LayerKind::Softmax:
        axes(1, 1);
        return like_space(input(0)), like_space(layer_.outputs[0]);
      case LayerKind::ReduceMean:
        axes(1, layer_.space.size());
        like_space(input(0));
        return expect(layer_.outputs[0] == without_axes(layer_.space, layer_.axes) ||
                          layer_.outputs[0].size() == layer_.space.size(),
                      "output", layer_.outputs[0]);
      case LayerKind::Concat:
      case LayerKind::Split: return joined(false, true);
      case LayerKind::Stack: return joined(true, true);
      case LayerKind::Unstack: return joined(true, false);
      case LayerKind::Ravel:
        like_space(input(0));
        return expect(layer_.outputs[0] == Extents{elements(layer_.space)}, "output",
                      layer_.outputs[0]);
      case LayerKind::Unravel:
        like_space(layer_.outputs[0]);
        return expect(input(0) == Extents{elements(layer_.space)}, "input", input(0));
      case LayerKind::Variable: return like_space(layer_.outputs[0]);
      case LayerKind::SoftmaxCrossEntropy:
      case LayerKind::Elementwise:
      case LayerKind::Transpose: break;
    }
    like_space(layer_.outputs[0]);
    for (const Extents& shape : layer_.inputs) like_space(shape);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const {
    fail_input("{}: {} {}", where_, layer_kind_name(layer_.kind), what);
  }
  void expect(bool holds, std::string_view what, const Extents& found) const {
    if (!holds)
      fail(fmt::format("has an {} of shape [{}] that does not agree with its iteration space [{}]",
                       what, fmt::join(found, ", "), fmt::join(layer_.space, ", ")));
  }
  const Extents& input(size_t i) const {
    if (i >= layer_.inputs.size()) fail(fmt::format("has no input {}", i));
    return layer_.inputs[i];
  }
  void rank(size_t least, size_t most) const {
    if (layer_.space.size() < least || layer_.space.size() > most)
      fail(fmt::format(
          "has an iteration space of {} dimensions, expected {}", layer_.space.size(),
          least == most ? fmt::to_string(least) : fmt::format("{} to {}", least, most)));
  }
  void axes(size_t least, size_t most) const {
    if (layer_.axes.size() < least || layer_.axes.size() > most)
      fail(fmt::format("has {} axes", layer_.axes.size()));
    for (size_t i = 0; i < layer_.axes.size(); ++i)
      if (layer_.axes[i] < 0 || static_cast<size_t>(layer_.axes[i]) >= layer_.space.size() ||
          std::ranges::count(layer_.axes, layer_.axes[i]) > 1)
        fail(fmt::format("has an axis {} that its iteration space does not have, or twice",
                         layer_.axes[i]));
  }
  void like_space(const Extents& shape) const { expect(shape == layer_.space, "operand", shape); }

  void conv() const {
    rank(7, 7);
    const Extents &s = layer_.space, &f = layer_.filter;
    if (f != Extents{s[6], s[1], s[4], s[5]}) fail("has a filter that is not [n, c, r, s]");
    expect(layer_.outputs[0] == Extents{s[0], s[6], s[2], s[3]}, "output", layer_.outputs[0]);
    const Extents& in = input(0);
    expect(in.size() == 4 && in[0] == s[0] && in[1] == s[1], "input", in);
  }
  void pooling() const {
    rank(4, 4);
    if (layer_.filter.size() != 2) fail("has a filter that is not [r, s]");
    like_space(layer_.outputs[0]);
    const Extents& in = input(0);
    expect(in.size() == 4 && in[0] == layer_.space[0] && in[1] == layer_.space[1], "input", in);
  }
  void fully_connected() const {
    rank(3, 8);
    const Extents& s = layer_.space;
    const Extents lead(s.begin(), s.end() - 2);
    Extents in = lead, out = lead;
    in.push_back(s.back());
    out.push_back(s[s.size() - 2]);
    expect(input(0) == in, "input", input(0));
    expect(layer_.outputs[0] == out, "output", layer_.outputs[0]);
  }
  EinsumLetters letters_of_equation() const {
    try {
      return einsum_letters(layer_.equation);
    } catch (const Error& error) {
      fail_input("{}: {}", where_, error.message());
    }
  }
  void einsum() const {
    const EinsumLetters letters = letters_of_equation();
    rank(letters.space.size(), letters.space.size());
    const auto agrees = [&](const std::string& part, const Extents& shape) {
      if (shape.size() != part.size()) return false;
      for (size_t i = 0; i < part.size(); ++i)
        if (shape[i] != layer_.space[letters.space.find(part[i])]) return false;
      return true;
    };
    expect(agrees(letters.first, input(0)), "input", input(0));
    if (layer_.inputs.size() > 1) expect(agrees(letters.second, input(1)), "input", input(1));
    expect(agrees(letters.output, layer_.outputs[0]), "output", layer_.outputs[0]);
  }
  void lstm() const {
    rank(5, 5);
    const Extents& s = layer_.space;
    if (layer_.units <= 0 || layer_.layers <= 0 || s[0] != layer_.layers || s[3] != layer_.units ||
        s[4] != layer_.units)
      fail("has an iteration space that is not [layers, sequence, b, units, units]");
    const Extents shape = {s[2], s[1], s[3]};
    expect(input(0) == shape, "input", input(0));
    expect(layer_.outputs[0] == shape, "output", layer_.outputs[0]);
  }
  // Tensors that are the space but for the axis: of any size there, or without it where stacked.
  void joined(bool stacked, bool to_output) const {
    axes(1, 1);
    const auto axis = static_cast<size_t>(layer_.axes[0]);
    if (layer_.space[axis] != 1) fail("is split along its axis: size 1 is expected there");
    const auto whole = [&](const Extents& shape) {
      Extents like = shape;
      if (like.size() > axis) like[axis] = 1;
      expect(like == layer_.space, "operand", shape);
    };
    const auto part = [&](const Extents& shape) {
      if (!stacked) return whole(shape);
      expect(shape == without_axes(layer_.space, layer_.axes), "operand", shape);
    };
    input(0);
    for (const Extents& shape : layer_.inputs) to_output ? part(shape) : whole(shape);
    for (const Extents& shape : layer_.outputs) to_output&& stacked ? whole(shape) : part(shape);
  }

  const Layer& layer_;
  const std::string& where_;
};

}  // namespace

std::string_view layer_kind_name(LayerKind kind) { return kKindNames[static_cast<size_t>(kind)]; }

Extents without_axes(const Extents& extents, const Extents& axes) {
  Extents rest;
  for (size_t i = 0; i < extents.size(); ++i)
    if (std::ranges::find(axes, static_cast<int64_t>(i)) == axes.end()) rest.push_back(extents[i]);
  return rest;
}

EinsumLetters einsum_letters(std::string_view equation) {
  const size_t comma = equation.find(','), arrow = equation.find("->");
  const auto fail = [&](std::string_view why) {
    fail_input("einsum \"{}\": {}; expected something like abc,cd->abd", equation, why);
  };
  if (comma == std::string_view::npos || arrow == std::string_view::npos || comma > arrow)
    fail("is not of two inputs and an output");
  EinsumLetters letters = {std::string(equation.substr(0, comma)),
                           std::string(equation.substr(comma + 1, arrow - comma - 1)),
                           std::string(equation.substr(arrow + 2)),
                           {}};
  for (const std::string* part : {&letters.first, &letters.second, &letters.output})
    for (char c : *part) {
      if (c < 'a' || c > 'z') fail(fmt::format("has a '{}'", c));
      if (std::ranges::count(*part, c) > 1) fail("repeats a letter");
    }
  const auto in = [](const std::string& part, char c) { return part.find(c) != std::string::npos; };
  for (char c : letters.output)
    if (!in(letters.first, c) && !in(letters.second, c)) fail("has an output letter of no input");
  for (const std::string* part : {&letters.first, &letters.second})
    for (char c : *part)
      if (!in(letters.output, c) && !(in(letters.first, c) && in(letters.second, c)))
        fail("sums a letter of one input alone");
  letters.space = letters.output;
  for (char c : letters.first)
    if (!in(letters.output, c)) letters.space += c;
  if (letters.space.empty()) fail("has no letters");
  return letters;
}

void check_layer_graph(const LayerGraph& graph, const std::string& where) {
  // Products of sizes must stay far from what doubles and 64-bit integers can hold.
  constexpr double kMostElements = 1e15;
  for (size_t v = 0; v < graph.layers.size(); ++v) {
    const Layer& layer = graph.layers[v];
    const std::string place = fmt::format("{}: vertices[{}]", where, v);
    const auto check_extents = [&](const Extents& extents) {
      double product = 1;
      if (extents.size() > 8) fail_input("{}: more than 8 dimensions", place);
      for (int64_t size : extents) {
        if (size <= 0) fail_input("{}: a size of {}", place, size);
        product *= static_cast<double>(size);
      }
      if (product > kMostElements)
        fail_input("{}: [{}] is too large", place, fmt::join(extents, ", "));
    };
    if (layer.space.empty()) fail_input("{}: has no iteration space", place);
    check_extents(layer.space);
    check_extents(layer.filter);
    for (const Extents& shape : layer.inputs) check_extents(shape);
    for (const Extents& shape : layer.outputs) check_extents(shape);
    LayerCheck(layer, place).run();
  }
  for (size_t e = 0; e < graph.edges.size(); ++e) {
    const LayerEdge& edge = graph.edges[e];
    const std::string place = fmt::format("{}: edges[{}]", where, e);
    if (edge.from >= edge.to || edge.to >= graph.layers.size())
      fail_input("{}: joins {} and {}; expected an earlier and a later vertex", place, edge.from,
                 edge.to);
    const Layer &from = graph.layers[edge.from], &to = graph.layers[edge.to];
    if (edge.output >= from.outputs.size() || edge.input >= to.inputs.size())
      fail_input("{}: there is no such output or input", place);
    if (from.outputs[edge.output] != to.inputs[edge.input])
      fail_input("{}: shape [{}] becomes [{}]", place, fmt::join(from.outputs[edge.output], ", "),
                 fmt::join(to.inputs[edge.input], ", "));
  }
}

}  // namespace windlass
