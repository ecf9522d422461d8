#include "windlass/cli/validate_search.h"

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/table.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/model.h"
#include "windlass/report/validation.h"
#include "windlass/search/search.h"
#include "windlass/strategy/baselines.h"

namespace windlass {
namespace {

Seconds time_of(const Graph& graph, const Machine& machine, const std::string& strategy,
                const CostModel& cost) {
  const PreparedStep step = prepare_step(graph, parse_baseline(strategy), machine, {});
  return simulate_step(step.training, step.strategy, machine, cost, {.enforce_limits = false})
      .step_time();
}

void run_row(SpeedupRow& row) {
  ModelOptions options;
  options.batch = row.batch;
  const Model model = load_model(row.model, options);
  const Machine machine = load_machine(row.machine);
  const auto cost = analytic_cost_model();
  row.data_parallel = time_of(model.graph, machine, "data-parallel", *cost);
  row.expert_time = time_of(model.graph, machine, row.expert, *cost);
  const Problem problem = {.network = model.graph, .machine = machine, .cost = *cost};
  const SearchResult found = search_exact(problem);
  if (found.termination == Termination::Infeasible)
    throw Error(ErrorKind::Runtime, fmt::format("{} on {}: no plan fits", row.model, row.machine));
  row.found = found.step_time;
  row.proven = found.objective == found.objective_bound;
}

}  // namespace

bool SpeedupRow::passed() const {
  const bool beats_data = published_search <= 1 || found < data_parallel;
  const bool beats_expert = published_search <= published_expert || found < expert_time;
  return beats_data && beats_expert;
}

bool SpeedupTable::passed() const { return std::ranges::all_of(rows, &SpeedupRow::passed); }

SpeedupTable read_speedups(std::string_view name, std::string_view text) {
  const auto document = parse_json(text);
  JsonObject object(document, std::string(name));
  SpeedupTable table;
  table.title = object.text("title");
  table.source = object.text("source");
  table.note = object.text("note");
  object.text("quantity");
  for (JsonObject& row : object.objects("rows")) {
    SpeedupRow& made = table.rows.emplace_back();
    made.model = row.text("model");
    made.machine = row.text("machine");
    made.expert = row.text("expert");
    made.batch = row.integer("batch", 1, 1 << 20);
    made.published_expert = row.number("published_expert", 0, 0.01, 100);
    made.published_search = row.number("published_search", 0, 0.01, 100);
    row.finish();
  }
  object.finish();
  return table;
}

void run_speedups(SpeedupTable& table, const std::function<void(size_t, size_t)>& done) {
  for (size_t i = 0; i < table.rows.size(); ++i) {
    run_row(table.rows[i]);
    if (done) done(i + 1, table.rows.size());
  }
}

std::string speedup_text(const SpeedupTable& table) {
  std::string text =
      fmt::format("{}: {}\n  {}\n  {}\n", kSearchTable, table.title, table.source, table.note);
  Table rows({Align::Left, Align::Left, Align::Right, Align::Right, Align::Right, Align::Right,
              Align::Right, Align::Left});
  rows.add({"", "", "data par.", "expert", "windlass", "published: expert", "PaSE", ""});
  for (const SpeedupRow& row : table.rows)
    rows.add({row.model, row.machine, format_seconds(row.data_parallel),
              fmt::format("{:.2f}x", row.expert_speedup()),
              fmt::format("{:.2f}x", row.search_speedup()),
              fmt::format("{:.2f}x", row.published_expert),
              fmt::format("{:.2f}x", row.published_search), row.passed() ? "" : "FAIL"});
  text += rows.text("  ");
  return text +
         fmt::format("  faster than data parallelism and the expert wherever PaSE is: {}\n\n",
                     table.passed() ? "PASS" : "FAIL");
}

nlohmann::ordered_json speedup_json(const SpeedupTable& table) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const SpeedupRow& row : table.rows)
    rows.push_back({{"model", row.model},
                    {"machine", row.machine},
                    {"batch", row.batch},
                    {"data_parallel_s", row.data_parallel.value},
                    {"expert_s", row.expert_time.value},
                    {"step_time_s", row.found.value},
                    {"published_expert_speedup", row.published_expert},
                    {"published_search_speedup", row.published_search},
                    {"passed", row.passed()}});
  return {{"name", kSearchTable}, {"title", table.title},     {"source", table.source},
          {"note", table.note},   {"passed", table.passed()}, {"rows", std::move(rows)}};
}

}  // namespace windlass
