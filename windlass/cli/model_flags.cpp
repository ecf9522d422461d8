#include "windlass/cli/model_flags.h"

#include <charconv>

#include <CLI/CLI.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/number_in.h"

namespace windlass {
namespace {

// Larger counts are slips of the keyboard and would only fail later with a worse message.
constexpr int64_t kMaxDimension = int64_t{1} << 40;

// Zero is allowed: a cache of past tokens is empty in training.
int64_t parse_dimension(std::string_view text, std::string_view flag) {
  int64_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 0 ||
      value > kMaxDimension)
    fail_input("{}: \"{}\" is not a whole number", flag, text);
  return value;
}

}  // namespace

void ModelFlags::add_runner_to(CLI::App& verb) {
  std::vector<std::string> names;
  for (const RunnerPreset& preset : runner_presets()) names.emplace_back(preset.name);
  verb.add_option_function<std::string>(
          "--runner",
          [this](const std::string& name) {
            request.runner = find_runner(name);
            set_training(request.runner, request.training);
          },
          "who carries the step out, which decides what the host costs and what is kept: " +
              join(names, ", ") + ", or a JSON file")
      ->type_name("RUNNER")
      ->default_str("windlass");
  // After --runner, whose value it changes: values are taken in this order.
  verb.add_option_function<std::string>(
          "--tf32",
          [this](const std::string& name) {
            if (is_windlass(request.runner))
              fail_input("--tf32: is a choice of frameworks; give --runner as well");
            const Tf32 tf32 = tf32_from_name(name).value();
            if (tf32 == request.runner.tf32) return;
            request.runner.tf32 = tf32;
            request.runner.name += " (tf32 " + name + ")";
            request.runner.sources["numbers.tf32"] = "--tf32 " + name;
          },
          "fp32 products that the runner computes in tf32, where a device has it: none, those of "
          "convolutions and recurrent layers (what PyTorch does unasked), or all "
          "(set_float32_matmul_precision(\"high\"))")
      ->check(CLI::IsMember(tf32_names()));
}

void ModelFlags::add_to(CLI::App& verb, Runners runners) {
  const CLI::Option* named = verb.add_option(
      "MODEL", request.source,
      "ONNX file, Hugging Face config.json (or its folder), or zoo name such as gpt2-xl "
      "or gpt2:layers=10,hidden=256");
  // A list takes all that follows: what came last is the model, if there is none.
  verb.parse_complete_callback([this, named] {
    if (named->count() > 0) return;
    std::vector<std::string>* list = request.train.empty()    ? &request.freeze
                                     : request.freeze.empty() ? &request.train
                                                              : nullptr;
    if (list == nullptr || list->size() < 2) throw CLI::RequiredError("MODEL");
    request.source = list->back();
    list->pop_back();
  });
  verb.add_option_function<std::string>(
          "--batch",
          [this](const std::string& text) {
            batch_choice = text == "max"    ? BatchChoice::Largest
                           : text == "auto" ? BatchChoice::Fastest
                                            : BatchChoice::Given;
            request.batch.reset();
            if (batch_choice != BatchChoice::Given) return;
            request.batch = parse_dimension(text, "--batch");
            if (request.batch < 1) fail_input("--batch: \"{}\" is not a number from 1", text);
          },
          "samples per step; plan also takes max (the most that fit at once) and auto (the most "
          "samples a second)")
      ->type_name("N");
  verb.add_option("--seq", request.sequence, "tokens per sample")
      ->check(CLI::Range(int64_t{1}, kMaxDimension));
  verb.add_option("--image", request.image, "image height and width in pixels")
      ->check(CLI::Range(int64_t{1}, kMaxDimension));
  verb.add_option("--dim", dimensions, "size of a symbolic dimension of an ONNX file")
      ->type_name("NAME=N")
      ->allow_extra_args(false);
  verb.add_option(
          "--loss", request.loss,
          "loss to attach if the model has none: cross-entropy[:axis=N,ignore=N] (default), "
          "mse, bce (of logits), l1, huber[:delta=X]")
      ->type_name("LOSS");
  verb.add_option_function<std::string>(
          "--dtype", [this](const std::string& name) { request.dtype = dtype_from_name(name); },
          "type of weights and activations")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  verb.add_option_function<std::string>(
          "--gradient-dtype",
          [this](const std::string& name) {
            request.training.gradient_dtype = dtype_from_name(name);
          },
          "type of weight gradients (default: that of the weights)")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  verb.add_option_function<std::string>(
          "--optimizer",
          [this](const std::string& name) {
            request.training.optimizer = optimizer_from_name(name).value();
          },
          "decides the bytes of state per weight")
      ->check(CLI::IsMember({"sgd", "momentum", "adam", "adamw"}))
      ->default_str("adam");
  verb.add_option("--clip", request.training.clip_norm,
                  "largest norm of all gradients together; 0: as they are")
      ->capture_default_str()
      ->check(number_in(0, 1e300));
  verb.add_flag_callback(
      "--no-fuse", [this] { request.fuse = false; },
      "no fused kernels: attention in its parts, an ONNX file's LayerNorm, GELU and SiLU as "
      "they are");
  verb.add_flag("--as-exported", request.as_exported,
                "take an ONNX file exported for inference literally: do not restore batch "
                "normalisation and tables that the exporter folded away");
  verb.add_option("--expert-capacity", request.expert_capacity,
                  "rows of experts in slots, so that experts can be split over devices: how many "
                  "times its\neven share of the rows of a sample an expert has room for; more are "
                  "an error, which\nexperts / choices of a token rules out. Default: plan decides, "
                  "with 1.5")
      ->check(number_in(1, 1e6));
  if (runners == Runners::Any) add_runner_to(verb);
  verb.add_option("--freeze", request.freeze,
                  "weights that are not trained, e.g. 'encoder.*' '*.bias'")
      ->type_name("GLOB...");
  verb.add_option("--train", request.train,
                  "weights that are, against --freeze or where a stored tensor was taken for a "
                  "buffer, e.g. 'pe.table'")
      ->type_name("GLOB...");
  for (CLI::Option* option : verb.get_options())
    if (!option->get_positional() && !option->get_lnames().empty() && option != verb.get_help_ptr())
      option->each([this, name = "--" + option->get_lnames().front()](const std::string&) {
        given.push_back(name);
      });
}

void ModelFlags::refuse_beside_plan() const {
  if (!given.empty())
    fail_input("{}: a plan has its own model and optimizer; leave {} away, or plan again",
               request.source, given.front());
}

ModelRequest ModelFlags::model() const {
  ModelRequest model = request;
  if (batch_choice != BatchChoice::Given && !request.batch)
    fail_input("--batch max and auto are for plan and compare; give a number");
  for (const std::string& dimension : dimensions) {
    const size_t equals = dimension.rfind('=');
    if (equals == std::string::npos || equals == 0)
      fail_input("--dim \"{}\": expected NAME=N", dimension);
    const std::string name = dimension.substr(0, equals);
    const int64_t value = parse_dimension(std::string_view(dimension).substr(equals + 1), "--dim");
    if (!model.dimensions.emplace(name, value).second) fail_input("--dim {} is given twice", name);
  }
  if (!request.loss.empty()) model.loss = format_loss(parse_loss(request.loss));
  return model;
}

Model load_model(const ModelRequest& request) {
  ModelOptions options;
  options.batch = request.batch;
  options.sequence = request.sequence;
  options.image = request.image;
  options.dimensions = request.dimensions;
  if (!request.loss.empty()) options.loss = parse_loss(request.loss);
  options.dtype = weight_dtype(request.runner, request.dtype);
  options.fuse = request.fuse;
  options.as_exported = request.as_exported;
  options.expert_capacity = request.expert_capacity;
  options.freeze = request.freeze;
  options.train = request.train;
  Model model = load_model(request.source, options);
  if (!is_windlass(request.runner))
    model.graph = graph_under(request.runner, model.graph, request.dtype);
  return model;
}

}  // namespace windlass
