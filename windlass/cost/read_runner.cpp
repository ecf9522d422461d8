#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>

#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"
#include "windlass/cost/runner.h"

namespace windlass {
namespace {

constexpr int64_t kMaxRunnerFile = int64_t{1} << 20;
constexpr double kMaxCopies = 100;
constexpr std::array<std::string_view, 3> kTf32Names = {"off", "convolutions", "all"};

// One section of the file. Each constant that is read must have its source.
class Section {
 public:
  Section(JsonObject& object, std::string name, const std::map<std::string, std::string>& sources)
      : name_(std::move(name)), object_(object), sources_(sources) {}

  bool has(const std::string& key) {
    if (!object_.has(key)) return false;
    if (!sources_.contains(name_ + "." + key))
      fail_input("sources: \"{}.{}\" is missing: where does the figure come from?", name_, key);
    return true;
  }
  void read(const std::string& key, Seconds& value) {
    if (has(key)) value = object_.seconds(key, {});
    if (!(value.value >= 0 && value.value <= 1e3))
      fail_input("{}: \"{}\" is {} s, expected 0 to 1000", name_, key, value.value);
  }
  void read(const std::string& key, Bytes& value) {
    if (has(key)) value = object_.bytes(key);
  }
  void read(const std::string& key, std::optional<Bytes>& value) {
    if (has(key)) value = object_.bytes(key);
  }
  void read(const std::string& key, bool& value) {
    if (has(key)) value = object_.boolean(key, value);
  }
  void read(const std::string& key, double& value, double least) {
    if (has(key)) value = object_.number(key, value, least, kMaxCopies);
  }
  void read(const std::string& key, std::optional<DType>& value) {
    if (!has(key)) return;
    const std::string text = object_.text(key);
    value = dtype_from_name(text);
    if (!value || !is_float(*value) || *value == DType::F64)
      fail_input("{}: \"{}\" is \"{}\", expected fp32, bf16 or fp16", name_, key,
                 printable(text, 60));
  }
  void read(const std::string& key, Tf32& value) {
    if (!has(key)) return;
    const std::string text = object_.text(key);
    const auto found = tf32_from_name(text);
    if (!found)
      fail_input("{}: \"{}\" is \"{}\", expected {}", name_, key, printable(text, 60),
                 join(tf32_names(), ", "));
    value = *found;
  }

 private:
  std::string name_;
  JsonObject& object_;
  const std::map<std::string, std::string>& sources_;
};

// Calls `read` with the section, if the file has it.
template <typename Read>
void section(JsonObject& top, const std::string& name, const Runner& runner, Read read) {
  auto object = top.object(name);
  if (!object) return;
  Section open(*object, name, runner.sources);
  read(open);
  object->finish();
}

Runner parse(std::string_view text) {
  const nlohmann::json document = parse_json(text);
  JsonObject top(document, "");
  Runner runner;
  runner.name = top.text("name");
  if (runner.name.empty() || runner.name != printable(runner.name, 60))
    fail_input("\"name\" is no short text");
  runner.description = top.text("description", "");
  if (auto sources = top.object("sources")) {
    for (const std::string& key : sources->keys()) runner.sources[key] = sources->text(key);
    sources->finish();
  }
  section(top, "host", runner, [&](Section& host) {
    HostCosts costs;
    host.read("forward_op", costs.forward_op);
    host.read("backward_op", costs.backward_op);
    host.read("convolution_op", costs.convolution_op);
    host.read("cast", costs.cast);
    host.read("collective", costs.collective);
    host.read("micro_batch", costs.micro_batch);
    host.read("weight", costs.weight);
    host.read("step", costs.step);
    host.read("waits_each_pass", costs.waits_each_pass);
    if (costs.convolution_op.value > 0 && costs.forward_op.value <= 0)
      fail_input(
          "host: \"convolution_op\" says how much more than \"forward_op\", which is missing");
    runner.host = costs;
  });
  section(top, "memory", runner, [&](Section& memory) {
    memory.read("context", runner.context);
    memory.read("communicator", runner.communicator);
    memory.read("fragmentation", runner.fragmentation, 1);
    memory.read("keeps_gradients", runner.keeps_gradients);
    memory.read("ties_have_state", runner.ties_have_state);
    memory.read("loss_copies", runner.loss_copies, 0);
    memory.read("loss_backward_copies", runner.loss_backward_copies, 0);
    memory.read("update_copies", runner.update_copies, 0);
    memory.read("bucket_copies", runner.bucket_copies, 0);
    memory.read("library_workspace", runner.library_workspace);
  });
  section(top, "numbers", runner, [&](Section& numbers) {
    numbers.read("gradient_dtype", runner.gradient_dtype);
    numbers.read("autocast", runner.autocast);
    numbers.read("fp32_losses", runner.fp32_losses);
    numbers.read("tf32", runner.tf32);
  });
  section(top, "device", runner, [&](Section& device) {
    device.read("update_passes", runner.update_passes, 1);
    device.read("compression_passes", runner.compression_passes, 1);
    device.read("overlaps_reduction", runner.overlaps_reduction);
    device.read("overlaps_copies", runner.overlaps_copies);
    device.read("copy_share", runner.copy_share, 0.01);
    device.read("fuses_attention", runner.fuses_attention);
    device.read("fuses_tanh_gelu", runner.fuses_tanh_gelu);
    device.read("fuses_rms_norm", runner.fuses_rms_norm);
    device.read("fuses_scores", runner.fuses_scores);
  });
  top.finish();
  if (runner.copy_share > 1)
    fail_input("device: \"copy_share\" is {}, expected at most 1", runner.copy_share);
  if (runner.autocast == DType::F32)
    fail_input("numbers: \"autocast\" is fp32, expected bf16 or fp16");
  const bool copies = runner.loss_copies > 0 || runner.loss_backward_copies > 0 ||
                      runner.update_copies > 0 || runner.bucket_copies > 0 ||
                      runner.library_workspace;
  if (copies && !runner.host)
    fail_input("memory: copies and workspace are of runners with a section \"host\"");
  if (runner.name == "windlass" && !is_windlass(runner))
    fail_input("\"name\" is \"windlass\": give a runner with other constants another name");
  return runner;
}

}  // namespace

std::vector<std::string> tf32_names() { return {kTf32Names.begin(), kTf32Names.end()}; }

std::optional<Tf32> tf32_from_name(std::string_view name) {
  const auto* found = std::ranges::find(kTf32Names, name);
  if (found == kTf32Names.end()) return std::nullopt;
  return static_cast<Tf32>(found - kTf32Names.begin());
}

Runner runner_from_json(std::string_view text, const std::string& where) {
  try {
    return parse(text);
  } catch (const Error& error) {
    throw error.within(where);
  }
}

nlohmann::ordered_json runner_to_json(const Runner& runner) {
  nlohmann::ordered_json json = {{"name", runner.name}, {"description", runner.description}};
  const Runner plain;
  const auto put = [&](const char* section, const char* key, const auto& value, const auto& usual) {
    if (value != usual) json[section][key] = value;
  };
  if (runner.host) {
    const HostCosts& host = *runner.host;
    json["host"] = nlohmann::ordered_json::object();
    put("host", "forward_op", host.forward_op.value, 0.0);
    put("host", "backward_op", host.backward_op.value, 0.0);
    put("host", "convolution_op", host.convolution_op.value, 0.0);
    put("host", "cast", host.cast.value, 0.0);
    put("host", "collective", host.collective.value, 0.0);
    put("host", "micro_batch", host.micro_batch.value, 0.0);
    put("host", "weight", host.weight.value, 0.0);
    put("host", "step", host.step.value, 0.0);
    put("host", "waits_each_pass", host.waits_each_pass, false);
  }
  if (runner.context) json["memory"]["context"] = runner.context->value;
  put("memory", "communicator", runner.communicator.value, plain.communicator.value);
  put("memory", "fragmentation", runner.fragmentation, plain.fragmentation);
  put("memory", "keeps_gradients", runner.keeps_gradients, plain.keeps_gradients);
  put("memory", "ties_have_state", runner.ties_have_state, plain.ties_have_state);
  put("memory", "loss_copies", runner.loss_copies, plain.loss_copies);
  put("memory", "loss_backward_copies", runner.loss_backward_copies, plain.loss_backward_copies);
  put("memory", "update_copies", runner.update_copies, plain.update_copies);
  put("memory", "bucket_copies", runner.bucket_copies, plain.bucket_copies);
  if (runner.library_workspace)
    json["memory"]["library_workspace"] = runner.library_workspace->value;
  if (runner.gradient_dtype) json["numbers"]["gradient_dtype"] = dtype_name(*runner.gradient_dtype);
  if (runner.autocast) json["numbers"]["autocast"] = dtype_name(*runner.autocast);
  put("numbers", "fp32_losses", runner.fp32_losses, plain.fp32_losses);
  if (runner.tf32 != plain.tf32)
    json["numbers"]["tf32"] = kTf32Names[static_cast<size_t>(runner.tf32)];
  put("device", "update_passes", runner.update_passes, plain.update_passes);
  put("device", "compression_passes", runner.compression_passes, plain.compression_passes);
  put("device", "overlaps_reduction", runner.overlaps_reduction, plain.overlaps_reduction);
  put("device", "overlaps_copies", runner.overlaps_copies, plain.overlaps_copies);
  put("device", "copy_share", runner.copy_share, plain.copy_share);
  put("device", "fuses_attention", runner.fuses_attention, plain.fuses_attention);
  put("device", "fuses_tanh_gelu", runner.fuses_tanh_gelu, plain.fuses_tanh_gelu);
  put("device", "fuses_rms_norm", runner.fuses_rms_norm, plain.fuses_rms_norm);
  put("device", "fuses_scores", runner.fuses_scores, plain.fuses_scores);
  json["sources"] = runner.sources;
  return json;
}

Runner find_runner(const std::string& name) {
  std::vector<std::string> names;
  for (const RunnerPreset& preset : runner_presets()) {
    if (preset.name == name) return runner_from_json(preset.text, name);
    names.emplace_back(preset.name);
  }
  std::error_code failed;
  const auto size = std::filesystem::file_size(name, failed);
  std::ifstream stream(name, std::ios::binary);
  if (failed || !stream)
    fail_input("runner \"{}\": it is neither a file nor one of {}{}", printable(name, 60),
               join(names, ", "), did_you_mean(name, names));
  if (static_cast<int64_t>(size) > kMaxRunnerFile) fail_input("{}: too large for a runner", name);
  return runner_from_json({std::string(std::istreambuf_iterator<char>(stream), {})}, name);
}

}  // namespace windlass
