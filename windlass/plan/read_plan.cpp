#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "windlass/base/checked.h"
#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"
#include "windlass/graph/loss_spec.h"
#include "windlass/machine/read_machine.h"
#include "windlass/plan/plan.h"

namespace windlass {
namespace {

constexpr int64_t kMaxFileBytes = int64_t{64} << 20;
// Of ops, saved tensors and weights each. Runs make large counts cheap to write, so they are
// bounded before anything is filled.
constexpr int64_t kMaxEntries = 4'000'000;
constexpr int64_t kMaxMicroBatches = 1 << 20;
constexpr int64_t kMaxDimension = int64_t{1} << 40;
constexpr size_t kMaxGroups = 100'000;
constexpr int64_t kMaxBucket = int64_t{1} << 50;
constexpr int64_t kMaxPrefetch = 1 << 20;

JsonObject require(JsonObject& object, const std::string& key) {
  auto found = object.object(key);
  if (!found)
    fail_input("{}{}\"{}\" is missing", object.where(), object.where().empty() ? "" : ": ", key);
  return *found;
}

// Says which keys there are before the first one is read, so that a missing key is not explained by
// one that is merely read later.
void know(JsonObject& object, std::initializer_list<const char*> keys) {
  for (const char* key : keys) object.has(key);
}

template <typename Enum, typename Name>
Enum choose(JsonObject& object, const std::string& key, std::initializer_list<Enum> values,
            Name name) {
  const std::string text = object.text(key);
  std::vector<std::string> known;
  for (Enum value : values) {
    if (name(value) == text) return value;
    known.emplace_back(name(value));
  }
  fail_input("{}: \"{}\" is \"{}\"{}; expected one of {}", object.where(), key, printable(text, 60),
             did_you_mean(text, known), join(known, ", "));
}

uint64_t read_fingerprint(JsonObject& object) {
  const std::string text = object.text("fingerprint");
  uint64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (text.size() != 16 || failed != std::errc() || end != text.data() + text.size())
    fail_input("{}: \"fingerprint\" is \"{}\", expected 16 hexadecimal digits", object.where(),
               printable(text, 60));
  return value;
}

// A list of runs: each begins where the one before ended.
template <typename Read>
int64_t read_runs(JsonObject& object, const std::string& key, int64_t most,
                  std::initializer_list<const char*> keys, Read read) {
  int64_t next = 0;
  for (JsonObject& run : object.objects(key)) {
    know(run, {"first", "count"});
    know(run, keys);
    const int64_t first = run.integer("first", 0, most);
    if (first != next)
      fail_input("{}: \"first\" is {}, expected {}: runs follow each other without gaps",
                 run.where(), first, next);
    const int64_t count = run.integer("count", 1, most - first);
    read(run, static_cast<size_t>(first), static_cast<size_t>(count));
    run.finish();
    next = first + count;
  }
  return next;
}

std::optional<DType> read_dtype(JsonObject& object, const std::string& key) {
  if (!object.has(key)) return std::nullopt;
  const std::string text = object.text(key);
  const auto dtype = dtype_from_name(text);
  if (!dtype || !is_float(*dtype))
    fail_input("{}: \"{}\" is \"{}\", expected fp32, bf16 or fp16", object.where(), key,
               printable(text, 60));
  return dtype;
}

ModelRequest read_model(JsonObject object, uint64_t& fingerprint) {
  ModelRequest model;
  know(object, {"source", "fingerprint", "batch", "sequence", "image", "dimensions", "loss",
                "dtype", "freeze", "train", "fuse", "as_exported", "expert_capacity", "optimizer",
                "master_weights", "gradient_dtype", "clip_norm"});
  fingerprint = read_fingerprint(object);
  model.source = object.text("source");
  const auto size = [&](const char* key) -> std::optional<int64_t> {
    if (!object.has(key)) return std::nullopt;
    return object.integer(key, 1, kMaxDimension);
  };
  model.batch = size("batch");
  model.sequence = size("sequence");
  model.image = size("image");
  if (auto dimensions = object.object("dimensions"))
    for (const std::string& name : dimensions->keys())
      model.dimensions[name] = dimensions->integer(name, 0, kMaxDimension);
  model.loss = object.text("loss", "");
  if (!model.loss.empty()) {
    try {
      parse_loss(printable(model.loss, 60));
    } catch (const Error& error) {
      throw error.within(object.where());
    }
  }
  model.dtype = read_dtype(object, "dtype");
  if (object.has("freeze")) model.freeze = object.texts("freeze");
  if (object.has("train")) model.train = object.texts("train");
  model.fuse = object.boolean("fuse", true);
  model.as_exported = object.boolean("as_exported", false);
  if (object.has("expert_capacity"))
    model.expert_capacity = object.number("expert_capacity", 0, 1, 1e6);
  model.training.optimizer = choose(
      object, "optimizer",
      {OptimizerKind::Sgd, OptimizerKind::Momentum, OptimizerKind::Adam, OptimizerKind::AdamW},
      [](OptimizerKind kind) { return enum_name(kind); });
  model.training.master_weights = object.boolean("master_weights", true);
  model.training.gradient_dtype = read_dtype(object, "gradient_dtype");
  model.training.clip_norm = object.number("clip_norm", 0, 0, 1e300);
  object.finish();
  return model;
}

// "0-7,16".
std::vector<DeviceId> read_group(const std::string& text, const Machine& machine,
                                 const std::string& where) {
  std::vector<DeviceId> group;
  for (std::string_view item : split(text, ',')) {
    int64_t first = -1, last = -1;
    const char* end = item.data() + item.size();
    auto read = std::from_chars(item.data(), end, first);
    last = first;
    if (read.ec == std::errc() && read.ptr != end && *read.ptr == '-')
      read = std::from_chars(read.ptr + 1, end, last);
    const auto devices = static_cast<int64_t>(machine.devices.size());
    if (read.ec != std::errc() || read.ptr != end || first < 0 || last < first)
      fail_input("{}: \"{}\" is not a list of devices such as \"0-7,16\"", where,
                 printable(text, 60));
    if (last >= devices)
      fail_input("{}: device {} of \"{}\" is not there: the machine has devices 0 to {}", where,
                 last, printable(text, 60), devices - 1);
    if (static_cast<int64_t>(group.size()) + last - first >= devices)
      fail_input("{}: \"{}\" names more devices than the machine has", where, printable(text, 60));
    for (int64_t d = first; d <= last; ++d) group.push_back(DeviceId(static_cast<size_t>(d)));
  }
  if (group.empty()) fail_input("{}: a group without devices", where);
  return group;
}

void read_strategy(JsonObject object, Plan& plan) {
  Strategy& strategy = plan.strategy;
  know(object, {"name", "micro_batches", "schedule", "bucket_bytes", "prefetch", "virtual_memory",
                "in_turn", "groups", "stages", "ops", "saved", "weights"});
  strategy.name = object.text("name", "");
  strategy.micro_batches = object.integer("micro_batches", 1, kMaxMicroBatches);
  if (object.text("schedule") == "packs")
    fail_input(
        "{}: \"schedule\" is \"packs\": packs of layers are no schedule any more; plan again with "
        "--search harmony or --strategy harmony, which write \"harmony\" instead of \"strategy\"",
        object.where());
  strategy.schedule =
      choose(object, "schedule",
             {ScheduleKind::AllAtOnce, ScheduleKind::GPipe, ScheduleKind::OneFOneB}, schedule_name);
  strategy.bucket = Bytes(object.integer("bucket_bytes", strategy.bucket.value, 0, kMaxBucket));
  strategy.prefetch =
      static_cast<int32_t>(object.integer("prefetch", strategy.prefetch, 0, kMaxPrefetch));
  strategy.virtual_memory = object.boolean("virtual_memory", false);
  strategy.in_turn = object.boolean("in_turn", false);
  const std::vector<std::string> groups = object.texts("groups");
  if (groups.size() > kMaxGroups) fail_input("{}: more than {} groups", object.where(), kMaxGroups);
  size_t devices = 0;
  for (size_t g = 0; g < groups.size(); ++g) {
    strategy.groups.push_back(
        read_group(groups[g], plan.machine, fmt::format("{}.groups[{}]", object.where(), g)));
    devices += strategy.groups.back().size();
    if (devices > static_cast<size_t>(kMaxEntries))
      fail_input("{}.groups: more than {} devices in all", object.where(), kMaxEntries);
  }
  const auto last_group = static_cast<int64_t>(groups.size()) - 1;
  size_t next = 0;
  for (JsonObject& entry : object.objects("stages")) {
    Stage stage;
    know(entry, {"first", "count", "group"});
    stage.first = static_cast<size_t>(entry.integer("first", 0, kMaxEntries));
    if (stage.first != next)
      fail_input("{}: \"first\" is {}, expected {}: stages follow each other without gaps",
                 entry.where(), stage.first, next);
    stage.last = stage.first + static_cast<size_t>(entry.integer("count", 0, kMaxEntries));
    next = stage.last;
    stage.group = static_cast<int32_t>(entry.integer("group", 0, last_group));
    entry.finish();
    strategy.stages.push_back(stage);
  }
  const int64_t ops = read_runs(object, "ops", kMaxEntries, {"split"},
                                [&](JsonObject& run, size_t first, size_t count) {
                                  plan.splits.push_back({first, count, run.text("split")});
                                });
  if (static_cast<size_t>(ops) != next)
    fail_input("{}: \"ops\" covers {} ops, \"stages\" {}", object.where(), ops, next);
  read_runs(object, "saved", kMaxEntries, {"action"}, [&](JsonObject& run, size_t, size_t count) {
    const MemoryAction action = choose(
        run, "action",
        {MemoryAction::Keep, MemoryAction::Regather, MemoryAction::Recompute, MemoryAction::Offload,
         MemoryAction::Compress8, MemoryAction::Compress4, MemoryAction::Compress2},
        action_name);
    strategy.saved.insert(strategy.saved.end(), count, action);
  });
  read_runs(object, "weights", kMaxEntries, {"zero", "host", "host_update"},
            [&](JsonObject& run, size_t, size_t count) {
              Residency weight;
              weight.zero = static_cast<uint8_t>(run.integer("zero", 0, 0, 3));
              weight.host = run.boolean("host", false);
              weight.host_update = run.boolean("host_update", false);
              strategy.weights.insert(strategy.weights.end(), count, weight);
            });
  object.finish();
}

Prediction read_prediction(JsonObject object, const Machine& machine) {
  Prediction prediction;
  know(object, {"termination", "step_time_s", "devices", "hosts", "frontier"});
  prediction.termination = object.text("termination");
  if (!object.has("step_time_s")) fail_input("{}: \"step_time_s\" is missing", object.where());
  prediction.step_time = Seconds(object.number("step_time_s", 0, 0, 1e12));
  const auto peaks = [&](const char* key, size_t expected, std::vector<int64_t>& list) {
    read_runs(object, key, static_cast<int64_t>(expected), {"peak_bytes"},
              [&](JsonObject& run, size_t, size_t count) {
                list.insert(list.end(), count, run.integer("peak_bytes", 0, int64_t{1} << 60));
              });
    if (list.size() != expected)
      fail_input("{}: \"{}\" has {} peaks, the machine has {}", object.where(), key, list.size(),
                 expected);
  };
  peaks("devices", machine.devices.size(), prediction.device_peaks);
  peaks("hosts", machine.nodes.size(), prediction.host_peaks);
  for (JsonObject& point : object.objects("frontier")) {
    know(point, {"limit_bytes", "step_time_s"});
    const int64_t limit = point.integer("limit_bytes", 0, int64_t{1} << 60);
    if (!point.has("step_time_s")) fail_input("{}: \"step_time_s\" is missing", point.where());
    prediction.frontier.push_back({Bytes(limit), Seconds(point.number("step_time_s", 0, 0, 1e12))});
    point.finish();
  }
  object.finish();
  return prediction;
}

Plan read(std::string_view text) {
  const nlohmann::json document = parse_json(text);
  JsonObject top(document, "");
  know(top, {"format", "version", "model", "samples", "machine", "runner", "strategy", "harmony",
             "memory_cap_bytes", "prediction", "provenance", "kernels"});
  const std::string format = top.text("format");
  if (format != "windlass plan")
    fail_input("\"format\" is \"{}\", expected \"windlass plan\"", printable(format, 60));
  const int64_t version = top.integer("version", 1, int64_t{1} << 31);
  if (version != kPlanVersion)
    fail_input("\"version\" is {}, this program reads version {}", version, kPlanVersion);
  Plan plan;
  plan.model = read_model(require(top, "model"), plan.model_fingerprint);
  plan.samples = top.integer("samples", 1, kMaxDimension);
  JsonObject machine = require(top, "machine");
  know(machine, {"fingerprint", "description"});
  plan.machine_fingerprint = read_fingerprint(machine);
  require(machine, "description");
  machine.finish();
  plan.machine =
      machine_from_json(document["machine"]["description"].dump(), "machine.description");
  if (fingerprint(plan.machine) != plan.machine_fingerprint)
    fail_input("machine: its description has fingerprint {}, not {}: it was edited; plan again",
               format_fingerprint(fingerprint(plan.machine)),
               format_fingerprint(plan.machine_fingerprint));
  if (top.has("runner")) {
    require(top, "runner");
    plan.model.runner = runner_from_json(document["runner"].dump(), "runner");
    set_training(plan.model.runner, plan.model.training);
  }
  if (!top.has("harmony")) {
    read_strategy(require(top, "strategy"), plan);
  } else {
    if (top.has("strategy")) fail_input("\"strategy\" and \"harmony\": a plan has one of them");
    plan.strategy = strategy_of_packs(packs_from_json(document["harmony"], "harmony"));
  }
  plan.strategy.memory_cap = Bytes(top.integer("memory_cap_bytes", 0, 0, INT64_MAX));
  plan.prediction = read_prediction(require(top, "prediction"), plan.machine);
  JsonObject provenance = require(top, "provenance");
  know(provenance, {"windlass", "method", "seed", "cost"});
  plan.provenance.windlass = provenance.text("windlass");
  plan.provenance.method = provenance.text("method");
  plan.provenance.seed = provenance.integer("seed", 0, INT64_MAX);
  plan.provenance.cost = provenance.text("cost");
  provenance.finish();
  for (JsonObject& entry : top.objects("kernels")) {
    know(entry, {"kernel", "time_ns", "workspace_bytes"});
    plan.kernels.push_back(
        {.kernel = entry.text("kernel"),
         .time_ns = entry.integer("time_ns", 1, int64_t{1} << 50),
         .workspace_bytes = entry.integer("workspace_bytes", 0, int64_t{1} << 60)});
    entry.finish();
  }
  top.finish();
  return plan;
}

}  // namespace

Plan plan_from_json(std::string_view text, const std::string& where) {
  try {
    return read(text);
  } catch (const Error& error) {
    throw error.within(where);
  }
}

Plan read_plan(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  std::error_code failed;
  const auto size = std::filesystem::file_size(path, failed);
  if (!stream || failed) fail_input("{}: cannot read the file", path);
  if (static_cast<int64_t>(size) > kMaxFileBytes) fail_input("{}: too large for a plan", path);
  const std::string text{std::istreambuf_iterator<char>(stream), {}};
  return plan_from_json(text, path);
}

}  // namespace windlass
