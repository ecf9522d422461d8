#include "windlass/export/torch_modules.h"

#include <algorithm>
#include <map>
#include <set>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/export/torch_names.h"
#include "windlass/export/torch_script.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/blocks.h"
#include "windlass/model/initialise.h"

namespace windlass {
namespace {

// A run of ops that is one module, and what it exchanges with the others.
struct Piece {
  size_t first = 0, last = 0;
  std::vector<TensorId> inputs, outputs, weights;  // weights: of its own
  MemoryAction action = MemoryAction::Keep;
  std::string code;  // of its class without the name
};

// The network for one micro-batch of a replica. Replicas exchange the statistics of batch norm
// themselves, so that it does not keep them from sharing the batch.
Graph part_of_batch(const Graph& network, const TargetSettings& settings) {
  if (settings.batch == settings.micro) return network;
  Graph graph = network;
  std::vector<size_t> norms;
  for (size_t i = 0; i < graph.ops.size() && settings.accumulation == 1; ++i)
    if (graph.ops[i].kind == OpKind::BatchNorm)
      if (auto& attrs = std::get<BatchNormAttrs>(graph.ops[i].attrs); attrs.training) {
        attrs.training = false;
        norms.push_back(i);
      }
  graph = cut_batch(graph, find_batch(graph), settings.batch / settings.micro);
  for (size_t i : norms) std::get<BatchNormAttrs>(graph.ops[i].attrs).training = true;
  return graph;
}

class ModuleWriter {
 public:
  ModuleWriter(const ExportSubject& subject, const TargetSettings& settings)
      : subject_(subject),
        graph_(part_of_batch(subject.network, settings)),
        initial_(initial_values(graph_)) {}

  TorchModules run() {
    make_pieces();
    for (Piece& piece : pieces_) {
      exchange(piece);
      piece.action = block_action(subject_, piece.first, piece.last);
    }
    for (Piece& piece : pieces_) piece.code = class_code(piece);
    TorchModules made;
    made.code = classes();  // gives them the names that the model uses
    made.code += model();
    for (TensorId id : data()) made.inputs.push_back(graph_[id].name);
    return made;
  }

 private:
  void make_pieces() {
    readers_.resize(graph_.tensors.size());
    for (const Block& block : find_blocks(graph_))
      for (int64_t r = 0; r < block.repetitions; ++r) {
        const size_t first = block.first_op + static_cast<size_t>(r) * block.ops;
        pieces_.push_back({first, first + block.ops, {}, {}, {}, {}, {}});
      }
    for (size_t p = 0; p < pieces_.size(); ++p)
      for (size_t i = pieces_[p].first; i < pieces_[p].last; ++i)
        for (TensorId id : graph_.ops[i].inputs)
          if (id.valid()) readers_[id.index()].insert(p);
  }

  bool parameter(TensorId id) const {
    const TensorRole role = graph_[id].role;
    return role == TensorRole::Weight || role == TensorRole::Buffer;
  }

  void exchange(Piece& piece) {
    std::set<TensorId> seen, made;
    for (size_t i = piece.first; i < piece.last; ++i) {
      for (TensorId id : graph_.ops[i].inputs) {
        if (!id.valid() || made.contains(id) || !seen.insert(id).second) continue;
        if (graph_[id].constant >= 0) continue;
        if (parameter(id) && readers_[id.index()].size() == 1)
          piece.weights.push_back(id);
        else
          piece.inputs.push_back(id);
      }
      for (TensorId id : graph_.ops[i].outputs) {
        if (!id.valid()) continue;
        made.insert(id);
        const auto& readers = readers_[id.index()];
        const bool outside =
            std::ranges::any_of(readers, [&](size_t p) { return pieces_[p].first != piece.first; });
        if (outside || id == graph_.loss) piece.outputs.push_back(id);
      }
    }
  }

  // Registered once, so that it moves to the device with the module.
  std::string constant(TensorId id) const {
    const Tensor& tensor = graph_[id];
    const DType dtype = tensor.type.dtype;
    const auto& values = graph_.constants[static_cast<size_t>(tensor.constant)].values;
    const std::string shape = shape_text(tensor.type.shape);
    const bool alike = std::ranges::all_of(values, [&](double v) { return v == values[0]; });
    if (alike && !values.empty())
      return fmt::format("torch.full({}, {}, dtype={})", shape, torch_number(values[0], dtype),
                         torch_dtype(dtype));
    constexpr size_t kMost = 4096;
    if (values.size() > kMost)
      fail_unsupported(
          "--to pytorch: constant \"{}\" has {} elements, more than a script should "
          "have",
          tensor.name, values.size());
    std::string text;
    for (double value : values) text += (text.empty() ? "" : ", ") + torch_number(value, dtype);
    return fmt::format("torch.tensor([{}], dtype={}).reshape({})", text, torch_dtype(dtype), shape);
  }

  // A weight or buffer as a member with its first values.
  std::string declaration(TensorId id, const std::string& name) const {
    const Tensor& tensor = graph_[id];
    const std::string shape = shape_text(tensor.type.shape);
    const std::string_view dtype = torch_dtype(tensor.type.dtype);
    const InitialValue& first = initial_.at(id);
    std::string values;
    if (first.kind == InitialValue::Kind::Constant)
      values = fmt::format("torch.full({}, {}, dtype={})", shape,
                           torch_number(first.a, tensor.type.dtype), dtype);
    else
      values = fmt::format("torch.empty({}, dtype={}).{}_({:.6g}, {:.6g})", shape, dtype,
                           first.kind == InitialValue::Kind::Uniform ? "uniform" : "normal",
                           first.a, first.b);
    if (tensor.role == TensorRole::Buffer)
      return fmt::format("        self.register_buffer(\"{}\", {})\n", name, values);
    return fmt::format("        self.{} = nn.Parameter({}{})\n", name, values,
                       tensor.trainable ? "" : ", requires_grad=False");
  }

  std::string class_code(const Piece& piece) const {
    Names attributes, variables;
    std::map<TensorId, std::string> known;
    std::string made =
        "    def __init__(self, names):\n        super().__init__()\n        "
        "self.names = names\n";
    for (TensorId id : piece.weights) {
      const std::string& full = graph_[id].name;
      const size_t cut = full.find_last_of('.');
      const std::string short_name =
          cut == std::string::npos ? full : last_part(full.substr(0, cut)) + "_" + last_part(full);
      const std::string name = attributes.fresh("p_" + identifier(short_name));
      known[id] = "self." + name;
      made += declaration(id, name);
    }
    std::string own;
    for (TensorId id : piece.weights)
      own += (own.empty() ? "\"" : ", \"") + known.at(id).substr(5) + "\"";
    made += fmt::format("        self.own = [{}]\n", own);
    for (size_t i = piece.first; i < piece.last; ++i)
      for (TensorId id : graph_.ops[i].inputs)
        if (id.valid() && graph_[id].constant >= 0 && !known.contains(id)) {
          const std::string name = attributes.fresh("c_" + identifier(last_part(graph_[id].name)));
          known[id] = "self." + name;
          made += fmt::format("        self.register_buffer(\"{}\", {}, persistent=False)\n", name,
                              constant(id));
        }
    std::string arguments;
    for (TensorId id : piece.inputs) {
      known[id] = variables.fresh(identifier(last_part(graph_[id].name)));
      arguments += ", " + known[id];
    }
    made += fmt::format("\n    def forward(self{}):\n", arguments);
    for (size_t i = piece.first; i < piece.last; ++i) {
      const Op& op = graph_.ops[i];
      std::vector<std::string> operands;
      for (TensorId id : op.inputs) operands.push_back(id.valid() ? known.at(id) : "None");
      const std::string value = torch_expression(graph_, op, operands);
      std::string results;
      for (TensorId id : op.outputs) {
        const std::string name =
            id.valid() ? variables.fresh(identifier(last_part(op.name))) : std::string("_");
        if (id.valid()) known[id] = name;
        results += (results.empty() ? "" : ", ") + name;
      }
      made += fmt::format("        {} = {}\n", results, value);
    }
    std::string returned;
    for (TensorId id : piece.outputs) returned += (returned.empty() ? "" : ", ") + known.at(id);
    return made + fmt::format("        return {}\n", returned);
  }

  std::string classes() {
    std::string text;
    for (Piece& piece : pieces_) {
      const auto [entry, fresh] =
          classes_.try_emplace(piece.code, fmt::format("Part{}", classes_.size() + 1));
      if (fresh) text += fmt::format("\n\nclass {}(nn.Module):\n{}", entry->second, piece.code);
    }
    return text;
  }

  std::string model() {
    const bool moved = std::ranges::any_of(
        pieces_, [](const Piece& piece) { return piece.action == MemoryAction::Offload; });
    std::string made =
        "\n\nclass Model(nn.Module):\n    def __init__(self):\n        "
        "super().__init__()\n";
    std::map<TensorId, std::string> known;
    Names variables;
    std::string shared = "{";
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      if (!parameter(TensorId(t)) || readers_[t].size() < 2) continue;
      const Tensor& tensor = graph_.tensors[t];
      const std::string name = variables.fresh("shared_" + identifier(last_part(tensor.name)));
      known[TensorId(t)] = "self." + name;
      made += declaration(TensorId(t), name);
      shared += fmt::format("{}: self.{}, ", python_text(tensor.name), name);
    }
    made +=
        "        # What becomes of what a part saves for the backward pass: keep, recompute, "
        "offload.\n        self.parts = nn.ModuleList()\n        self.actions = []\n";
    for (const Piece& piece : pieces_) {
      std::string names;
      for (TensorId id : piece.weights)
        names += (names.empty() ? "" : ", ") + python_text(graph_[id].name);
      made += fmt::format("        self.add({}([{}]), \"{}\")\n", classes_.at(piece.code), names,
                          action_name(piece.action));
    }
    const std::string offload =
        !moved ? ""
               : "        if action == \"offload\":\n"
                 "            with saved_on_host([*part.parameters(), *inputs]):\n"
                 "                return part(*inputs)\n";
    made += fmt::format(
        "\n    def add(self, part, action):\n        self.parts.append(part)\n        "
        "self.actions.append(action)\n\n"
        "    def by_name(self):\n        named = {}}}\n        for part in self.parts:\n"
        "            named.update((name, getattr(part, own)) for name, own in zip(part.names, "
        "part.own))\n"
        "        return named\n\n"
        "    def run(self, number, *inputs):\n        part, action = self.parts[number], "
        "self.actions[number]\n"
        "        if action == \"recompute\":\n"
        "            return checkpoint(part, *inputs, use_reentrant=False)\n"
        "{}        return part(*inputs)\n\n",
        shared, offload);
    std::string arguments;
    for (TensorId id : data()) {
      known[id] = variables.fresh(identifier(last_part(graph_[id].name)));
      arguments += ", " + known[id];
    }
    made += fmt::format("    def forward(self{}):\n", arguments);
    for (size_t p = 0; p < pieces_.size(); ++p) {
      std::string inputs, outputs;
      for (TensorId id : pieces_[p].inputs) inputs += ", " + known.at(id);
      for (TensorId id : pieces_[p].outputs) {
        known[id] = variables.fresh(identifier("x_" + last_part(graph_[id].name)));
        outputs += (outputs.empty() ? "" : ", ") + known[id];
      }
      made +=
          fmt::format("        {} = self.run({}{})\n", outputs.empty() ? "_" : outputs, p, inputs);
    }
    return made + fmt::format("        return {}\n", known.at(graph_.loss));
  }

  std::vector<TensorId> data() const {
    std::vector<TensorId> found;
    for (size_t t = 0; t < graph_.tensors.size(); ++t) {
      const TensorRole role = graph_.tensors[t].role;
      if ((role == TensorRole::Input || role == TensorRole::Label) && !readers_[t].empty())
        found.push_back(TensorId(t));
    }
    return found;
  }

  const ExportSubject& subject_;
  const Graph graph_;  // of one micro-batch of a replica
  const std::map<TensorId, InitialValue> initial_;
  std::vector<Piece> pieces_;
  std::vector<std::set<size_t>> readers_;       // by tensor: pieces
  std::map<std::string, std::string> classes_;  // by code
};

}  // namespace

TorchModules torch_modules(const ExportSubject& subject, const TargetSettings& settings) {
  return ModuleWriter(subject, settings).run();
}

}  // namespace windlass
