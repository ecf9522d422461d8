// `windlass inspect`: what a model is and what training it means, before any plan.

#include <algorithm>
#include <array>
#include <cstdio>
#include <map>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/model_flags.h"
#include "windlass/graph/blocks.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/dump.h"

namespace windlass {
namespace {

struct InspectFlags {
  ModelFlags model;
  bool json = false;
  std::string dump;
  size_t top = 8;
  bool list = false;
};

struct FamilyCount {
  size_t ops = 0;
  double forward_flops = 0;
};

struct Inspection {
  Model model;
  TrainingGraph training;
  TrainingTotals totals;
  std::vector<Block> blocks;
  std::map<std::string, FamilyCount> families;  // of forward ops
  std::vector<TensorId> largest;
};

Inspection inspect(const InspectFlags& flags) {
  Inspection result;
  result.model = load_model(flags.model.model());
  const Graph& graph = result.model.graph;
  try {
    result.training = differentiate(graph, flags.model.request.training);
    result.totals = totals_of(result.training);
  } catch (const Error& error) {
    throw error.within(flags.model.request.source);
  }
  result.blocks = find_blocks(graph);
  for (const Op& op : graph.ops) {
    FamilyCount& count = result.families[std::string(family_name(op_info(op.kind).family))];
    ++count.ops;
    count.forward_flops += arithmetic_of(graph, op).flops().value;
  }
  for (size_t t = 0; t < graph.tensors.size(); ++t) result.largest.push_back(TensorId(t));
  std::stable_sort(result.largest.begin(), result.largest.end(), [&](TensorId a, TensorId b) {
    return byte_size(graph[a].type) > byte_size(graph[b].type);
  });
  result.largest.resize(std::min(result.largest.size(), flags.top));
  return result;
}

// "trained", "frozen" or "buffer"; empty for what is not stored with the model.
std::string_view training_of(const Tensor& tensor) {
  if (tensor.role == TensorRole::Buffer) return "buffer";
  if (tensor.role != TensorRole::Weight) return "";
  return tensor.trainable ? "trained" : "frozen";
}

// What is stored and not trained; of long lists the beginning.
std::string format_not_trained(const Graph& graph) {
  constexpr size_t kMaxNames = 8;
  std::string text;
  size_t count = 0;
  for (const Tensor& tensor : graph.tensors) {
    const std::string_view training = training_of(tensor);
    if (training.empty() || training == "trained") continue;
    if (++count <= kMaxNames)
      text += fmt::format("{}{} ({})", text.empty() ? "" : ", ", tensor.name, training);
  }
  if (count > kMaxNames) text += fmt::format(" and {} more (--list)", count - kMaxNames);
  return text;
}

void print_list(const Graph& graph) {
  Table stored({Align::Left, Align::Left, Align::Left});
  for (const Tensor& tensor : graph.tensors)
    if (const std::string_view training = training_of(tensor); !training.empty())
      stored.add({printable(tensor.name), format_type(tensor.type), std::string(training)});
  fmt::print("{}", stored.text(""));
}

nlohmann::ordered_json to_json(const InspectFlags& flags, const Inspection& result) {
  const Graph& graph = result.model.graph;
  const TrainingTotals& totals = result.totals;
  nlohmann::ordered_json json;
  json["model"] = flags.model.request.source;
  json["source"] = result.model.source;
  json["parameters"] = parameter_count(graph);
  json["forward_flops"] = totals.forward.flops().value;
  json["training_flops"] = totals.forward.flops().value + totals.backward.flops().value;
  json["forward_multiply_adds"] = totals.forward.multiply_adds;
  json["forward_pointwise_ops"] = totals.forward.pointwise;
  json["weight_bytes"] = totals.weights.value;
  json["buffer_bytes"] = totals.buffers.value;
  json["gradient_bytes"] = totals.weight_gradients.value;
  json["optimizer_bytes"] = totals.optimizer.value;
  json["saved_activation_bytes"] = totals.saved.value;
  json["input_bytes"] = totals.inputs.value;
  json["optimizer"] = enum_name(flags.model.request.training.optimizer);
  json["ops"] = graph.ops.size();
  json["training_ops"] = result.training.graph.ops.size();
  auto& families = json["ops_by_family"] = nlohmann::ordered_json::object();
  for (const auto& [name, count] : result.families)
    families[name] = {{"ops", count.ops}, {"forward_flops", count.forward_flops}};
  auto& inputs = json["inputs"] = nlohmann::ordered_json::array();
  for (TensorId id : graph.inputs)
    inputs.push_back({{"name", graph[id].name},
                      {"dtype", dtype_name(graph[id].type.dtype)},
                      {"shape", graph[id].type.shape}});
  auto& blocks = json["blocks"] = nlohmann::ordered_json::array();
  for (const Block& block : result.blocks)
    blocks.push_back(
        {{"first_op", block.first_op}, {"ops", block.ops}, {"repetitions", block.repetitions}});
  auto& largest = json["largest_tensors"] = nlohmann::ordered_json::array();
  for (TensorId id : result.largest)
    largest.push_back({{"name", graph[id].name},
                       {"role", role_name(graph[id].role)},
                       {"dtype", dtype_name(graph[id].type.dtype)},
                       {"shape", graph[id].type.shape},
                       {"bytes", byte_size(graph[id].type).value}});
  auto& stored = json["stored_tensors"] = nlohmann::ordered_json::array();
  for (const Tensor& tensor : graph.tensors)
    if (const std::string_view training = training_of(tensor); !training.empty())
      stored.push_back({{"name", tensor.name},
                        {"dtype", dtype_name(tensor.type.dtype)},
                        {"shape", tensor.type.shape},
                        {"training", training}});
  json["notes"] = result.model.notes;
  return json;
}

std::string format_inputs(const Graph& graph) {
  std::string text;
  for (TensorId id : graph.inputs)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", graph[id].name,
                        format_type(graph[id].type));
  return text;
}

void print_report(const InspectFlags& flags, const Inspection& result) {
  const Graph& graph = result.model.graph;
  const TrainingTotals& totals = result.totals;
  const int64_t parameters = parameter_count(graph);
  const Flops forward = totals.forward.flops();
  const Flops training = Flops(forward.value + totals.backward.flops().value);

  fmt::print("{} ({})\n", flags.model.request.source, result.model.source);
  Table facts({Align::Left, Align::Left});
  facts.add({"inputs", format_inputs(graph)});
  facts.add({"parameters", fmt::format("{} ({})", format_integer(parameters),
                                       format_count(static_cast<double>(parameters)))});
  if (const std::string names = format_not_trained(graph); !names.empty())
    facts.add({"not trained", printable(names)});
  facts.add({"forward", format_flops(forward)});
  facts.add({"training", fmt::format("{} a step", format_flops(training))});
  facts.add({"ops", fmt::format("{} forward, {} in a training step", graph.ops.size(),
                                result.training.graph.ops.size())});
  facts.add({"structure", format_blocks(result.blocks)});
  fmt::print("{}", facts.text("  "));

  fmt::print("\nbytes of a training step, all on one device ({})\n",
             enum_name(flags.model.request.training.optimizer));
  Table memory({Align::Left, Align::Right});
  memory.add({"weights", format_bytes(totals.weights)});
  if (totals.buffers.value > 0) memory.add({"buffers", format_bytes(totals.buffers)});
  memory.add({"gradients", format_bytes(totals.weight_gradients)});
  memory.add({"optimizer", format_bytes(totals.optimizer)});
  memory.add({"activations kept for backward", format_bytes(totals.saved)});
  fmt::print("{}", memory.text("  "));

  fmt::print("\nforward ops by family\n");
  Table families({Align::Left, Align::Right, Align::Right});
  for (const auto& [name, count] : result.families)
    families.add({name, std::to_string(count.ops),
                  count.forward_flops > 0 ? format_flops(Flops(count.forward_flops)) : "-"});
  fmt::print("{}", families.text("  "));

  fmt::print("\nlargest tensors\n");
  Table largest({Align::Left, Align::Left, Align::Left, Align::Right});
  for (TensorId id : result.largest)
    largest.add({graph[id].name, std::string(role_name(graph[id].role)),
                 format_type(graph[id].type), format_bytes(byte_size(graph[id].type))});
  fmt::print("{}", largest.text("  "));
  for (const std::string& note : result.model.notes) fmt::print("note: {}\n", printable(note));
}

void run_inspect(const InspectFlags& flags) {
  const Inspection result = inspect(flags);
  if (flags.dump == "graph")
    fmt::print("{}", dump_graph(result.model.graph));
  else if (flags.dump == "training")
    fmt::print("{}", dump_graph(result.training.graph));
  else if (flags.dump == "dot")
    fmt::print("{}", dump_dot(result.model.graph));
  else if (flags.list)
    print_list(result.model.graph);
  else if (flags.json)
    fmt::print("{}\n", to_json(flags, result)
                           .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  else
    print_report(flags, result);
}

}  // namespace

void add_inspect(CLI::App& program) {
  CLI::App* verb = program.add_subcommand(
      "inspect",
      "What a model is: parameters, flops, bytes that training keeps, repeated structure.");
  auto flags = std::make_shared<InspectFlags>();
  flags->model.add_to(*verb);
  verb->add_flag("--json", flags->json, "print for programs");
  verb->add_option("--dump", flags->dump, "print the graph instead: forward, training, or Graphviz")
      ->check(CLI::IsMember({"graph", "training", "dot"}));
  verb->add_flag("--list", flags->list,
                 "print every stored tensor instead: trained, frozen or buffer");
  verb->add_option("--top", flags->top, "how many of the largest tensors to list")
      ->capture_default_str();
  verb->footer(
      "Flops count 2 for each multiply-add of matrix products, convolutions, attention and\n"
      "recurrent cells; other arithmetic is not counted.\n"
      "Examples:\n"
      "  windlass inspect resnet-50 --batch 32\n"
      "  windlass inspect model.onnx --dim batch=8 --loss mse\n"
      "  windlass inspect llama3-8b --seq 8192 --dtype bf16 --json");
  verb->callback([flags] { run_inspect(*flags); });
}

}  // namespace windlass
