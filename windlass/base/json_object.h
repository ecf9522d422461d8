// Strict reading of JSON that people write: every key is asked for, and what nobody asked for is an
// error that names the nearest known key.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "windlass/base/units.h"

namespace windlass {

// Parses text. Refuses nesting deeper than 64 and, unless allowed, repeated keys (of which the last
// would count). Throws Error{Input} with line and column.
nlohmann::json parse_json(std::string_view text, bool allow_repeated_keys = false);

// A JSON value as it can be shown in a message: one line, not too long.
std::string show_json(const nlohmann::json& value);

// One object of a document. `where` begins messages ("devices[2]"). Quantities may be numbers in
// base units or texts in human units. Call finish() after the last read.
class JsonObject {
 public:
  // Throws Error{Input} unless `value` is an object.
  JsonObject(const nlohmann::json& value, std::string where);

  const std::string& where() const { return where_; }
  bool has(const std::string& key);

  // Value of a key that must be there, or `fallback`. Wrong types and ranges throw Error{Input}.
  std::string text(const std::string& key);
  std::string text(const std::string& key, std::string fallback);
  int64_t integer(const std::string& key, int64_t least, int64_t most);
  int64_t integer(const std::string& key, int64_t fallback, int64_t least, int64_t most);
  double number(const std::string& key, double fallback, double least, double most);
  bool boolean(const std::string& key, bool fallback);
  Bytes bytes(const std::string& key);
  Bytes bytes(const std::string& key, Bytes fallback);
  BytesPerSecond bandwidth(const std::string& key);
  FlopsPerSecond flops_rate(const std::string& key);
  Seconds seconds(const std::string& key, Seconds fallback);
  std::vector<std::string> texts(const std::string& key);

  // An object or the objects of a list; empty if absent.
  std::optional<JsonObject> object(const std::string& key);
  std::vector<JsonObject> objects(const std::string& key);
  // Keys of this object in the order of the file, all counted as known.
  std::vector<std::string> keys();

  // Throws Error{Input} if a key was never asked for.
  void finish() const;

 private:
  const nlohmann::json* find(const std::string& key);
  const nlohmann::json& require(const std::string& key);
  std::string place(const std::string& key) const;

  const nlohmann::json* value_;
  std::string where_;
  std::vector<std::string> known_;
};

}  // namespace windlass
