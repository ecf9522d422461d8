// Turning ONNX nodes into ops: the walk over the nodes, and what a rule of the import table sees.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "windlass/graph/builder.h"
#include "windlass/model/onnx/dimensions.h"
#include "windlass/model/onnx/onnx_file.h"
#include "windlass/model/onnx/parameters.h"
#include "windlass/model/onnx/restore.h"

namespace windlass {

class OnnxImporter;

// One node as a rule of the import table sees it. Inputs and outputs are addressed by position.
class NodeContext {
 public:
  NodeContext(OnnxImporter& importer, const OnnxNode& node, std::string name)
      : importer_(importer), node_(node), name_(std::move(name)) {}

  const OnnxNode& node() const { return node_; }
  const std::string& name() const { return name_; }
  GraphBuilder& builder();
  int64_t opset() const;

  size_t input_count() const { return node_.inputs.size(); }
  bool has(size_t i) const { return i < node_.inputs.size() && !node_.inputs[i].empty(); }
  // The tensor; an absent optional input is an invalid id.
  TensorId in(size_t i);
  // The tensor, or Error{Input} if it is absent.
  TensorId required(size_t i);
  // Copies: looking up an input or emitting an op may move the graph's tensors.
  TensorType type(size_t i);
  Shape shape(size_t i) { return type(i).shape; }
  size_t rank(size_t i) { return shape(i).size(); }
  // Value of an input if it is known: a constant, or an initializer (which is then read).
  std::optional<std::vector<double>> constant(size_t i);
  // The same, or Error{Unsupported} saying that the value of `what` depends on the data.
  std::vector<double> required_constant(size_t i, std::string_view what);
  Ints required_ints(size_t i, std::string_view what);
  // Name of the initializer or graph value behind an input.
  const std::string& input_name(size_t i) const { return node_.inputs[i]; }

  bool has_attr(const std::string& name) const { return node_.attributes.contains(name); }
  int64_t int_attr(const std::string& name, int64_t otherwise) const;
  double float_attr(const std::string& name, double otherwise) const;
  std::string string_attr(const std::string& name, std::string otherwise) const;
  Ints ints_attr(const std::string& name, Ints otherwise) const;
  const OnnxAttribute* attr(const std::string& name) const;

  // Appends an op named after the node (and `part`, if the node becomes several ops).
  TensorId emit(OpKind kind, Attrs attrs, std::vector<TensorId> inputs, std::string_view part = "");
  std::vector<TensorId> emit_all(OpKind kind, Attrs attrs, std::vector<TensorId> inputs,
                                 std::string_view part = "");
  TensorId unary(UnaryFn fn, TensorId x, double alpha = 0, double beta = 0,
                 std::string_view part = "");
  TensorId binary(BinaryFn fn, TensorId a, TensorId b, std::string_view part = "");
  TensorId reshape(TensorId x, Shape shape, std::string_view part = "");
  TensorId constant_like(TensorType type, std::vector<double> values);
  // A constant whose element i is value_at(i). What it costs is taken from what the file may cost
  // before the first element is made.
  template <typename ValueAt>
  TensorId make_constant(TensorType type, ValueAt value_at) {
    const int64_t count = element_count(type.shape);
    claim(count);
    std::vector<double> values(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) values[static_cast<size_t>(i)] = value_at(i);
    return builder().constant(name_, std::move(type), std::move(values));
  }
  // Takes the making of `count` known values, or work on as many, from what the file may cost.
  // Throw Error{Unsupported} if too little is left.
  void claim(int64_t count);
  void claim_work(int64_t count);

  size_t output_count() const { return node_.outputs.size(); }
  bool wants(size_t i) const { return i < node_.outputs.size() && !node_.outputs[i].empty(); }
  void out(size_t i, TensorId id);

  OnnxImporter& importer() { return importer_; }

 private:
  std::string part_name(std::string_view part) const;

  OnnxImporter& importer_;
  const OnnxNode& node_;
  std::string name_;
};

using ImportRule = void (*)(NodeContext&);

// The import table by ONNX op type, default domain. One entry per operator, in the file of its
// kind.
using ImportTable = std::map<std::string_view, ImportRule>;
void add_math_rules(ImportTable& table);
void add_product_rules(ImportTable& table);
void add_reduction_rules(ImportTable& table);
void add_window_rules(ImportTable& table);
void add_resize_rules(ImportTable& table);
void add_network_rules(ImportTable& table);
void add_recurrent_rules(ImportTable& table);
void add_loss_rules(ImportTable& table);
void add_attention_rules(ImportTable& table);
void add_layout_rules(ImportTable& table);
void add_indexing_rules(ImportTable& table);
void add_constant_rules(ImportTable& table);
const ImportTable& import_table();

// Walks a file's nodes and builds the graph. Use once.
class OnnxImporter {
 public:
  OnnxImporter(const OnnxFile& file, const ModelOptions& options);

  // Builds graph, outputs and loss; the notes say what was assumed.
  Graph run();

  GraphBuilder& builder() { return builder_; }
  int64_t opset() const { return file_.opset; }
  std::vector<std::string>& notes() { return notes_; }
  void note_once(const std::string& note);

  // Scope: names of values to tensors. Functions and subgraphs have scopes of their own.
  TensorId lookup(const std::string& name);
  void define(const std::string& name, TensorId id);
  // Value of a constant or of an initializer that is not too large to be looked at; null otherwise.
  const std::vector<double>* value_of(TensorId id);
  // Whether PyTorch wrote the file, and nothing is done with a value but to add it.
  bool is_only_added_by_pytorch(const std::string& value);

  // A tensor held by an attribute, as a constant; and just its elements.
  TensorId constant_tensor(const OnnxTensor& tensor, const std::string& name);
  std::vector<double> tensor_values(const OnnxTensor& tensor) const {
    return read_values(file_, tensor);
  }

  // Imports the nodes of a branch in the current scope and returns its outputs.
  std::vector<TensorId> import_subgraph(const OnnxGraph& graph, const std::string& prefix);

  // An initializer that turned out to be no parameter (running statistics and the like).
  void make_buffer(TensorId id);
  // Whether a tensor is an initializer that carries no name of the user's model.
  bool is_anonymous_initializer(TensorId id) const;

  // Whether some batch normalisation of the file is exported for training.
  bool has_training_norms() const { return training_norms_; }
  // Whether what the exporter did to parameters is undone (restore.h).
  bool restores() const { return !options_.as_exported; }
  // What an Identity node makes of its input: the tensor itself, or a parameter of its own that the
  // exporter had stored once with others of equal value.
  TensorId alias(const std::string& name, TensorId id);
  // The stored form of a product's right operand: the transpose of a weight if the exporter wrote a
  // transposed copy of it (tied weights), else the operand itself.
  TensorId tied_transpose(TensorId operand, const std::string& name);
  // Whether batch normalisation was folded into a convolution with these operands, to be restored.
  bool restores_batch_norm(TensorId weight, TensorId bias) const;
  // The bias that such a convolution had of its own; invalid if it had none.
  TensorId restore_convolution_bias(TensorId bias, const std::string& name);
  // Batch normalisation after a convolution into which the exporter had folded it.
  TensorId restore_batch_norm(TensorId x, TensorId bias, const std::string& name);
  // Values of weights and buffers that are not in the file as they are, by name.
  const std::map<std::string, std::vector<double>>& restored_values() const {
    return restored_values_;
  }
  // Initializers that lend their value to other names, and those of branches, by that name.
  const std::map<std::string, const OnnxTensor*>& copies() const { return copies_; }

  // An output that the node has but windlass does not compute; reading it is an error.
  void withhold(const std::string& name, std::string reason) {
    withheld_[name] = std::move(reason);
  }

 private:
  struct Scope {
    std::unordered_map<std::string, TensorId> values;
    const OnnxNode* call = nullptr;  // of a function: where attribute references lead
  };
  // One level deeper in functions and branches as long as it lives, whatever is thrown.
  class Nested;

  void report_unsupported_ops();
  void bind_inputs();
  void import_nodes(const std::vector<OnnxNode>& nodes, const std::string& prefix);
  void import_node(const OnnxNode& node, const std::string& prefix);
  void call_function(const OnnxFunction& function, const OnnxNode& node, const std::string& name);
  OnnxNode resolve_references(const OnnxNode& node) const;
  void check_declared_type(const OnnxValue& declared, TensorId id);
  // `once`: imported at most once, so that its size is bounded by that of the file.
  TensorId initializer(const OnnxTensor& tensor, bool once);
  // A name that no other stored tensor has: branches have names of their own, and may be imported
  // several times.
  std::string name_in_branch(const OnnxTensor& tensor);
  bool can_look_at(const OnnxTensor& tensor, bool once);
  void attach_outputs_and_loss();
  bool is_one_number(TensorId output) const;
  // "`what`: a, b and 3 more; `advice`", without those that are frozen.
  void note_trained(std::string_view what, std::vector<std::string> names, std::string_view advice);
  // Whether the model has a loss of its own among its outputs, which is set then.
  bool choose_own_loss(const std::vector<TensorId>& outputs);
  TensorId restore_relative_bias(const OnnxTensor& tensor, const RelativeBias& bias);
  // Elements of a weight of the finished graph, if they are not too many to be looked at.
  std::optional<std::vector<double>> stored_values(const Tensor& tensor);
  // Of a file that PyTorch wrote: its stored tensors as they follow each other, else nothing.
  std::vector<StoredName> names_in_order() const;
  // Whether the user says that a stored tensor is a parameter.
  bool trains(const std::string& name) const;
  TensorId restored_weight(const std::string& name, TensorType type, std::vector<double> values);
  // Whether a value without a name, equal to a stored one, is that once more: the exporter has
  // computed both from one parameter, which a module reads in several places or uses.
  bool is_computed_again(const OnnxTensor& stored, const std::string& name);
  // The weight that a stored value without a name repeats in this way; invalid if there is none.
  TensorId computed_before(const OnnxTensor& tensor);

  const OnnxFile& file_;
  const ModelOptions& options_;
  GraphBuilder builder_;
  DimensionBinder dimensions_;
  std::vector<Scope> scopes_;
  std::unordered_map<std::string, const OnnxTensor*> initializers_;
  std::unordered_map<std::string, const OnnxValue*> declared_;
  std::map<std::pair<std::string, std::string>, const OnnxFunction*> functions_;
  std::unordered_map<TensorId, const OnnxTensor*> source_;  // weights and their initializers
  std::unordered_map<TensorId, std::vector<double>> read_;  // values of weights read so far
  std::map<std::string, std::vector<double>> restored_values_;
  std::map<std::string, const OnnxTensor*> copies_;
  // Values that Add reads and nothing else does, once asked for.
  std::optional<std::set<std::string>> only_added_;
  // Of stored values without names and their aliases: the nodes that read them.
  std::map<std::string_view, std::vector<const OnnxNode*>> readers_;
  std::vector<TensorId> computed_;  // weights without names
  bool folded_biases_ = false;      // see had_folded_biases
  bool for_training_ = false;       // see is_exported_for_training
  bool training_norms_ = false;
  bool chose_branch_ = false;  // declared sizes may be those of the other one
  std::map<std::string, std::string> withheld_;
  std::set<std::string> poisoned_;  // outputs of nodes that could not be imported
  std::vector<std::string> problems_;
  std::vector<std::string> notes_;
  std::vector<Demotion> demoted_by_name_;
  int depth_ = 0;
  int64_t branch_weights_ = 0;  // that got another name
  int64_t nodes_left_ = 0;      // to be imported before the file is refused
};

}  // namespace windlass
