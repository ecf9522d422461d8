#include <cmath>

#include <nlohmann/json.hpp>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"
#include "windlass/machine/read_machine.h"
#include "windlass/machine/write_machine.h"
#include "windlass/plan/plan.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

constexpr size_t kLine = 120;

std::string inline_text(const ordered_json& value) {
  if (!value.is_structured())
    return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
  std::string text;
  for (const auto& [key, entry] : value.items()) {
    if (!text.empty()) text += ", ";
    if (value.is_object()) text += inline_text(ordered_json(key)) + ": ";
    text += inline_text(entry);
  }
  return value.is_object() ? "{" + text + "}" : "[" + text + "]";
}

// What fits into a line stands on one; the rest is taken apart.
void print(const ordered_json& value, size_t indent, size_t column, std::string& out) {
  const std::string line = inline_text(value);
  if (!value.is_structured() || value.empty() || column + line.size() <= kLine) {
    out += line;
    return;
  }
  const bool object = value.is_object();
  out += object ? "{\n" : "[\n";
  size_t left = value.size();
  for (const auto& [key, entry] : value.items()) {
    out.append(indent + 2, ' ');
    const std::string label = object ? inline_text(ordered_json(key)) + ": " : "";
    out += label;
    print(entry, indent + 2, indent + 2 + label.size(), out);
    out += --left > 0 ? ",\n" : "\n";
  }
  out.append(indent, ' ');
  out += object ? "}" : "]";
}

// Equal neighbours as {"first", "count", ...}.
template <typename T, typename Write>
ordered_json runs(const std::vector<T>& values, Write write) {
  ordered_json list = ordered_json::array();
  for (size_t i = 0; i < values.size();) {
    size_t end = i;
    while (end < values.size() && values[end] == values[i]) ++end;
    ordered_json run = {{"first", i}, {"count", end - i}};
    write(values[i], run);
    list.push_back(std::move(run));
    i = end;
  }
  return list;
}

// "0-7,16": numbers of devices.
std::string ranges(const std::vector<DeviceId>& group) {
  std::string text;
  for (size_t i = 0; i < group.size();) {
    size_t end = i + 1;
    while (end < group.size() && group[end].value == group[end - 1].value + 1) ++end;
    if (!text.empty()) text += ",";
    text += std::to_string(group[i].value);
    if (end - i > 1) text += fmt::format("-{}", group[end - 1].value);
    i = end;
  }
  return text;
}

ordered_json write_model(const ModelRequest& model, uint64_t fingerprint) {
  ordered_json object = {{"source", model.source},
                         {"fingerprint", format_fingerprint(fingerprint)}};
  if (model.batch) object["batch"] = *model.batch;
  if (model.sequence) object["sequence"] = *model.sequence;
  if (model.image) object["image"] = *model.image;
  if (!model.dimensions.empty()) object["dimensions"] = model.dimensions;
  if (!model.loss.empty()) object["loss"] = model.loss;
  if (model.dtype) object["dtype"] = dtype_name(*model.dtype);
  if (!model.freeze.empty()) object["freeze"] = model.freeze;
  if (!model.train.empty()) object["train"] = model.train;
  object["fuse"] = model.fuse;
  object["as_exported"] = model.as_exported;
  if (model.expert_capacity > 0) object["expert_capacity"] = model.expert_capacity;
  object["optimizer"] = enum_name(model.training.optimizer);
  object["master_weights"] = model.training.master_weights;
  if (model.training.gradient_dtype)  // the runner's own included
    object["gradient_dtype"] = dtype_name(*model.training.gradient_dtype);
  if (model.training.clip_norm > 0) object["clip_norm"] = model.training.clip_norm;
  return object;
}

ordered_json write_strategy(const Plan& plan) {
  const Strategy& strategy = plan.strategy;
  ordered_json groups = ordered_json::array(), stages = ordered_json::array();
  for (const auto& group : strategy.groups) groups.push_back(ranges(group));
  for (const Stage& stage : strategy.stages)
    stages.push_back(
        {{"first", stage.first}, {"count", stage.last - stage.first}, {"group", stage.group}});
  ordered_json splits = ordered_json::array();
  for (const ShardingRun& run : plan.splits)
    splits.push_back({{"first", run.first}, {"count", run.count}, {"split", run.split}});
  ordered_json made = {
      {"name", strategy.name},
      {"micro_batches", strategy.micro_batches},
      {"schedule", schedule_name(strategy.schedule)},
      {"bucket_bytes", strategy.bucket.value},
      {"prefetch", strategy.prefetch},
      {"virtual_memory", strategy.virtual_memory},
      {"groups", groups},
      {"stages", stages},
      {"ops", splits},
      {"saved",
       runs(strategy.saved,
            [](MemoryAction action, ordered_json& run) { run["action"] = action_name(action); })},
      {"weights", runs(strategy.weights, [](const Residency& weight, ordered_json& run) {
         run["zero"] = weight.zero;
         if (weight.host) run["host"] = true;
         if (weight.host_update) run["host_update"] = true;
       })}};
  if (strategy.in_turn) made["in_turn"] = true;
  return made;
}

ordered_json write_prediction(const Prediction& prediction) {
  const auto write = [](int64_t bytes, ordered_json& run) { run["peak_bytes"] = bytes; };
  ensure(std::isfinite(prediction.step_time.value), "a predicted time is not a number");
  ordered_json object = {{"termination", prediction.termination},
                         {"step_time_s", prediction.step_time.value},
                         {"devices", runs(prediction.device_peaks, write)},
                         {"hosts", runs(prediction.host_peaks, write)}};
  for (const FrontierPoint& point : prediction.frontier)
    object["frontier"].push_back(
        {{"limit_bytes", point.limit.value}, {"step_time_s", point.step_time.value}});
  return object;
}

// Throws Error{Unsupported} for a machine that no machine file describes.
ordered_json write_machine(const Machine& machine) {
  ordered_json object = machine_json(machine);
  const auto fail_here = [&](std::string_view why) {
    fail_unsupported("machine \"{}\" cannot be written into a plan: {}", machine.name, why);
  };
  try {
    const std::string text = object.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
    if (fingerprint(machine_from_json(text, machine.name)) != fingerprint(machine))
      fail_here("no machine file describes it");
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::Unsupported) throw;
    fail_here(error.message());
  }
  return object;
}

}  // namespace

std::string format_request(const ModelRequest& model) {
  return write_model(model, 0).dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

std::string plan_to_json(const Plan& plan) {
  ordered_json json = {{"format", "windlass plan"},
                       {"version", kPlanVersion},
                       {"model", write_model(plan.model, plan.model_fingerprint)},
                       {"samples", plan.samples},
                       {"machine",
                        {{"fingerprint", format_fingerprint(plan.machine_fingerprint)},
                         {"description", write_machine(plan.machine)}}}};
  if (!is_windlass(plan.model.runner)) json["runner"] = runner_to_json(plan.model.runner);
  if (plan.strategy.packs)
    json["harmony"] = packs_to_json(*plan.strategy.packs);
  else
    json["strategy"] = write_strategy(plan);
  if (plan.strategy.memory_cap.value > 0) json["memory_cap_bytes"] = plan.strategy.memory_cap.value;
  json["prediction"] = write_prediction(plan.prediction);
  json["provenance"] = {{"windlass", plan.provenance.windlass},
                        {"method", plan.provenance.method},
                        {"seed", plan.provenance.seed},
                        {"cost", plan.provenance.cost}};
  for (const MeasuredKernel& kernel : plan.kernels)
    json["kernels"].push_back({{"kernel", kernel.kernel},
                               {"time_ns", kernel.time_ns},
                               {"workspace_bytes", kernel.workspace_bytes}});
  std::string text;
  print(json, 0, 0, text);
  return text + "\n";
}

void write_plan(const Plan& plan, const std::string& path) {
  const std::string text = plan_to_json(plan);
  AtomicFile file(path);
  file.write(text);
  file.commit();
}

}  // namespace windlass
