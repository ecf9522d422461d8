// Typed access to a Hugging Face config: defaults, ranges, and messages that name the key.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

#include "windlass/graph/attributes.h"

namespace windlass {

// An activation function as `transformers` names them ("gelu_new", "silu", ...).
struct Activation {
  UnaryFn fn = UnaryFn::Gelu;
  double alpha = 0;
  double beta = 0;
};

// Throws Error{Unsupported} with the known names.
Activation activation_by_name(const std::string& name);

// Names by which a config may give a value; the first one present counts.
using Keys = std::initializer_list<const char*>;

// The top-level object of a config. A key that is absent or null takes the default. Everything else
// that is not of the expected type or range throws Error{Input} naming the key.
class ConfigReader {
 public:
  // Parses the text; refuses deep nesting before it does.
  explicit ConfigReader(std::string_view json_text);

  bool has(Keys keys) const { return find(keys) != nullptr; }
  // Whether the key is there with the value null, which for some keys differs from absence.
  bool is_null(const char* key) const;

  // A size: 1 to 2^31. Layers and heads are bounded by what is sensible to build.
  int64_t size(Keys keys, int64_t fallback) const;
  int64_t layers(Keys keys, int64_t fallback) const;
  int64_t heads(Keys keys, int64_t fallback) const;
  std::optional<int64_t> optional_size(Keys keys) const;
  int64_t integer(Keys keys, int64_t fallback, int64_t least, int64_t most) const;
  double number(Keys keys, double fallback, double least, double most) const;
  double dropout(Keys keys, double fallback) const;  // 0 up to, not including, 1
  double epsilon(Keys keys, double fallback) const;
  bool boolean(Keys keys, bool fallback) const;
  std::string text(Keys keys, const std::string& fallback) const;
  Activation activation(Keys keys, const std::string& fallback) const;
  // First element of a list of texts, or nothing.
  std::optional<std::string> first_text(const char* key) const;
  // Number of entries of an object, or nothing.
  std::optional<int64_t> entries(const char* key) const;
  // The number `inner` of the object `outer`.
  double nested_number(const char* outer, const char* inner, double fallback, double least,
                       double most) const;

 private:
  struct Found {
    const char* key;
    const nlohmann::json* value;
  };
  const nlohmann::json* find(Keys keys) const;
  std::optional<Found> find_named(Keys keys) const;

  nlohmann::json config_;
};

}  // namespace windlass
