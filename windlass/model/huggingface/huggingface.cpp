#include "windlass/model/huggingface/huggingface.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <span>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/model/huggingface/hf_families.h"

namespace windlass {
namespace {

constexpr int64_t kMaxBatch = int64_t{1} << 31;
constexpr int64_t kMaxSequence = int64_t{1} << 22;
constexpr int64_t kMaxImage = int64_t{1} << 16;
constexpr uintmax_t kMaxFileBytes = uintmax_t{8} << 20;

// Endings of class names, longer ones before those they end in. No head: windlass has none like it.
struct HeadName {
  std::string_view ending;
  std::optional<Head> head;
};
constexpr HeadName kHeadNames[] = {
    {"ForCausalLM", Head::LanguageModel},
    {"LMHeadModel", Head::LanguageModel},
    {"ForMaskedLM", Head::MaskedLanguageModel},
    {"ForPreTraining", Head::PreTraining},
    {"ForSequenceClassification", Head::SequenceClassification},
    {"ForTokenClassification", Head::TokenClassification},
    {"ForQuestionAnswering", Head::QuestionAnswering},
    {"ForConditionalGeneration", Head::ConditionalGeneration},
    {"ForImageClassification", Head::ImageClassification},
    {"DoubleHeadsModel", std::nullopt},
    {"EncoderModel", Head::Encoder},
    {"Model", Head::Base},
};

using enum Head;
constexpr std::array kDecoderHeads = {LanguageModel, Base, SequenceClassification,
                                      TokenClassification, QuestionAnswering};
constexpr std::array kDecoderHeadsWithoutAnswers = {LanguageModel, Base, SequenceClassification,
                                                    TokenClassification};
constexpr std::array kDecoderHeadsWithoutTokens = {LanguageModel, Base, SequenceClassification,
                                                   QuestionAnswering};
constexpr std::array kBertHeads = {MaskedLanguageModel,    Base,
                                   LanguageModel,          PreTraining,
                                   SequenceClassification, TokenClassification,
                                   QuestionAnswering};
constexpr std::array kRobertaHeads = {MaskedLanguageModel, Base,
                                      LanguageModel,       SequenceClassification,
                                      TokenClassification, QuestionAnswering};
constexpr std::array kDistilBertHeads = {MaskedLanguageModel, Base, SequenceClassification,
                                         TokenClassification, QuestionAnswering};
constexpr std::array kT5Heads = {ConditionalGeneration, Base, Encoder};
constexpr std::array kVitHeads = {ImageClassification, Base};

// A family windlass knows: `heads` begins with the one meant when the config names none.
struct Family {
  std::string_view model_type;
  FamilyImport import;
  std::span<const Head> heads;
  bool has_image = false;  // image instead of text
};
constexpr Family kFamilies[] = {
    {"bert", import_bert, kBertHeads},
    {"distilbert", import_distilbert, kDistilBertHeads},
    {"falcon", import_falcon, kDecoderHeads},
    {"gemma", import_gemma, kDecoderHeadsWithoutAnswers},
    {"gpt2", import_gpt2, kDecoderHeads},
    {"gpt_neox", import_gpt_neox, kDecoderHeads},
    {"llama", import_llama, kDecoderHeads},
    {"mistral", import_mistral, kDecoderHeads},
    {"mixtral", import_mixtral, kDecoderHeads},
    {"opt", import_opt, kDecoderHeadsWithoutTokens},
    {"phi", import_phi, kDecoderHeadsWithoutAnswers},
    {"qwen2", import_qwen2, kDecoderHeads},
    {"roberta", import_roberta, kRobertaHeads},
    {"t5", import_t5, kT5Heads},
    {"vit", import_vit, kVitHeads, true},
};

const Family& find_family(const ConfigReader& config) {
  std::vector<std::string> known;
  for (const Family& family : kFamilies) known.emplace_back(family.model_type);
  const std::string type = config.text({"model_type"}, "");
  for (const Family& family : kFamilies)
    if (family.model_type == type) return family;
  if (type.empty())
    fail_input("key \"model_type\" is missing; expected one of {}", join(known, ", "));
  fail_unsupported(
      "model_type \"{}\" is not known{}; known are {}; export the model to ONNX instead",
      type.substr(0, 60), did_you_mean(type, known), join(known, ", "));
}

Head find_head(const ConfigReader& config, const Family& family) {
  const auto architecture = config.first_text("architectures");
  if (!architecture) return family.heads.front();
  const auto can_build = [&](const HeadName& name) {
    return name.head && std::ranges::find(family.heads, *name.head) != family.heads.end();
  };
  const auto* found = std::ranges::find_if(
      kHeadNames, [&](const HeadName& name) { return architecture->ends_with(name.ending); });
  if (found != std::end(kHeadNames) && can_build(*found)) return *found->head;
  std::vector<std::string> known;
  for (const HeadName& name : kHeadNames)
    if (can_build(name)) known.push_back(fmt::format("...{}", name.ending));
  fail_unsupported("architecture \"{}\" is not known for model_type \"{}\"; known are {}",
                   architecture->substr(0, 60), family.model_type, join(known, ", "));
}

int64_t label_count(const ConfigReader& config) {
  if (const auto named = config.entries("id2label")) {
    if (*named < 1) fail_input("key \"id2label\" is empty, expected a name for each class");
    return *named;
  }
  return config.size({"num_labels", "_num_labels"}, 2);
}

void check_option(const std::optional<int64_t>& option, std::string_view flag, int64_t most) {
  if (option && (*option < 1 || *option > most))
    fail_input("{} is {}, expected 1 to {}", flag, *option, most);
}

void check_options(const ModelOptions& options, const Family& family) {
  if (family.has_image && options.sequence)
    fail_input("the model has no sequence length; leave --seq out");
  if (!family.has_image && options.image)
    fail_input("the model has no image size; leave --image out");
  if (!options.dimensions.empty())
    fail_input("the model has no dimension called \"{}\"; --dim is for ONNX files",
               options.dimensions.begin()->first);
  check_option(options.batch, "--batch", kMaxBatch);
  check_option(options.sequence, "--seq", kMaxSequence);
  check_option(options.image, "--image", kMaxImage);
}

// What the config calls itself, if that can be shown.
std::string model_name(const ConfigReader& config, const Family& family) {
  const std::string name = config.text({"_name_or_path"}, "");
  const bool is_plain =
      std::ranges::all_of(name, [](unsigned char c) { return c > ' ' && c < 0x7f; });
  return name.empty() || name.size() > 100 || !is_plain ? std::string(family.model_type) : name;
}

void add_notes(const ConfigReader& config, ImportRequest& request) {
  const auto note = [&](std::string text) { request.notes.push_back(std::move(text)); };
  const ModelTask& task = request.task;
  if (task.head == Base || task.head == Encoder)
    note("the architecture has no head: a mean-squared-error loss on its outputs was attached");
  const std::string dtype = config.text({"torch_dtype", "dtype"}, "float32");
  if (!request.options.dtype && dtype != "float32" && dtype != "auto")
    note(fmt::format("the config's torch_dtype is {}; fp32 is assumed, --dtype changes it",
                     dtype.substr(0, 20)));
  if (config.has({"rope_scaling"}))
    note("rope_scaling changes the angles of rotary positions, not the cost; it is left out");
  if (config.has({"quantization_config"})) note("quantization_config is left out");
  if (config.text({"problem_type"}, "") == "multi_label_classification")
    note("problem_type is multi_label_classification; a cross-entropy loss is used in its place");
}

Model import(std::string_view json_text, const ModelOptions& options) {
  const ConfigReader config(json_text);
  const Family& family = find_family(config);
  check_options(options, family);
  ImportRequest request{.name = model_name(config, family),
                        .task = {find_head(config, family), label_count(config)},
                        .options = options,
                        .notes = {}};
  add_notes(config, request);
  Model model{.source = "huggingface", .graph = {}, .notes = {}, .weights = {}};
  model.graph = family.import(config, request);
  if (options.dtype) model.graph = with_dtype(model.graph, *options.dtype);
  model.notes = std::move(request.notes);
  return model;
}

std::string read_text(const std::filesystem::path& path) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error))
    fail_input("no such file; expected a config.json or a folder that holds one");
  if (std::filesystem::file_size(path, error) > kMaxFileBytes || error)
    fail_input("not a config: larger than {} MiB", kMaxFileBytes >> 20);
  std::ifstream file(path, std::ios::binary);
  std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) fail_input("cannot be read");
  return text;
}

}  // namespace

TextSize ImportRequest::text_size(int64_t positions, int64_t usual, bool learned) {
  const int64_t sequence = options.sequence.value_or(std::min(positions, usual));
  if (sequence > positions && learned)
    fail_input("--seq is {}, but the model has {} positions", sequence, positions);
  if (sequence > positions)
    notes.push_back(
        fmt::format("the sequence of {} is longer than the {} positions the config names", sequence,
                    positions));
  return {options.batch.value_or(1), sequence};
}

double rotary_theta(const ConfigReader& config, double fallback) {
  constexpr double kLeast = 1, kMost = 1e15;
  const double nested =
      config.nested_number("rope_parameters", "rope_theta", fallback, kLeast, kMost);
  return config.number({"rope_theta", "rotary_emb_base"}, nested, kLeast, kMost);
}

int64_t rotary_dims(const ConfigReader& config, int64_t head_size, double fallback_part) {
  const double nested =
      config.nested_number("rope_parameters", "partial_rotary_factor", fallback_part, 0, 1);
  const double part = config.number({"rotary_pct", "partial_rotary_factor"}, nested, 0, 1);
  const auto dims = static_cast<int64_t>(static_cast<double>(head_size) * part);
  if (dims < 2 || dims % 2 != 0)
    fail_input("{} of a head of {} is {} rotated dimensions, expected an even number", part,
               head_size, dims);
  return dims;
}

Model model_from_config(std::string_view json_text, const std::string& where,
                        const ModelOptions& options) {
  try {
    return import(json_text, options);
  } catch (const Error& error) {
    throw error.within(where);
  }
}

Model load_huggingface(const std::string& path, const ModelOptions& options) {
  std::filesystem::path file = path;
  std::error_code error;
  if (std::filesystem::is_directory(file, error)) {
    file /= "config.json";
    if (!std::filesystem::exists(file, error))
      fail_input("{}: the folder holds no config.json", path);
  }
  std::string text;
  try {
    text = read_text(file);
  } catch (const Error& failure) {
    throw failure.within(file.string());
  }
  return model_from_config(text, file.string(), options);
}

}  // namespace windlass
