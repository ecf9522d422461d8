#include "windlass/graph/builder.h"

#include <algorithm>
#include <map>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/graph/loss_spec.h"
#include "windlass/graph/op_info.h"
#include "windlass/graph/reference/interpret.h"

namespace windlass {
namespace {

void check_type(const TensorType& type) {
  if (type.shape.size() > kMaxRank)
    fail_input("a tensor of {} dimensions, expected at most {}", type.shape.size(), kMaxRank);
  byte_size(type);  // throws on sizes that overflow
}

// Constants of the graph as operands. Their values are lent, since copying takes longer than most
// evaluations, and given back at the end.
class BorrowedOperands {
 public:
  BorrowedOperands(Graph& graph, const std::vector<TensorId>& ids) : graph_(graph) {
    for (TensorId id : ids) {
      // An operand may be there twice.
      const auto index = static_cast<size_t>(graph[id].constant);
      const auto known = lent_.find(index);
      if (known != lent_.end()) {
        pointers_.push_back(&known->second);
        continue;
      }
      Array array(graph[id].type.shape, std::move(graph.constants[index].values));
      pointers_.push_back(&lent_.emplace(index, std::move(array)).first->second);
    }
  }
  ~BorrowedOperands() {
    for (auto& [index, array] : lent_) graph_.constants[index].values = std::move(array.values);
  }
  BorrowedOperands(const BorrowedOperands&) = delete;
  BorrowedOperands& operator=(const BorrowedOperands&) = delete;

  const std::vector<const Array*>& arrays() const { return pointers_; }

 private:
  Graph& graph_;
  std::map<size_t, Array> lent_;  // by constant
  std::vector<const Array*> pointers_;
};

}  // namespace

GraphBuilder::GraphBuilder(std::string name, BuilderOptions options) : options_(options) {
  graph_.name = std::move(name);
}

TensorId GraphBuilder::add_tensor(Tensor tensor) {
  check_type(tensor.type);
  ensure(graph_.tensors.size() < INT32_MAX, "too many tensors");
  graph_.tensors.push_back(std::move(tensor));
  return TensorId(graph_.tensors.size() - 1);
}

TensorId GraphBuilder::input(std::string name, TensorType type) {
  const TensorId id = add_tensor({.name = std::move(name),
                                  .type = std::move(type),
                                  .role = TensorRole::Input,
                                  .producer = {}});
  graph_.inputs.push_back(id);
  return id;
}

TensorId GraphBuilder::label(std::string name, TensorType type) {
  return add_tensor({.name = std::move(name),
                     .type = std::move(type),
                     .role = TensorRole::Label,
                     .producer = {}});
}

TensorId GraphBuilder::weight(std::string name, TensorType type, bool trainable) {
  return add_tensor({.name = std::move(name),
                     .type = std::move(type),
                     .role = TensorRole::Weight,
                     .producer = {},
                     .trainable = trainable});
}

TensorId GraphBuilder::buffer(std::string name, TensorType type) {
  return add_tensor({.name = std::move(name),
                     .type = std::move(type),
                     .role = TensorRole::Buffer,
                     .producer = {}});
}

TensorId GraphBuilder::constant(std::string name, TensorType type, std::vector<double> values) {
  ensure(static_cast<int64_t>(values.size()) == element_count(type.shape),
         "constant with the wrong number of values");
  graph_.constants.push_back({std::move(values)});
  return add_tensor({.name = std::move(name),
                     .type = std::move(type),
                     .role = TensorRole::Constant,
                     .producer = {},
                     .constant = static_cast<int32_t>(graph_.constants.size()) - 1});
}

TensorId GraphBuilder::scalar(double value, DType dtype) {
  return constant(fmt::format("{}", value), {dtype, {}}, {value});
}

const std::vector<double>* GraphBuilder::value(TensorId id) const {
  const int32_t index = graph_[id].constant;
  return index < 0 ? nullptr : &graph_.constants[static_cast<size_t>(index)].values;
}

std::vector<TensorId> GraphBuilder::add(OpKind kind, Attrs attrs, std::vector<TensorId> inputs,
                                        std::string name) {
  const OpInfo& info = op_info(kind);
  Op op{.kind = kind,
        .attrs = std::move(attrs),
        .inputs = std::move(inputs),
        .name = std::move(name)};
  while (!op.inputs.empty() && !op.inputs.back().valid()) op.inputs.pop_back();

  std::vector<TensorType> types;
  try {
    if (op.inputs.size() < info.min_inputs || op.inputs.size() > info.max_inputs)
      fail_input("has {} inputs, expected {} to {}", op.inputs.size(), info.min_inputs,
                 info.max_inputs);
    for (size_t i = 0; i < info.min_inputs; ++i)
      if (!op.inputs[i].valid()) fail_input("input {} is missing", i);
    types = info.infer(signature_of(graph_, op));
    for (const TensorType& type : types) check_type(type);
  } catch (const Error& error) {
    throw error.within(fmt::format("{} \"{}\"", info.name, op.name));
  }

  std::vector<TensorId> outputs;
  const auto output_name = [&](size_t k) {
    return types.size() == 1 ? op.name : fmt::format("{}.{}", op.name, k);
  };
  if (can_evaluate(op, types)) {
    const bool all_empty = std::all_of(types.begin(), types.end(), [](const TensorType& type) {
      return element_count(type.shape) == 0;
    });
    if (all_empty) {
      for (size_t k = 0; k < types.size(); ++k)
        outputs.push_back(constant(output_name(k), types[k], {}));
      return outputs;
    }
    Signature signature = signature_of(graph_, op);
    signature.outputs = types;
    ForwardResult result;
    try {
      const BorrowedOperands operands(graph_, op.inputs);
      result = interpret_forward(signature, operands.arrays());
    } catch (const Error& error) {
      throw error.within(fmt::format("{} \"{}\"", info.name, op.name));
    }
    for (size_t k = 0; k < types.size(); ++k)
      outputs.push_back(constant(output_name(k), types[k], std::move(result.outputs[k].values)));
    return outputs;
  }
  const OpId id(graph_.ops.size());
  for (size_t k = 0; k < types.size(); ++k)
    outputs.push_back(add_tensor({.name = output_name(k), .type = types[k], .producer = id}));
  op.outputs = outputs;
  graph_.ops.push_back(std::move(op));
  return outputs;
}

bool GraphBuilder::spend(int64_t elements, double steps) {
  if (elements > options_.fold_total || steps > options_.fold_work) return false;
  options_.fold_total -= elements;
  options_.fold_work -= steps;
  return true;
}

bool GraphBuilder::can_evaluate(const Op& op, const std::vector<TensorType>& types) {
  const bool known = can_fold(op.kind) && !op.inputs.empty() &&
                     std::all_of(op.inputs.begin(), op.inputs.end(),
                                 [&](TensorId id) { return id.valid() && value(id) != nullptr; });
  if (!known) return false;
  Signature signature = signature_of(graph_, op);
  signature.outputs = types;
  const Arithmetic arithmetic = op_info(op.kind).arithmetic(signature);
  double steps = arithmetic.multiply_adds + arithmetic.pointwise;
  int64_t results = 0;
  for (const TensorType& input : signature.inputs)
    steps += static_cast<double>(element_count(input.shape));
  for (const TensorType& type : types) {
    const int64_t count = element_count(type.shape);
    if (count > options_.fold_limit) return false;
    results += count;
    steps += static_cast<double>(count);
  }
  return spend(results, steps);
}

TensorId GraphBuilder::op(OpKind kind, Attrs attrs, std::vector<TensorId> inputs,
                          std::string name) {
  return add(kind, std::move(attrs), std::move(inputs), std::move(name)).front();
}

TensorId GraphBuilder::attach_cross_entropy(TensorId prediction) {
  return graph_.loss = attach_loss(*this, prediction, LossKind::CrossEntropy);
}

TensorId GraphBuilder::attach_mean_squared_error(TensorId prediction) {
  return graph_.loss = attach_loss(*this, prediction, LossKind::MeanSquaredError);
}

Graph GraphBuilder::finish() {
  Graph graph = std::move(graph_);
  graph_ = {};
  remove_dead(graph);
  check_graph(graph);
  return graph;
}

}  // namespace windlass
