#include "windlass/model/zoo.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <set>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

// Beyond these no network is meant, and building the graph would take seconds or gigabytes.
constexpr int64_t kMaxDepth = 2'000;                // layers, blocks, ... together: each adds ops
constexpr int64_t kMaxImage = int64_t{1} << 16;     // pixels a side
constexpr int64_t kMaxSequence = int64_t{1} << 22;  // tokens
constexpr int64_t kMaxSize = int64_t{1} << 31;      // everything else

int64_t largest_value(std::string_view parameter) {
  for (std::string_view word : {"layers", "depth", "blocks", "stages", "repeat"})
    if (parameter.find(word) != std::string_view::npos) return kMaxDepth;
  if (parameter == "image") return kMaxImage;
  if (parameter == "sequence") return kMaxSequence;
  return kMaxSize;
}

// 0 means "off" or "none" where the family or one of its presets says so itself.
int64_t smallest_value(const ZooFamily& family, const std::string& parameter) {
  const auto is_zero = [&](const ZooParameters& values) {
    const auto found = values.find(parameter);
    return found != values.end() && found->second == 0;
  };
  const bool may_be_zero = parameter == "dropout" || is_zero(family.defaults) ||
                           std::ranges::any_of(family.presets, [&](const ZooPreset& preset) {
                             return is_zero(preset.parameters);
                           });
  return may_be_zero ? 0 : 1;
}

std::vector<ZooPreset> presets_of(const ZooFamily& family) {
  std::vector<ZooPreset> presets = family.presets;
  const bool listed = std::ranges::any_of(presets, [&](const ZooPreset& preset) {
    return preset.name == family.name ||
           std::ranges::find(preset.aliases, family.name) != preset.aliases.end();
  });
  if (!listed) presets.push_back({.name = family.name, .parameters = {}});
  return presets;
}

// "ResNet_50", "resnet50" and "resnet-50" are one spelling.
std::string squashed(std::string_view name) {
  std::string result = lower_case(name);
  std::erase_if(result, [](char c) { return c == '-' || c == '_' || c == '/' || c == '.'; });
  return result;
}

struct Match {
  ZooFamily family;
  ZooPreset preset;
};

struct Lookup {
  std::vector<Match> matches;      // the exact name alone, or all that differ in punctuation only
  std::vector<std::string> known;  // every name and alias
};

Lookup look_up(std::string_view name) {
  Lookup result;
  const std::string exact = lower_case(name);
  const std::string loose = squashed(name);
  bool is_exact = false;
  for (const ZooFamily& family : zoo_families()) {
    for (const ZooPreset& preset : presets_of(family)) {
      std::vector<std::string> spellings = preset.aliases;
      spellings.push_back(preset.name);
      result.known.insert(result.known.end(), spellings.begin(), spellings.end());
      if (is_exact) continue;
      if (std::ranges::find(spellings, exact) != spellings.end()) {
        result.matches.clear();
        is_exact = true;
      } else if (loose.empty() || !std::ranges::any_of(spellings, [&](const auto& s) {
                   return squashed(s) == loose;
                 })) {
        continue;
      }
      result.matches.push_back({family, preset});
    }
  }
  return result;
}

std::vector<std::string> names_of(const ZooParameters& parameters) {
  std::vector<std::string> names;
  for (const auto& [name, value] : parameters) names.push_back(name);
  return names;
}

Match resolve(std::string_view name) {
  Lookup found = look_up(name);
  if (found.matches.size() > 1) {
    std::vector<std::string> names;
    for (const Match& match : found.matches) names.push_back(match.preset.name);
    fail_input("could be any of {}; write the hyphens", join(names, ", "));
  }
  if (found.matches.empty()) {
    const std::string hint = did_you_mean(name, found.known);
    if (!hint.empty()) fail_input("no model of the zoo is called \"{}\"{}", name, hint);
    fail_input("no model of the zoo is called \"{}\"; there are {}", name.substr(0, 64),
               join(zoo_names(), ", "));
  }
  return std::move(found.matches.front());
}

int64_t parse_integer(std::string_view text, std::string_view parameter) {
  int64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (error == std::errc::result_out_of_range)
    fail_input("parameter {} is too large: {}", parameter, text.substr(0, 64));
  if (error != std::errc() || stop != end)
    fail_input("parameter {} is \"{}\", expected a whole number", parameter, text.substr(0, 64));
  return value;
}

// What was written after the colon.
ZooParameters parse_parameters(std::string_view text, const ZooFamily& family) {
  ZooParameters given;
  for (std::string_view part : split(text, ',')) {
    const size_t equals = part.find('=');
    if (equals == std::string_view::npos)
      fail_input("\"{}\" is not of the form key=value", part.substr(0, 64));
    std::string key(part.substr(0, equals));
    if (key == "seq") key = "sequence";
    if (!family.defaults.contains(key)) {
      const std::vector<std::string> known = names_of(family.defaults);
      fail_input("has no parameter \"{}\"{}; it takes {}", key.substr(0, 64),
                 did_you_mean(key, known), join(known, ", "));
    }
    if (!given.emplace(key, parse_integer(part.substr(equals + 1), key)).second)
      fail_input("parameter {} is given twice", key);
  }
  return given;
}

void apply_option(const std::optional<int64_t>& option, const std::string& parameter,
                  std::string_view flag, std::string_view dimension, const ZooFamily& family,
                  ZooParameters& given) {
  if (!option) return;
  if (!family.defaults.contains(parameter))
    fail_input("the model has no {}; leave {} out", dimension, flag);
  const auto [found, is_new] = given.emplace(parameter, *option);
  if (!is_new && found->second != *option)
    fail_input("{} {} contradicts {}={}; give one of them", flag, *option, parameter,
               found->second);
}

void check_range(const ZooFamily& family, const ZooParameters& given) {
  for (const auto& [key, value] : given) {
    const int64_t least = smallest_value(family, key), most = largest_value(key);
    if (value < least || value > most)
      fail_input("parameter {} is {}, expected {} to {}", key, value, least, most);
  }
}

void check_depth(const ZooParameters& parameters) {
  int64_t depth = 0;
  for (const auto& [key, value] : parameters)
    if (largest_value(key) == kMaxDepth) depth += value;
  if (depth > kMaxDepth)
    fail_input("the network is {} layers or blocks deep, expected at most {}", depth, kMaxDepth);
}

Graph build(Match match, std::string_view parameter_text, const ModelOptions& options) {
  const ZooFamily& family = match.family;
  ZooParameters given = parse_parameters(parameter_text, family);
  apply_option(options.batch, "batch", "--batch", "batch", family, given);
  apply_option(options.sequence, "sequence", "--seq", "sequence length", family, given);
  apply_option(options.image, "image", "--image", "image size", family, given);
  if (!options.dimensions.empty())
    fail_input("the model has no dimension called \"{}\"; --dim is for ONNX files",
               options.dimensions.begin()->first);
  check_range(family, given);

  ZooParameters parameters = family.defaults;
  for (const auto& [key, value] : match.preset.parameters) parameters[key] = value;
  std::string name = match.preset.name;
  char separator = ':';
  for (const auto& [key, value] : given) {
    parameters[key] = value;
    name += fmt::format("{}{}={}", std::exchange(separator, ','), key, value);
  }
  check_depth(parameters);
  Graph graph = family.build(name, parameters);
  return options.dtype ? with_dtype(graph, *options.dtype) : graph;
}

}  // namespace

std::vector<std::string> zoo_names() {
  std::set<std::string> names;
  for (const ZooFamily& family : zoo_families())
    for (const ZooPreset& preset : presets_of(family)) names.insert(preset.name);
  return {names.begin(), names.end()};
}

bool is_zoo_name(std::string_view name) {
  return !look_up(name.substr(0, name.find(':'))).matches.empty();
}

Graph build_zoo_model(const std::string& name, const ModelOptions& options) {
  try {
    const std::string_view text = name;
    const size_t colon = text.find(':');
    Match match = resolve(text.substr(0, colon));
    const bool has_parameters = colon != std::string_view::npos;
    return build(std::move(match), has_parameters ? text.substr(colon + 1) : "", options);
  } catch (const Error& error) {
    throw error.within(name.substr(0, 200));
  }
}

}  // namespace windlass
