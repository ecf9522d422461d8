#include "windlass/export/torch_names.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace windlass {

std::string python_text(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

std::string identifier(std::string_view name) {
  std::string text;
  for (char c : name)
    text += (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ? c : '_';
  if (text.empty() || (text[0] >= '0' && text[0] <= '9')) text.insert(0, "v_");
  static const std::set<std::string> kWords = {
      "False",    "None",   "True",       "and",       "as",       "assert",    "async",
      "await",    "break",  "class",      "continue",  "def",      "del",       "elif",
      "else",     "except", "finally",    "for",       "from",     "global",    "if",
      "import",   "in",     "is",         "lambda",    "nonlocal", "not",       "or",
      "pass",     "raise",  "return",     "try",       "while",    "with",      "yield",
      "self",     "torch",  "F",          "nn",        "math",     "attention", "rotary",
      "rms_norm", "gather", "batch_norm", "recurrent", "DEVICE",   "route",     "grouped_linear"};
  return kWords.contains(text) ? text + "_" : text;
}

std::string last_part(std::string_view name) {
  const size_t cut = name.find_last_of("./");
  return std::string(cut == std::string_view::npos ? name : name.substr(cut + 1));
}

std::string Names::fresh(const std::string& wanted) {
  std::string name = wanted;
  for (int i = 2; !used_.insert(name).second; ++i) name = fmt::format("{}_{}", wanted, i);
  return name;
}

std::string shape_text(const Shape& shape) {
  std::string text;
  for (int64_t size : shape) text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  return shape.size() == 1 ? "(" + text + ",)" : "(" + text + ")";
}

}  // namespace windlass
