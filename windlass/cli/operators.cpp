// `windlass operators`: which of ONNX's operators are read; docs/operators.md is what it prints.

#include "windlass/model/onnx/operators.h"

#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/cli/cli.h"

namespace windlass {
namespace {

void print_markdown() {
  fmt::print("# Operators of ONNX files\n\n");
  fmt::print(
      "Made by `windlass operators`. Opsets {} to {}; {} operators, all with gradients where there "
      "are any.\nShapes, axes and other lists of whole numbers that operators take as inputs must "
      "be known when the file is read.\n\n",
      kFirstOpset, kLastOpset, onnx_operators().size());
  fmt::print("| operator | limits |\n|---|---|\n");
  for (const OnnxOperator& op : onnx_operators()) fmt::print("| {} | {} |\n", op.name, op.limits);
  fmt::print("\n## Not read\n\nOf the others, those that models are met with:\n\n");
  fmt::print("| operator | instead |\n|---|---|\n");
  for (const RefusedOperator& op : refused_operators())
    fmt::print("| {} | {} |\n", op.name, op.advice);
}

void print_json() {
  nlohmann::ordered_json json = {{"first_opset", kFirstOpset}, {"last_opset", kLastOpset}};
  for (const OnnxOperator& op : onnx_operators())
    json["operators"].push_back({{"name", op.name}, {"limits", op.limits}});
  for (const RefusedOperator& op : refused_operators())
    json["refused"].push_back({{"name", op.name}, {"advice", op.advice}});
  fmt::print("{}\n", json.dump(2));
}

}  // namespace

void add_operators(CLI::App& program) {
  CLI::App* verb =
      program.add_subcommand("operators", "Which operators of ONNX files are read, and how far.");
  auto json = std::make_shared<bool>(false);
  verb->add_flag("--json", *json, "print for programs");
  verb->callback([json] { *json ? print_json() : print_markdown(); });
}

}  // namespace windlass
