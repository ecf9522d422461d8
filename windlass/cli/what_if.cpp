#include "windlass/cli/what_if.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cost/runner.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/zoo.h"
#include "windlass/report/page/page.h"

namespace windlass {
namespace {

using nlohmann::json;
using nlohmann::ordered_json;

constexpr size_t kMostName = 200;      // of a model, a machine or a file
constexpr size_t kMostFile = 1 << 20;  // that is sent along
constexpr int64_t kMostSamples = 1 << 20;

// A method that a user may rule out, and what that is for "windlass plan".
struct Method {
  std::string_view name, words, fixed;
};
constexpr std::array<Method, 8> kMethods = {{
    {"recompute", "recompute activations", "recompute=off"},
    {"offload", "activations to the host", "offload=off"},
    {"zero", "ZeRO", "zero=0"},
    {"host-weights", "weights in host memory", "host-weights=off"},
    {"host-update", "optimizer on the host", "host-update=off"},
    {"tp", "tensor parallel", "tp=1"},
    {"pp", "pipeline", "pp=1"},
    {"micro-batches", "micro-batches", "micro-batches=1"},
}};

std::string text_of(const json& request, const char* key) {
  const auto found = request.find(key);
  if (found == request.end() || found->is_null()) return {};
  if (!found->is_string()) fail_input("{}: expected text", key);
  return found->get<std::string>();
}

// Names are words, never paths: what they may mean is decided by what the program knows.
std::string name_of(const json& request, const char* key, std::string_view more) {
  const std::string text = text_of(request, key);
  const auto allowed = [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           more.find(c) != std::string_view::npos;
  };
  if (text.size() > kMostName || !std::ranges::all_of(text, allowed) ||
      (!text.empty() && (text[0] == '-' || text[0] == '.')))
    fail_input("{}: \"{}\" is no name", key, printable(text, 60));
  return text;
}

std::optional<int64_t> count_of(const json& request, const char* key, int64_t most) {
  const auto found = request.find(key);
  if (found == request.end() || found->is_null()) return std::nullopt;
  if (!found->is_number_integer() || *found < 1 || *found > most)
    fail_input("{}: expected a whole number from 1 to {}", key, most);
  return found->get<int64_t>();
}

// A file that the page sends along: its name for people, and its text.
struct SentFile {
  std::string name, text;
};
std::optional<SentFile> file_of(const json& request, const char* key) {
  const auto found = request.find(key);
  if (found == request.end() || found->is_null()) return std::nullopt;
  if (!found->is_object()) fail_input("{}: expected a file with name and text", key);
  SentFile file = {text_of(*found, "name"), text_of(*found, "text")};
  if (file.name.empty() || file.name.size() > kMostName) fail_input("{}: has no name", key);
  if (file.text.size() > kMostFile)
    fail_input("{}: is larger than {}", printable(file.name, 60), format_bytes(Bytes(kMostFile)));
  const size_t start = file.text.find_first_not_of(" \t\r\n");
  if (start == std::string::npos || file.text[start] != '{')
    fail_input("{}: is no JSON object; config.json of a model, or a machine file",
               printable(file.name, 60));
  return file;
}

// A command line for the shell, and the same with the files where they are.
struct CommandLine {
  std::string shown = "windlass plan";
  std::vector<std::string> arguments = {"answer"};

  void add(const std::string& flag, const std::string& value) {
    if (value.empty()) return;
    shown += fmt::format(" {} {}", flag, shell_word(value));
    arguments.push_back(fmt::format("{}={}", flag, value));
  }
};

void add_methods(const json& request, CommandLine& line) {
  std::string fixed;
  const auto off = request.find("off");
  if (off != request.end() && !off->is_null()) {
    if (!off->is_array() || off->size() > kMethods.size())
      fail_input("off: expected a list of methods");
    for (const Method& method : kMethods)
      if (std::ranges::find(*off, json(method.name)) != off->end())
        fixed += (fixed.empty() ? "" : ",") + std::string(method.fixed);
    for (const json& name : *off)
      if (std::ranges::none_of(kMethods, [&](const Method& method) { return name == method.name; }))
        fail_input("off: there is no such method");
  }
  line.add("--fix", fixed);
  const auto compress = request.find("compress");
  if (compress != request.end() && *compress == true) line.add("--allow", "compress");
}

// Whether it is worth parsing: lists in lists and long ones take far more memory than text.
bool is_small_json(std::string_view text) {
  constexpr int kMostDepth = 4, kMostParts = 256;
  int depth = 0, parts = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMostDepth || ++parts > kMostParts) return false;
    } else if (c == ']' || c == '}') {
      --depth;
    } else if (c == ',' && ++parts > kMostParts) {
      return false;
    }
  }
  return true;
}

}  // namespace

std::string shell_word(std::string_view text) {
  const std::string_view plain = "+,-./:=@_";
  const bool simple = !text.empty() && std::ranges::all_of(text, [&](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
           plain.find(c) != std::string_view::npos;
  });
  if (simple) return std::string(text);
  std::string quoted = "'";
  for (char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

ChildCommand read_what_if(std::string_view body, double most_seconds) {
  if (!is_small_json(body)) fail_input("this is no question that the page would ask");
  const json request = json::parse(body, nullptr, false);
  if (request.is_discarded() || !request.is_object()) fail_input("expected an object of JSON");
  CommandLine line;
  ChildCommand result;
  const auto model_file = file_of(request, "model_file");
  const auto machine_file = file_of(request, "machine_file");
  const std::string model = name_of(request, "model", "._:=,+-");
  if (!model_file && model.empty()) fail_input("model: which one?");
  if (model_file) {
    line.shown += " " + shell_word(printable(model_file->name, kMostName));
    line.arguments.emplace_back("config.json");
    result.files.emplace_back("config.json", model_file->text);
  } else {
    line.shown += " " + shell_word(model);
    line.arguments.push_back(model);
  }
  if (const auto batch = count_of(request, "batch", kMostSamples))
    line.add("--batch", std::to_string(*batch));
  if (const auto sequence = count_of(request, "seq", kMostSamples))
    line.add("--seq", std::to_string(*sequence));
  const std::string machine = name_of(request, "machine", "._*+-");
  if (machine_file) {
    line.shown += " --on " + shell_word(printable(machine_file->name, kMostName));
    line.arguments.emplace_back("--on=machine.json");
    result.files.emplace_back("machine.json", machine_file->text);
  } else if (machine.empty()) {
    fail_input("machine: which one?");
  } else if (machine == "local") {
    fail_input(
        "local: is planned for with \"windlass plan --on local\", which measures kernels here");
  } else {
    line.add("--on", machine);
  }
  line.add("--memory", name_of(request, "memory", ".% "));
  for (const char* key : {"dtype", "optimizer", "runner"}) {
    const std::string value = name_of(request, key, "-");
    // A runner may be a file; the page knows names alone.
    if (std::string_view(key) == "runner" && !value.empty() &&
        std::ranges::none_of(runner_presets(),
                             [&](const RunnerPreset& preset) { return preset.name == value; }))
      fail_input("runner: there is no \"{}\"", value);
    if (value != "adam" && value != "windlass") line.add(fmt::format("--{}", key), value);
  }
  add_methods(request, line);
  const auto seconds = request.find("seconds");
  double limit = 5;
  if (seconds != request.end() && seconds->is_number()) limit = seconds->get<double>();
  if (!(limit >= 0.5 && limit <= most_seconds))
    fail_input("seconds: expected a number from 0.5 to {}", most_seconds);
  line.add("--time-limit", fmt::format("{:g}", limit));
  result.preface =
      json{{"command", line.shown}}.dump(-1, ' ', true, json::error_handler_t::replace);
  result.preface += "\n";
  result.arguments = std::move(line.arguments);
  return result;
}

std::string what_if_page(const std::string& token, double most_seconds) {
  ordered_json data = {{"token", token}, {"most_seconds", most_seconds}, {"models", zoo_names()}};
  for (const MachinePreset& preset : machine_presets()) {
    const Machine machine = load_machine(std::string(preset.name));
    data["machines"].push_back({machine.name, machine.description});
  }
  for (const RunnerPreset& preset : runner_presets()) data["runners"].push_back(preset.name);
  for (const Method& method : kMethods) data["methods"].push_back({method.name, method.words});
  return what_if_html(data);
}

}  // namespace windlass
