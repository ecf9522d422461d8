#include "windlass/graph/dump.h"

#include <cctype>
#include <iterator>

#include <fmt/format.h>

#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

std::string reference(TensorId id) { return id.valid() ? fmt::format("%{}", id.value) : "-"; }

std::string escape(std::string_view text) {
  std::string result;
  for (char c : text) {
    if (c == '"' || c == '\\') result += '\\';
    result += std::iscntrl(static_cast<unsigned char>(c)) ? '?' : c;
  }
  return result;
}

std::string_view saved_name(SavedRef::Source source) {
  switch (source) {
    case SavedRef::Source::Input: return "input";
    case SavedRef::Source::Output: return "output";
    case SavedRef::Source::Auxiliary: return "aux";
  }
  return "";
}

std::string op_label(const Op& op) {
  std::string label(op_info(op.kind).name);
  if (const auto* unary = std::get_if<UnaryAttrs>(&op.attrs)) label = enum_name(unary->fn);
  if (const auto* binary = std::get_if<BinaryAttrs>(&op.attrs)) label = enum_name(binary->fn);
  if (op.pass == Pass::Backward && op.forward.valid()) label += "'";
  return label;
}

}  // namespace

std::string dump_graph(const Graph& graph) {
  std::string text = fmt::format("graph \"{}\"\n", escape(graph.name));
  auto out = std::back_inserter(text);
  for (size_t t = 0; t < graph.tensors.size(); ++t) {
    const Tensor& tensor = graph.tensors[t];
    if (tensor.producer.valid()) continue;
    fmt::format_to(out, "%{}: {} {}{} \"{}\"\n", t, format_type(tensor.type),
                   role_name(tensor.role),
                   tensor.role == TensorRole::Weight && !tensor.trainable ? " frozen" : "",
                   escape(tensor.name));
  }
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    bool first = true;
    for (const auto* list : {&op.outputs, &op.auxiliaries}) {
      for (TensorId id : *list) {
        fmt::format_to(out, "{}{}", first ? "" : ", ", reference(id));
        if (id.valid()) fmt::format_to(out, ": {}", format_type(graph[id].type));
        first = false;
      }
    }
    fmt::format_to(out, "{}{}", first ? "" : " = ", op_info(op.kind).name);
    if (op.pass == Pass::Backward && op.forward.valid()) fmt::format_to(out, "'");
    for (TensorId id : op.inputs) fmt::format_to(out, " {}", reference(id));
    const std::string attrs = format_attrs(op.attrs);
    if (!attrs.empty()) fmt::format_to(out, " {{{}}}", attrs);
    if (op.pass == Pass::Backward && op.forward.valid()) {
      fmt::format_to(out, " [of op {}; reads", op.forward.value);
      for (const SavedRef& ref : op.saved)
        fmt::format_to(out, " {}{}", saved_name(ref.source), ref.index);
      fmt::format_to(out, "]");
    }
    fmt::format_to(out, "  \"{}\"\n", escape(op.name));
  }
  return text;
}

std::string dump_dot(const Graph& graph) {
  std::string text =
      fmt::format("digraph \"{}\" {{\n  node [shape=box, style=filled];\n", escape(graph.name));
  auto out = std::back_inserter(text);
  for (size_t i = 0; i < graph.ops.size(); ++i) {
    const Op& op = graph.ops[i];
    const std::string_view colour = op.pass == Pass::Forward    ? "lightblue"
                                    : op.pass == Pass::Backward ? "lightsalmon"
                                                                : "lightgray";
    fmt::format_to(out, "  op{} [label=\"{}\\n{}\", fillcolor={}];\n", i, op_label(op),
                   escape(op.name), colour);
    for (TensorId id : op.inputs) {
      if (!id.valid()) continue;
      const Tensor& tensor = graph[id];
      if (tensor.producer.valid()) {
        fmt::format_to(out, "  op{} -> op{} [label=\"{}\"];\n", tensor.producer.value, i,
                       format_type(tensor.type));
      } else if (tensor.role == TensorRole::Input || tensor.role == TensorRole::Label) {
        fmt::format_to(
            out, "  in{0} [label=\"{1}\", shape=ellipse];\n  in{0} -> op{2} [label=\"{3}\"];\n",
            id.value, escape(tensor.name), i, format_type(tensor.type));
      }
    }
  }
  text += "}\n";
  return text;
}

}  // namespace windlass
