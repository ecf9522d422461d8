#include "windlass/report/validation.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/graph/differentiate.h"
#include "windlass/graph/dtype.h"

namespace windlass {
namespace {

ValidatedFigure figure_from_name(const std::string& name) {
  static const std::map<std::string, ValidatedFigure> kNames = {
      {"step-time", ValidatedFigure::StepTime},
      {"flops-rate", ValidatedFigure::FlopsRate},
      {"state-memory", ValidatedFigure::StateMemory},
      {"kept-memory", ValidatedFigure::KeptMemory},
      {"kept-share", ValidatedFigure::KeptShare},
      {"layer-memory", ValidatedFigure::LayerMemory},
      {"pass-time", ValidatedFigure::PassTime},
      {"whole-time", ValidatedFigure::WholeTime},
      {"whole-memory", ValidatedFigure::WholeMemory},
  };
  const auto found = kNames.find(name);
  if (found == kNames.end()) fail_input("quantity \"{}\" is not known", name);
  return found->second;
}

CountedMemory counted_from_name(const std::string& name) {
  if (name == "card") return CountedMemory::Card;
  if (name == "reserved") return CountedMemory::Reserved;
  if (name == "allocated") return CountedMemory::Allocated;
  fail_input("\"counted\" is \"{}\", expected card, reserved or allocated", name);
}

constexpr int64_t kMost = 1 << 20;

ValidationRow read_framework_row(JsonObject row) {
  ValidationRow result;
  result.label = row.text("label");
  FrameworkStep& step = result.framework.emplace();
  step.model = row.text("model");
  step.machine = row.text("machine");
  step.runner = row.text("runner");
  step.strategy = row.text("strategy");
  step.dtype = row.text("dtype");
  if (!dtype_from_name(step.dtype)) fail_input("\"dtype\" is \"{}\"", step.dtype);
  step.batch = row.integer("batch", 1, kMost);
  const int64_t sequence = row.integer("sequence", 0, 1, kMost);
  if (sequence > 0) step.sequence = sequence;
  step.less_model = row.text("less_model", "");
  step.layers = row.integer("layers", 1, 1, kMost);
  step.optimizer = row.text("optimizer", "adam");
  if (!optimizer_from_name(step.optimizer)) fail_input("\"optimizer\" is \"{}\"", step.optimizer);
  step.fused_attention = row.boolean("fused_attention", true);
  step.counted = counted_from_name(row.text("counted", "card"));
  result.published = row.number("published", 0, 1e-12, 1e18);
  row.finish();
  return result;
}

ValidationRow read_row(JsonObject row) {
  ValidationRow result;
  result.label = row.text("label");
  const std::pair<const char*, int64_t*> numbers[] = {{"layers", &result.layers},
                                                      {"hidden", &result.hidden},
                                                      {"heads", &result.heads},
                                                      {"gpus", &result.gpus},
                                                      {"tp", &result.tp},
                                                      {"pp", &result.pp},
                                                      {"interleave", &result.interleave},
                                                      {"micro", &result.micro},
                                                      {"batch", &result.batch}};
  for (const auto& [key, value] : numbers) *value = row.integer(key, 1, kMost);
  result.recompute = row.text("recompute");
  result.sequence_parallel = row.boolean("sequence_parallel", false);
  result.published = row.number("published", 0, 1e-12, 1e18);
  row.finish();
  return result;
}

}  // namespace

double ValidationTable::mean_error() const {
  double sum = 0;
  for (const ValidationRow& row : rows) sum += std::abs(row.error());
  return rows.empty() ? 0 : sum / static_cast<double>(rows.size());
}

double ValidationTable::max_error() const {
  double most = 0;
  for (const ValidationRow& row : rows) most = std::max(most, std::abs(row.error()));
  return most;
}

bool ValidationTable::passed() const {
  return (bar_mean == 0 || mean_error() < bar_mean) && (bar_max == 0 || max_error() < bar_max);
}

ValidationTable read_validation(std::string_view name, std::string_view text) {
  ValidationTable table;
  table.name = name;
  try {
    const nlohmann::json document = parse_json(text);
    JsonObject top(document, "table");
    table.title = top.text("title");
    table.source = top.text("source");
    table.note = top.text("note", "");
    table.unit = top.text("unit");
    table.figure = figure_from_name(top.text("quantity"));
    table.bar_mean = top.number("bar_mean", 0, 0, 1);
    table.bar_max = top.number("bar_max", 0, 0, 1);
    const bool frameworks = table.figure >= ValidatedFigure::PassTime;
    for (JsonObject& row : top.objects("rows"))
      table.rows.push_back(frameworks ? read_framework_row(std::move(row))
                                      : read_row(std::move(row)));
    top.finish();
  } catch (const Error& error) {
    throw error.within(name);
  }
  return table;
}

}  // namespace windlass
