#include "windlass/model/huggingface/config_reader.h"

#include <cmath>
#include <map>

#include "windlass/base/error.h"
#include "windlass/base/json_object.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

using nlohmann::json;

constexpr int64_t kMaxSize = int64_t{1} << 31;
constexpr int64_t kMaxLayers = 2'000;
constexpr int64_t kMaxHeads = 65'536;

std::optional<int64_t> as_integer(const json& value) {
  if (value.is_number_unsigned()) {
    const auto number = value.get<uint64_t>();
    if (number <= static_cast<uint64_t>(INT64_MAX)) return static_cast<int64_t>(number);
    return std::nullopt;
  }
  if (value.is_number_integer()) return value.get<int64_t>();
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::trunc(number) == number && std::abs(number) < 0x1p53)
      return static_cast<int64_t>(number);
  }
  return std::nullopt;
}

double checked_number(std::string_view key, const json& value, double least, double most) {
  const double number = value.is_number() ? value.get<double>() : NAN;
  if (!(number >= least && number <= most))
    fail_input("key \"{}\" is {}, expected a number from {} to {}", key, show_json(value), least,
               most);
  return number;
}

}  // namespace

Activation activation_by_name(const std::string& name) {
  static const std::map<std::string, Activation> kKnown = {
      {"gelu", {UnaryFn::Gelu}},
      {"gelu_python", {UnaryFn::Gelu}},
      {"gelu_new", {UnaryFn::GeluTanh}},
      {"gelu_fast", {UnaryFn::GeluTanh}},
      {"gelu_accurate", {UnaryFn::GeluTanh}},
      {"gelu_pytorch_tanh", {UnaryFn::GeluTanh}},
      {"relu", {UnaryFn::Relu}},
      {"relu6", {UnaryFn::Clip, 0, 6}},
      {"leaky_relu", {UnaryFn::LeakyRelu, 0.01}},
      {"silu", {UnaryFn::Silu}},
      {"swish", {UnaryFn::Silu}},
      {"mish", {UnaryFn::Mish}},
      {"sigmoid", {UnaryFn::Sigmoid}},
      {"tanh", {UnaryFn::Tanh}},
      {"linear", {UnaryFn::Identity}},
  };
  if (const auto found = kKnown.find(name); found != kKnown.end()) return found->second;
  std::vector<std::string> names;
  for (const auto& [known, activation] : kKnown) names.push_back(known);
  fail_unsupported("activation \"{}\" is not known{}; known are {}", name.substr(0, 60),
                   did_you_mean(name, names), join(names, ", "));
}

ConfigReader::ConfigReader(std::string_view json_text) {
  config_ = parse_json(json_text, true);
  if (!config_.is_object()) fail_input("not a config: expected a JSON object at the top");
}

std::optional<ConfigReader::Found> ConfigReader::find_named(Keys keys) const {
  for (const char* key : keys) {
    const auto found = config_.find(key);
    if (found != config_.end() && !found->is_null()) return Found{key, &*found};
  }
  return std::nullopt;
}

const json* ConfigReader::find(Keys keys) const {
  const auto found = find_named(keys);
  return found ? found->value : nullptr;
}

bool ConfigReader::is_null(const char* key) const {
  const auto found = config_.find(key);
  return found != config_.end() && found->is_null();
}

int64_t ConfigReader::integer(Keys keys, int64_t fallback, int64_t least, int64_t most) const {
  const auto found = find_named(keys);
  if (!found) return fallback;
  const auto value = as_integer(*found->value);
  if (!value || *value < least || *value > most)
    fail_input("key \"{}\" is {}, expected a whole number from {} to {}", found->key,
               show_json(*found->value), least, most);
  return *value;
}

int64_t ConfigReader::size(Keys keys, int64_t fallback) const {
  return integer(keys, fallback, 1, kMaxSize);
}

int64_t ConfigReader::layers(Keys keys, int64_t fallback) const {
  return integer(keys, fallback, 1, kMaxLayers);
}

int64_t ConfigReader::heads(Keys keys, int64_t fallback) const {
  return integer(keys, fallback, 1, kMaxHeads);
}

std::optional<int64_t> ConfigReader::optional_size(Keys keys) const {
  if (!has(keys)) return std::nullopt;
  return size(keys, 1);
}

double ConfigReader::number(Keys keys, double fallback, double least, double most) const {
  const auto found = find_named(keys);
  return found ? checked_number(found->key, *found->value, least, most) : fallback;
}

double ConfigReader::dropout(Keys keys, double fallback) const {
  return number(keys, fallback, 0, 0.999999);
}

double ConfigReader::epsilon(Keys keys, double fallback) const {
  return number(keys, fallback, 0, 1);
}

bool ConfigReader::boolean(Keys keys, bool fallback) const {
  const auto found = find_named(keys);
  if (!found) return fallback;
  if (!found->value->is_boolean())
    fail_input("key \"{}\" is {}, expected true or false", found->key, show_json(*found->value));
  return found->value->get<bool>();
}

std::string ConfigReader::text(Keys keys, const std::string& fallback) const {
  const auto found = find_named(keys);
  if (!found) return fallback;
  if (!found->value->is_string())
    fail_input("key \"{}\" is {}, expected a text", found->key, show_json(*found->value));
  return found->value->get<std::string>();
}

Activation ConfigReader::activation(Keys keys, const std::string& fallback) const {
  try {
    return activation_by_name(text(keys, fallback));
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::Unsupported) throw;
    throw error.within(fmt::format("key \"{}\"", find_named(keys)->key));
  }
}

std::optional<std::string> ConfigReader::first_text(const char* key) const {
  const json* value = find({key});
  if (value == nullptr) return std::nullopt;
  if (!value->is_array() || (!value->empty() && !value->front().is_string()))
    fail_input("key \"{}\" is {}, expected a list of texts", key, show_json(*value));
  if (value->empty()) return std::nullopt;
  return value->front().get<std::string>();
}

std::optional<int64_t> ConfigReader::entries(const char* key) const {
  const json* value = find({key});
  if (value == nullptr) return std::nullopt;
  if (!value->is_object())
    fail_input("key \"{}\" is {}, expected an object", key, show_json(*value));
  return static_cast<int64_t>(value->size());
}

double ConfigReader::nested_number(const char* outer, const char* inner, double fallback,
                                   double least, double most) const {
  const json* object = find({outer});
  if (object == nullptr || !object->is_object()) return fallback;
  const auto found = object->find(inner);
  if (found == object->end() || found->is_null()) return fallback;
  return checked_number(fmt::format("{}.{}", outer, inner), *found, least, most);
}

}  // namespace windlass
