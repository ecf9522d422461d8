#include "windlass/cli/layer_graphs.h"

#include <filesystem>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/mapped_file.h"
#include "windlass/base/stopwatch.h"
#include "windlass/base/table.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/progress.h"
#include "windlass/search/exact/eliminate.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

constexpr std::string_view kPrefix = "pase:";

ordered_json result_json(const LayerGraph& graph, const PaseProblem& problem,
                         const EliminationResult& found, double cost, double seconds) {
  ordered_json json = {{"termination", found.optimal ? "optimal" : "limit"},
                       {"graph", graph.name},
                       {"cost", cost},
                       {"lower_bound", found.bound * problem.unit},
                       {"gap", found.gap()}};
  json["search"] = {{"method", "exact"},
                    {"cost_model", "pase"},
                    {"seconds", seconds},
                    {"largest_table", found.largest_table},
                    {"cells", found.cells},
                    {"cells_computed", found.cells_computed},
                    {"configurations", found.options},
                    {"configurations_left", found.options_left}};
  auto& vertices = json["vertices"] = ordered_json::array();
  for (size_t v = 0; v < graph.layers.size(); ++v)
    vertices.push_back({{"id", v},
                        {"type", layer_kind_name(graph.layers[v].kind)},
                        {"configuration", problem.of(v)[static_cast<size_t>(found.choice[v])]}});
  return json;
}

}  // namespace

std::optional<LayerGraph> find_layer_graph(const std::string& model, int64_t batch, bool insist) {
  if (model.starts_with(kPrefix)) {
    const std::string name = model.substr(kPrefix.size());
    if (auto graph = pase_network(name, batch)) return graph;
    fail_input("\"{}\": there is no such network of PaSE; known: {}", model,
               fmt::join(pase_network_names(), ", "));
  }
  std::error_code error;
  if (!std::filesystem::is_regular_file(model, error)) return std::nullopt;
  const MappedFile file(model);
  const std::string_view text(reinterpret_cast<const char*>(file.bytes().data()),
                              file.bytes().size());
  // Other files are not read as a whole to see what they are.
  constexpr size_t kLargest = size_t{256} << 20;
  const bool looks_so =
      text.size() <= kLargest && (insist || (text.starts_with('{') && is_layer_graph(text)));
  if (!looks_so) return std::nullopt;
  if (batch > 0) fail_input("{}: a graph file has its own batch; leave --batch out", model);
  return layer_graph_from_json(text, model);
}

ExitCode run_plan_graph(const LayerGraph& graph, const PlanGraphFlags& flags) {
  const Stopwatch watch;
  const PaseProblem problem = make_pase_problem(graph, flags.machine);
  EliminationOptions options;
  options.threads = flags.threads;
  options.time_limit = Seconds(flags.time_limit);
  Progress progress("planning");
  options.progress = [&](double done, double best, double bound) {
    std::string text = fmt::format("planning {}", Progress::bar(done));
    if (best < 1e300)
      text += fmt::format(" best {:.6g}, bound {:.6g}", best * problem.unit, bound * problem.unit);
    progress.show(text);
  };
  const EliminationResult found = minimise(problem.network, options);
  const double cost = pase_cost(graph, flags.machine, problem, found.choice);
  const double seconds = watch.seconds();
  if (flags.json) {
    fmt::print("{}\n", result_json(graph, problem, found, cost, seconds).dump(2));
    return ExitCode::Done;
  }
  fmt::print("{}: {} layers on {} devices, PaSE's cost model\n", graph.name, graph.layers.size(),
             flags.machine.devices);
  fmt::print("  {} {:.0f} FLOP", found.optimal ? "optimal:" : "best found:", cost);
  if (!found.optimal)
    fmt::print(", at least {:.0f} (gap {:.2f} %)", found.bound * problem.unit, 100 * found.gap());
  fmt::print(
      "\n  {} configurations, {} after dead ends; largest table {:.0f} cells, {:.3g} in all, "
      "{:.3g} "
      "of them computed; {}\n\n",
      found.options, found.options_left, found.largest_table, found.cells, found.cells_computed,
      format_seconds(Seconds(seconds)));
  Table table({Align::Right, Align::Left, Align::Left, Align::Left});
  table.add({"vertex", "layer", "iteration space", "parts"});
  for (size_t v = 0; v < graph.layers.size(); ++v)
    table.add(
        {fmt::to_string(v), std::string(layer_kind_name(graph.layers[v].kind)),
         fmt::format("{}", fmt::join(graph.layers[v].space, " ")),
         fmt::format("{}", fmt::join(problem.of(v)[static_cast<size_t>(found.choice[v])], " "))});
  fmt::print("{}", table.text());
  return ExitCode::Done;
}

}  // namespace windlass
