#include <array>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/base/version.h"
#include "windlass/report/page/page.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;

std::string_view file_of(std::string_view name) {
  for (const PageFile& file : page_files())
    if (file.name == name) return file.text;
  ensure(false, "the program lacks a file of the page");
  return {};
}

// `{{name}}` of the frame; each occurs once, and what is put in is not looked at again.
std::string filled(std::string_view frame,
                   const std::vector<std::pair<std::string, std::string>>& values) {
  std::string text;
  while (true) {
    const size_t begin = frame.find("{{");
    const size_t end = frame.find("}}", begin);
    if (begin == std::string_view::npos || end == std::string_view::npos) break;
    text += frame.substr(0, begin);
    const std::string_view name = frame.substr(begin + 2, end - begin - 2);
    for (const auto& [key, value] : values)
      if (key == name) text += value;
    frame.remove_prefix(end + 2);
  }
  return text.append(frame);
}

constexpr std::array kChartScripts = {"format.js", "charts.js",   "methods.js",
                                      "memory.js", "timeline.js", "timeline_input.js",
                                      "tables.js", "sections.js"};

// One of the pages: what sets it apart from the other.
struct PageParts {
  std::string title, name, what;  // "gpt2-xl on 4x3090", "report", what a reader skips to
  std::string policy = {};        // what it may do beyond nothing
  std::string verdict = {};
  std::string_view content, script, more_style = {};
};

std::string framed(const PageParts& page, const ordered_json& data) {
  std::string scripts;
  for (std::string_view name : kChartScripts) scripts += file_of(name);
  scripts += file_of(page.script);
  std::string style(file_of("page.css"));
  if (!page.more_style.empty()) style += file_of(page.more_style);
  const std::string answer =
      filled(file_of("answer.html"), {{"verdict", escape_html(page.verdict)}});
  return filled(file_of("frame.html"),
                {{"policy", page.policy},
                 {"title", escape_html(page.title)},
                 {"style", style},
                 {"what", page.what},
                 {"name", page.name},
                 {"content", filled(file_of(page.content), {{"answer", answer}})},
                 {"data", script_json(data)},
                 {"script", scripts}});
}

}  // namespace

std::string escape_html(std::string_view text) {
  std::string escaped;
  for (char c : printable(text)) switch (c) {
      case '&': escaped += "&amp;"; break;
      case '<': escaped += "&lt;"; break;
      case '>': escaped += "&gt;"; break;
      case '"': escaped += "&quot;"; break;
      case '\'': escaped += "&#39;"; break;
      default: escaped += c;
    }
  return escaped;
}

std::string script_json(const ordered_json& json) {
  // Beyond ASCII everything is \uXXXX, which spares thinking about line separators.
  const std::string text = json.dump(-1, ' ', true, ordered_json::error_handler_t::replace);
  std::string escaped;
  escaped.reserve(text.size() + 64);
  for (char c : text) switch (c) {
      case '<': escaped += "\\u003c"; break;
      case '>': escaped += "\\u003e"; break;
      case '&': escaped += "\\u0026"; break;
      default: escaped += c;
    }
  return escaped;
}

std::string page_html(const ordered_json& plans, const std::optional<ordered_json>& run) {
  ordered_json data = {{"windlass", kVersion}, {"plans", plans}};
  if (run) data["run"] = *run;
  const auto& first = plans.at(0);
  return framed({.title = first.at("title").get<std::string>(),
                 .name = "report",
                 .what = "report",
                 .verdict = first.at("verdict").get<std::string>(),
                 .content = "page.html",
                 .script = "page.js"},
                data);
}

std::string what_if_html(const ordered_json& data) {
  return framed({.title = "What if?",
                 .name = "what if?",
                 .what = "answer",
                 .policy = "connect-src 'self'; ",
                 .content = "what_if.html",
                 .script = "what_if.js",
                 .more_style = "what_if.css"},
                data);
}

}  // namespace windlass
