// Import rules: recurrent layers. LSTM and GRU are ops; the plain RNN is unrolled.

#include <algorithm>

#include "windlass/base/error.h"
#include "windlass/model/onnx/importer.h"

namespace windlass {
namespace {

// Unrolled layers are not longer than this.
constexpr int64_t kMaxSteps = 1024;

TensorId swapped(NodeContext& c, TensorId x, std::string_view part) {
  if (!x.valid()) return x;
  Ints order = {1, 0};
  for (size_t i = 2; i < c.builder().shape(x).size(); ++i) order.push_back(static_cast<int64_t>(i));
  return c.emit(OpKind::Transpose, TransposeAttrs{order}, {x}, part);
}

// Operands with the sequence first: layout 1 has the batch first.
struct Operands {
  TensorId x, state, cell;
  bool batch_first = false;
};

Operands read_operands(NodeContext& c, bool has_cell) {
  if (c.rank(0) != 3) fail_input("input has shape {}", format_shape(c.shape(0)));
  Operands operands{c.required(0), c.in(5), has_cell ? c.in(6) : TensorId()};
  operands.batch_first = c.int_attr("layout", 0) != 0;
  if (operands.batch_first) {
    operands.x = swapped(c, operands.x, "sequence");
    operands.state = swapped(c, operands.state, "state");
    operands.cell = swapped(c, operands.cell, "cell");
  }
  if (c.has(4)) {
    const auto lengths = c.constant(4);
    const auto steps = static_cast<double>(c.builder().shape(operands.x)[0]);
    const bool full = lengths && std::all_of(lengths->begin(), lengths->end(),
                                             [&](double v) { return v == steps; });
    if (!full) fail_unsupported("sequences of different lengths in a batch: pad them in the model");
  }
  return operands;
}

// The sequence y [steps, directions, batch, hidden] and the last states [directions, batch,
// hidden].
void write_outputs(NodeContext& c, const Operands& operands, const std::vector<TensorId>& outputs) {
  for (size_t i = 0; i < outputs.size(); ++i) {
    if (!c.wants(i)) continue;
    TensorId y = outputs[i];
    if (operands.batch_first && i == 0)
      y = c.emit(OpKind::Transpose, TransposeAttrs{{2, 0, 1, 3}}, {y}, "batch");
    else if (operands.batch_first)
      y = swapped(c, y, "last" + std::to_string(i));
    c.out(i, y);
  }
}

void recurrent(NodeContext& c, OpKind kind) {
  const std::string direction = c.string_attr("direction", "forward");
  RecurrentAttrs attrs{.hidden = c.int_attr("hidden_size", 0),
                       .bidirectional = direction == "bidirectional",
                       .reverse = direction == "reverse",
                       .linear_before_reset = c.int_attr("linear_before_reset", 0) != 0,
                       .gates = GateOrder::Onnx};
  if (c.has_attr("activations") || c.has_attr("clip") || c.int_attr("input_forget", 0) != 0) {
    const auto* given = c.attr("activations");
    static const std::vector<std::string> kLstm = {"Sigmoid", "Tanh", "Tanh"},
                                          kGru = {"Sigmoid", "Tanh"};
    const auto& usual = kind == OpKind::Lstm ? kLstm : kGru;
    bool standard = given && !c.has_attr("clip") && c.int_attr("input_forget", 0) == 0;
    for (size_t i = 0; standard && i < given->strings.size(); ++i)
      standard = given->strings[i] == usual[i % usual.size()];
    if (!standard)
      fail_unsupported("a recurrent layer with other activations, clipping or coupled gates");
  }
  if (c.has(7)) fail_unsupported("peephole connections");
  const Operands operands = read_operands(c, kind == OpKind::Lstm);
  std::vector<TensorId> inputs = {operands.x, c.in(1), c.in(2), c.in(3), operands.state};
  if (kind == OpKind::Lstm) inputs.push_back(operands.cell);
  write_outputs(c, operands, c.emit_all(kind, attrs, inputs));
}
void lstm(NodeContext& c) { recurrent(c, OpKind::Lstm); }
void gru(NodeContext& c) { recurrent(c, OpKind::Gru); }

// Part `index` of a tensor's first axis, without that axis.
TensorId part_of(NodeContext& c, TensorId x, int64_t index, const std::string& name) {
  const Shape shape = c.builder().shape(x);
  const Shape rest(shape.begin() + 1, shape.end());
  if (shape[0] == 1) return c.reshape(x, rest, name);
  SliceAttrs attrs{Ints(shape.size(), 0), Ints(shape.size(), 1), shape};
  attrs.start[0] = index;
  attrs.size[0] = 1;
  return c.reshape(c.emit(OpKind::Slice, attrs, {x}, name + "_slice"), rest, name);
}

UnaryFn cell_function(NodeContext& c, size_t direction) {
  const auto* given = c.attr("activations");
  const std::string name =
      given && direction < given->strings.size() ? given->strings[direction] : "Tanh";
  if (name == "Tanh") return UnaryFn::Tanh;
  if (name == "Relu") return UnaryFn::Relu;
  if (name == "Sigmoid") return UnaryFn::Sigmoid;
  fail_unsupported("the activation {}; use Tanh, Relu or Sigmoid", name);
}

// One direction of h = f(x W' + h R' + b): all products with x at once, then step by step. Returns
// the states [batch, hidden] in the order of the sequence.
std::vector<TensorId> unroll(NodeContext& c, const Operands& operands, int64_t direction,
                             bool reverse) {
  const std::string name = "d" + std::to_string(direction);
  const UnaryFn function = cell_function(c, static_cast<size_t>(direction));
  const int64_t hidden = c.shape(2)[2];
  if (c.has(3) && c.shape(3) != Shape{c.shape(2)[0], 2 * hidden})
    fail_input("biases are {}, expected {} for each direction", format_shape(c.shape(3)),
               2 * hidden);
  const TensorId w = part_of(c, c.required(1), direction, name + ".w");
  const TensorId r = part_of(c, c.required(2), direction, name + ".r");
  TensorId x = c.emit(OpKind::MatMul, MatMulAttrs{false, true}, {operands.x, w}, name + ".inputs");
  if (c.has(3)) {
    // Of x and of h, [1, hidden] each.
    const auto half = [&](int64_t first, const std::string& part) {
      return c.emit(OpKind::Slice, SliceAttrs{{direction, first}, {1, 1}, {1, hidden}}, {c.in(3)},
                    name + part);
    };
    const TensorId bias =
        c.binary(BinaryFn::Add, half(0, ".b_x"), half(hidden, ".b_h"), name + ".bias");
    x = c.binary(BinaryFn::Add, x, bias, name + ".biased");
  }
  const int64_t steps = c.builder().shape(x)[0];
  TensorId h =
      operands.state.valid() ? part_of(c, operands.state, direction, name + ".first") : TensorId();
  std::vector<TensorId> states(static_cast<size_t>(steps));
  for (int64_t i = 0; i < steps; ++i) {
    const int64_t t = reverse ? steps - 1 - i : i;
    const std::string step = name + "." + std::to_string(t);
    TensorId sum = part_of(c, x, t, step + ".x");
    if (h.valid()) {
      const TensorId past =
          c.emit(OpKind::MatMul, MatMulAttrs{false, true}, {h, r}, step + ".past");
      sum = c.binary(BinaryFn::Add, sum, past, step + ".sum");
    }
    h = c.unary(function, sum, 0, 0, step);
    states[static_cast<size_t>(t)] = h;
  }
  return states;
}

void rnn(NodeContext& c) {
  if (c.has_attr("clip")) fail_unsupported("a recurrent layer with clipping");
  const Operands operands = read_operands(c, false);
  const Shape x = c.builder().shape(operands.x);
  if (c.rank(1) != 3 || c.rank(2) != 3) fail_input("weights need three dimensions");
  if (x[0] < 1 || x[0] > kMaxSteps)
    fail_unsupported("a plain RNN over {} steps, expected 1 to {}", x[0], kMaxSteps);
  const std::string direction = c.string_attr("direction", "forward");
  const int64_t directions = direction == "bidirectional" ? 2 : 1;
  if (c.shape(1)[0] != directions || c.shape(2)[0] != directions)
    fail_input("weights for {} directions, expected {}", c.shape(1)[0], directions);
  const int64_t hidden = c.shape(2)[2];
  std::vector<TensorId> sequences, last;
  for (int64_t d = 0; d < directions; ++d) {
    const bool reverse = direction == "reverse" || d == 1;
    const auto states = unroll(c, operands, d, reverse);
    std::vector<TensorId> rows;
    const std::string name = "d" + std::to_string(d);
    for (size_t t = 0; t < states.size(); ++t)
      rows.push_back(c.reshape(states[t], {1, 1, x[1], hidden}, fmt::format("{}.{}.y", name, t)));
    sequences.push_back(rows.size() == 1 ? rows[0]
                                         : c.emit(OpKind::Concat, AxisAttrs{0}, rows, name + ".y"));
    last.push_back(
        c.reshape(reverse ? states.front() : states.back(), {1, x[1], hidden}, name + ".last"));
  }
  const auto joined = [&](const std::vector<TensorId>& parts, int64_t axis, std::string_view name) {
    return parts.size() == 1 ? parts[0] : c.emit(OpKind::Concat, AxisAttrs{axis}, parts, name);
  };
  write_outputs(c, operands, {joined(sequences, 1, "y"), joined(last, 0, "last")});
}

}  // namespace

void add_recurrent_rules(ImportTable& table) {
  const std::pair<std::string_view, ImportRule> rules[] = {
      {"GRU", gru}, {"LSTM", lstm}, {"RNN", rnn}};
  table.insert(std::begin(rules), std::end(rules));
}

}  // namespace windlass
