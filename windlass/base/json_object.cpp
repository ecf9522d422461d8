#include "windlass/base/json_object.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <vector>

#include "windlass/base/error.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

using nlohmann::json;

constexpr int kMaxNesting = 64;

// Depth is checked on the text: the parser itself would recurse.
void check_nesting(std::string_view text) {
  int depth = 0;
  bool in_text = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_text) {
      if (c == '\\') ++i;
      in_text = c != '"';
    } else if (c == '"') {
      in_text = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMaxNesting)
        fail_input("not plausible JSON: nested more than {} deep", kMaxNesting);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
}

// What nlohmann says without its own prefix: "[json.exception.parse_error.101] parse error at line
// 1, ...".
std::string without_prefix(std::string message) {
  const size_t end = message.find("] ");
  return end == std::string::npos ? message : message.substr(end + 2);
}

// Stops at the first key that its object has already.
struct RepeatedKey final : nlohmann::json_sax<json> {
  std::optional<std::string> repeated;

  bool start_object(size_t) override {
    open_.emplace_back();
    return true;
  }
  bool end_object() override {
    open_.pop_back();
    return true;
  }
  bool key(string_t& name) override {
    if (open_.back().insert(name).second) return true;
    repeated = name;
    return false;
  }
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const json::exception&) override { return false; }

 private:
  std::vector<std::set<std::string>> open_;
};

}  // namespace

json parse_json(std::string_view text, bool allow_repeated_keys) {
  check_nesting(text);
  json result;
  // Without a callback: with one, the parser looks at all elements of an array after each of them.
  try {
    result = json::parse(text.begin(), text.end());
  } catch (const json::exception& error) {
    fail_input("not valid JSON: {}", without_prefix(error.what()));
  }
  if (allow_repeated_keys) return result;
  RepeatedKey finder;
  json::sax_parse(text.begin(), text.end(), &finder);
  if (finder.repeated) fail_input("key \"{}\" is given twice", *finder.repeated);
  return result;
}

std::string show_json(const json& value) {
  std::string text = value.dump(-1, ' ', true, json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

JsonObject::JsonObject(const json& value, std::string where)
    : value_(&value), where_(std::move(where)) {
  if (!value.is_object())
    fail_input("{} is {}, expected an object {{...}}", where_.empty() ? "the document" : where_,
               show_json(value));
}

std::string JsonObject::place(const std::string& key) const {
  return where_.empty() ? fmt::format("\"{}\"", key) : fmt::format("{}: \"{}\"", where_, key);
}

const json* JsonObject::find(const std::string& key) {
  known_.push_back(key);
  const auto found = value_->find(key);
  return found == value_->end() || found->is_null() ? nullptr : &*found;
}

const json& JsonObject::require(const std::string& key) {
  const json* found = find(key);
  if (!found) {
    finish();  // a misspelt key explains more than a missing one
    fail_input("{} is missing", place(key));
  }
  return *found;
}

bool JsonObject::has(const std::string& key) { return find(key) != nullptr; }

std::string JsonObject::text(const std::string& key) {
  const json& value = require(key);
  if (!value.is_string()) fail_input("{} is {}, expected a text", place(key), show_json(value));
  return value.get<std::string>();
}

std::string JsonObject::text(const std::string& key, std::string fallback) {
  return has(key) ? text(key) : fallback;
}

int64_t JsonObject::integer(const std::string& key, int64_t least, int64_t most) {
  const json& value = require(key);
  const bool whole =
      value.is_number_integer() &&
      !(value.is_number_unsigned() && value.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX));
  const int64_t number = whole ? value.get<int64_t>() : least - 1;
  if (!whole || number < least || number > most)
    fail_input("{} is {}, expected a whole number from {} to {}", place(key), show_json(value),
               least, most);
  return number;
}

int64_t JsonObject::integer(const std::string& key, int64_t fallback, int64_t least, int64_t most) {
  return has(key) ? integer(key, least, most) : fallback;
}

double JsonObject::number(const std::string& key, double fallback, double least, double most) {
  const json* value = find(key);
  if (!value) return fallback;
  const double number = value->is_number() ? value->get<double>() : NAN;
  if (!(number >= least && number <= most))
    fail_input("{} is {}, expected a number from {} to {}", place(key), show_json(*value), least,
               most);
  return number;
}

bool JsonObject::boolean(const std::string& key, bool fallback) {
  const json* value = find(key);
  if (!value) return fallback;
  if (!value->is_boolean())
    fail_input("{} is {}, expected true or false", place(key), show_json(*value));
  return value->get<bool>();
}

namespace {

// A positive quantity as number in base units or as text with a unit.
template <typename Parse>
auto quantity(const json& value, const std::string& place, Parse parse) {
  try {
    if (value.is_string()) return parse(value.get<std::string>());
    if (value.is_number()) return parse(value.dump());
  } catch (const Error& error) {
    throw error.within(place);
  }
  fail_input("{} is {}, expected a quantity such as \"11GiB\"", place, show_json(value));
}

}  // namespace

Bytes JsonObject::bytes(const std::string& key) {
  return quantity(require(key), place(key), parse_bytes);
}
Bytes JsonObject::bytes(const std::string& key, Bytes fallback) {
  return has(key) ? bytes(key) : fallback;
}
BytesPerSecond JsonObject::bandwidth(const std::string& key) {
  return quantity(require(key), place(key), parse_bandwidth);
}
FlopsPerSecond JsonObject::flops_rate(const std::string& key) {
  return quantity(require(key), place(key), parse_flops_rate);
}
Seconds JsonObject::seconds(const std::string& key, Seconds fallback) {
  return has(key) ? quantity(require(key), place(key), parse_seconds) : fallback;
}

std::vector<std::string> JsonObject::texts(const std::string& key) {
  const json& value = require(key);
  std::vector<std::string> result;
  if (value.is_array())
    for (const json& entry : value)
      if (entry.is_string()) result.push_back(entry.get<std::string>());
  if (!value.is_array() || result.size() != value.size())
    fail_input("{} is {}, expected a list of texts", place(key), show_json(value));
  return result;
}

std::optional<JsonObject> JsonObject::object(const std::string& key) {
  const json* value = find(key);
  if (!value) return std::nullopt;
  return JsonObject(*value, where_.empty() ? key : fmt::format("{}.{}", where_, key));
}

std::vector<JsonObject> JsonObject::objects(const std::string& key) {
  const json* value = find(key);
  if (!value) return {};
  if (!value->is_array())
    fail_input("{} is {}, expected a list [...]", place(key), show_json(*value));
  std::vector<JsonObject> result;
  for (size_t i = 0; i < value->size(); ++i)
    result.emplace_back((*value)[i],
                        fmt::format("{}{}{}[{}]", where_, where_.empty() ? "" : ".", key, i));
  return result;
}

std::vector<std::string> JsonObject::keys() {
  std::vector<std::string> result;
  for (const auto& entry : value_->items()) result.push_back(entry.key());
  known_.insert(known_.end(), result.begin(), result.end());
  return result;
}

void JsonObject::finish() const {
  for (const auto& entry : value_->items()) {
    if (std::find(known_.begin(), known_.end(), entry.key()) != known_.end()) continue;
    std::vector<std::string> known = known_;
    std::sort(known.begin(), known.end());
    known.erase(std::unique(known.begin(), known.end()), known.end());
    fail_input("{} is not a known key{}; known here: {}", place(entry.key()),
               did_you_mean(entry.key(), known), join(known, ", "));
  }
}

}  // namespace windlass
