#include "windlass/model/onnx/importer.h"

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/model/onnx/operators.h"
#include "windlass/model/onnx/parameters.h"

namespace windlass {
namespace {

// Functions may call functions, branches hold branches; real files nest a handful deep.
constexpr int kMaxDepth = 32;
// Calls multiply: a small file could otherwise unfold to any size. This many nodes beyond its own.
constexpr int64_t kMaxUnfolded = 200'000;
// Names of nodes are for people; functions in functions would multiply their length.
constexpr size_t kMaxName = 256;
// Problems beyond this many are counted, not listed.
constexpr size_t kMaxListed = 20;

void collect_nodes(const std::vector<OnnxNode>& nodes, std::vector<const OnnxNode*>& all) {
  for (const OnnxNode& node : nodes) {
    all.push_back(&node);
    for (const auto& [name, attribute] : node.attributes)
      if (attribute.graph) collect_nodes(attribute.graph->nodes, all);
  }
}

std::string node_label(const OnnxNode& node) {
  if (!node.name.empty()) return node.name.substr(0, kMaxName);
  return node.outputs.empty() ? std::string("unnamed")
                              : "-> " + node.outputs[0].substr(0, kMaxName);
}

}  // namespace

class OnnxImporter::Nested {
 public:
  Nested(OnnxImporter& importer, Scope scope) : importer_(importer) {
    if (importer.depth_ >= kMaxDepth)
      fail_input("functions and branches are nested more than {} deep", kMaxDepth);
    ++importer.depth_;
    importer.scopes_.push_back(std::move(scope));
  }
  ~Nested() {
    importer_.scopes_.pop_back();
    --importer_.depth_;
  }
  Nested(const Nested&) = delete;
  Nested& operator=(const Nested&) = delete;

 private:
  OnnxImporter& importer_;
};

OnnxImporter::OnnxImporter(const OnnxFile& file, const ModelOptions& options)
    : file_(file),
      options_(options),
      builder_(file.graph.name.empty() ? "onnx" : file.graph.name),
      dimensions_(options) {
  for (const OnnxTensor& tensor : file.graph.initializers)
    if (!initializers_.emplace(tensor.name, &tensor).second)
      fail_input("initializer \"{}\" is defined twice", tensor.name);
  for (const auto* list : {&file.graph.values, &file.graph.outputs})
    for (const OnnxValue& value : *list) declared_.emplace(value.name, &value);
  for (const OnnxFunction& function : file.functions)
    functions_.emplace(std::pair{function.domain, function.name}, &function);
  folded_biases_ = had_folded_biases(file);
  for_training_ = is_exported_for_training(file);
  // One that keeps no statistics is for training in every mode.
  training_norms_ =
      std::any_of(file.graph.nodes.begin(), file.graph.nodes.end(), [](const OnnxNode& node) {
        return node.op_type == "BatchNormalization" && is_training_norm(node) &&
               node.inputs.size() > 3 && is_statistic_name(node.inputs[3]);
      });
  scopes_.emplace_back();
}

Graph OnnxImporter::run() {
  if (file_.opset == 0) fail_unsupported("the file names no version of ONNX's operators");
  if (file_.opset < kFirstOpset || file_.opset > kLastOpset)
    fail_unsupported("opset {} is not supported; export with opset {} to {}", file_.opset,
                     kFirstOpset, kLastOpset);
  report_unsupported_ops();
  nodes_left_ = static_cast<int64_t>(file_.graph.nodes.size()) + kMaxUnfolded;
  bind_inputs();
  import_nodes(file_.graph.nodes, "");
  if (!problems_.empty()) {
    std::string text = fmt::format("{} node{} cannot be imported:", problems_.size(),
                                   problems_.size() == 1 ? "" : "s");
    for (size_t i = 0; i < std::min(problems_.size(), kMaxListed); ++i)
      text += "\n  " + problems_[i];
    if (problems_.size() > kMaxListed)
      text += fmt::format("\n  and {} more", problems_.size() - kMaxListed);
    throw Error(ErrorKind::Unsupported, text);
  }
  attach_outputs_and_loss();
  Graph graph = builder_.finish();
  std::vector<Demotion> demotions = std::move(demoted_by_name_);
  const auto found = demote_buffers(
      graph, [&](const Tensor& tensor) { return stored_values(tensor); }, options_.train,
      names_in_order());
  demotions.insert(demotions.end(), found.begin(), found.end());
  if (!demotions.empty())
    note_once(fmt::format("taken for buffers and not trained: {}; --train NAME trains one",
                          describe(demotions)));
  note_trained("trained, though perhaps buffers", doubtful_weights(graph, options_.train),
               "--freeze NAME keeps one as it is");
  note_trained(
      "trained, but computed by the exporter, of parameters or of buffers, which the file does not "
      "say",
      computed_weights(graph, options_.train),
      "export with do_constant_folding=False, or --freeze NAME keeps one as it is");
  return graph;
}

void OnnxImporter::note_trained(std::string_view what, std::vector<std::string> names,
                                std::string_view advice) {
  constexpr size_t kMaxNames = 3;
  std::erase_if(names, [&](const std::string& name) {
    return std::ranges::any_of(options_.freeze,
                               [&](const std::string& glob) { return matches_glob(name, glob); });
  });
  if (names.empty()) return;
  const size_t more = names.size() > kMaxNames ? names.size() - kMaxNames : 0;
  names.resize(names.size() - more);
  note_once(fmt::format("{}: {}{}; {}", what, join(names, ", "),
                        more > 0 ? fmt::format(" and {} more", more) : "", advice));
}

void OnnxImporter::report_unsupported_ops() {
  std::vector<const OnnxNode*> all;
  collect_nodes(file_.graph.nodes, all);
  for (const OnnxFunction& function : file_.functions) collect_nodes(function.nodes, all);
  std::map<std::string, std::vector<const OnnxNode*>> unsupported;
  for (const OnnxNode* node : all) {
    if (functions_.contains({node->domain, node->op_type})) continue;
    if (node->domain.empty() && import_table().contains(node->op_type)) continue;
    unsupported[node->domain.empty() ? node->op_type : node->domain + "." + node->op_type]
        .push_back(node);
  }
  if (unsupported.empty()) return;
  std::string text = fmt::format("{} operator{} not supported:", unsupported.size(),
                                 unsupported.size() == 1 ? " is" : "s are");
  for (const auto& [op_type, nodes] : unsupported) {
    text += fmt::format("\n  {} x{} (", op_type, nodes.size());
    for (size_t i = 0; i < std::min<size_t>(nodes.size(), 3); ++i)
      text += fmt::format("{}\"{}\"", i ? ", " : "", node_label(*nodes[i]));
    text += fmt::format("{}): {}", nodes.size() > 3 ? ", ..." : "", advice_for(nodes[0]->op_type));
  }
  throw Error(ErrorKind::Unsupported, text);
}

void OnnxImporter::bind_inputs() {
  for (const OnnxValue& input : file_.graph.inputs) {
    // Before IR version 4 initializers are listed as inputs too.
    if (initializers_.contains(input.name)) continue;
    if (input.dtype == DType::None)
      fail_unsupported("input \"{}\" is not a tensor of numbers", input.name);
    if (!input.has_shape) fail_input("input \"{}\" has no shape; export it with one", input.name);
    define(input.name, builder_.input(input.name, {input.dtype, dimensions_.bind(input)}));
  }
  dimensions_.check_all_used();
  for (const std::string& note : dimensions_.notes()) note_once(note);
}

void OnnxImporter::define(const std::string& name, TensorId id) {
  if (!id.valid()) fail_input("value \"{}\" is made of an input that is missing", name);
  if (!scopes_.back().values.emplace(name, id).second)
    fail_input("value \"{}\" is defined twice", name);
}

TensorId OnnxImporter::lookup(const std::string& name) {
  // A function sees nothing of its caller; a branch sees everything around it.
  for (size_t i = scopes_.size(); i-- > 0;) {
    const auto found = scopes_[i].values.find(name);
    if (found != scopes_[i].values.end()) return found->second;
    if (scopes_[i].call) break;
    if (i > 0) continue;
    const auto stored = initializers_.find(name);
    if (stored != initializers_.end()) {
      const TensorId id = initializer(*stored->second, true);
      scopes_[0].values.emplace(name, id);
      return id;
    }
  }
  if (const auto reason = withheld_.find(name); reason != withheld_.end())
    fail_unsupported("{}", reason->second);
  fail_input("value \"{}\" is read before it is computed: the graph is cyclic or out of order",
             name);
}

void OnnxImporter::note_once(const std::string& note) {
  // More than anyone reads; each new one is compared with all.
  constexpr size_t kMaxNotes = 100;
  if (notes_.size() >= kMaxNotes) return;
  if (std::find(notes_.begin(), notes_.end(), note) == notes_.end()) notes_.push_back(note);
}

OnnxNode OnnxImporter::resolve_references(const OnnxNode& node) const {
  OnnxNode resolved = node;
  for (auto attribute = resolved.attributes.begin(); attribute != resolved.attributes.end();) {
    if (attribute->second.reference.empty()) {
      ++attribute;
      continue;
    }
    // A branch inside a function refers to the function's caller.
    const OnnxNode* call = nullptr;
    for (size_t i = scopes_.size(); i-- > 0 && !call;) call = scopes_[i].call;
    const auto given =
        call ? call->attributes.find(attribute->second.reference) : node.attributes.end();
    // Not given by the caller: the operator's default holds.
    if (!call || given == call->attributes.end()) {
      attribute = resolved.attributes.erase(attribute);
    } else {
      attribute->second = given->second;
      ++attribute;
    }
  }
  return resolved;
}

void OnnxImporter::import_nodes(const std::vector<OnnxNode>& nodes, const std::string& prefix) {
  for (const OnnxNode& node : nodes) import_node(node, prefix);
}

void OnnxImporter::import_node(const OnnxNode& original, const std::string& prefix) {
  if (--nodes_left_ < 0)
    fail_input("functions and branches unfold to more than {} nodes", kMaxUnfolded);
  const std::string name = prefix + node_label(original);
  const bool poisoned = std::any_of(original.inputs.begin(), original.inputs.end(),
                                    [&](const std::string& in) { return poisoned_.contains(in); });
  const auto poison = [&] {
    for (const std::string& output : original.outputs)
      if (!output.empty()) poisoned_.insert(output);
  };
  if (poisoned) return poison();
  try {
    const bool refers =
        std::any_of(original.attributes.begin(), original.attributes.end(),
                    [](const auto& attribute) { return !attribute.second.reference.empty(); });
    OnnxNode resolved;
    if (refers) resolved = resolve_references(original);
    const OnnxNode& node = refers ? resolved : original;
    const auto function = functions_.find({node.domain, node.op_type});
    if (function != functions_.end()) {
      call_function(*function->second, node, name);
      return;
    }
    NodeContext context(*this, node, name);
    import_table().at(node.op_type)(context);
    for (const std::string& output : node.outputs)
      if (const auto declared = declared_.find(output);
          declared != declared_.end() && !withheld_.contains(output))
        check_declared_type(*declared->second, lookup(output));
  } catch (const Error& error) {
    const Error located = error.within(fmt::format("node \"{}\" ({})", name, original.op_type));
    if (error.kind() != ErrorKind::Unsupported) throw located;
    problems_.push_back(located.message());
    poison();
  }
}

void OnnxImporter::call_function(const OnnxFunction& function, const OnnxNode& node,
                                 const std::string& name) {
  Scope scope;
  scope.call = &node;
  for (size_t i = 0; i < function.inputs.size(); ++i)
    if (i < node.inputs.size() && !node.inputs[i].empty())
      scope.values.emplace(function.inputs[i], lookup(node.inputs[i]));
  // Names inside a function are its own: what is poisoned outside is not in here.
  std::set<std::string> outer_poison;
  std::swap(outer_poison, poisoned_);
  std::vector<TensorId> outputs;
  std::vector<bool> lost;
  try {
    const Nested nested(*this, std::move(scope));
    import_nodes(function.nodes, name.substr(0, kMaxName) + "/");
    for (const std::string& output : function.outputs) {
      lost.push_back(poisoned_.contains(output));
      outputs.push_back(lost.back() ? TensorId() : lookup(output));
    }
  } catch (const Error&) {
    std::swap(outer_poison, poisoned_);
    throw;
  }
  std::swap(outer_poison, poisoned_);
  for (size_t i = 0; i < std::min(node.outputs.size(), outputs.size()); ++i) {
    if (node.outputs[i].empty()) continue;
    if (lost[i])
      poisoned_.insert(node.outputs[i]);
    else
      define(node.outputs[i], outputs[i]);
  }
}

std::vector<TensorId> OnnxImporter::import_subgraph(const OnnxGraph& graph,
                                                    const std::string& prefix) {
  chose_branch_ = true;
  const Nested nested(*this, {});
  for (const OnnxTensor& tensor : graph.initializers)
    define(tensor.name, initializer(tensor, false));
  const size_t problems = problems_.size();
  import_nodes(graph.nodes, prefix.substr(0, kMaxName));
  std::vector<TensorId> outputs;
  if (problems_.size() == problems)
    for (const OnnxValue& output : graph.outputs) outputs.push_back(lookup(output.name));
  if (problems_.size() != problems) {
    // The branch's own problems are listed; this one stands for the node that holds it.
    fail_unsupported("its branch cannot be imported");
  }
  return outputs;
}

void OnnxImporter::check_declared_type(const OnnxValue& declared, TensorId id) {
  if (scopes_.size() > 1 || declared.dtype == DType::None) return;
  const TensorType& found = builder_.type(id);
  std::string expected;
  bool contradicts = declared.dtype != found.dtype;
  if (declared.has_shape) {
    contradicts = contradicts || declared.dimensions.size() != found.shape.size();
    for (size_t i = 0; !contradicts && i < found.shape.size(); ++i)
      contradicts = declared.dimensions[i].size && *declared.dimensions[i].size != found.shape[i];
    for (const OnnxDimension& dimension : declared.dimensions)
      expected += fmt::format("{}{}", expected.empty() ? "" : ", ",
                              dimension.size             ? std::to_string(*dimension.size)
                              : dimension.symbol.empty() ? "?"
                                                         : dimension.symbol);
  }
  if (!contradicts) return;
  const std::string message =
      fmt::format("value \"{}\" is declared as {}[{}], its operands make it {}", declared.name,
                  dtype_name(declared.dtype), expected, format_type(found));
  // Exporters write the sizes they traced with even where a dimension is open, and those of the
  // branch that is not taken: a squeeze of an axis whose size they do not know has two.
  if (dimensions_.found_open() || chose_branch_)
    note_once("the file's declared sizes do not all hold for the sizes chosen; ignored");
  else
    fail_input("{}", message);
}

}  // namespace windlass
