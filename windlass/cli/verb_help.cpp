#include "windlass/cli/verb_help.h"

#include <algorithm>

#include <CLI/CLI.hpp>

#include "windlass/cost/runner.h"
#include "windlass/machine/read_machine.h"
#include "windlass/model/zoo.h"

namespace windlass {
namespace {

// "TEXT:{fp32,bf16}" has its values between braces.
std::vector<std::string> values_in_braces(const std::string& type) {
  std::vector<std::string> list;
  const size_t begin = type.find('{'), end = type.find('}', begin);
  if (begin == std::string::npos || end == std::string::npos) return list;
  size_t at = begin + 1;
  while (at < end) {
    const size_t comma = std::min(type.find(',', at), end);
    list.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return list;
}

void offer_values(OptionHelp& help) {
  help.choices = values_in_braces(help.value);
  const std::string& name = help.names.back();
  if (help.positional && name == "MODEL") help.choices = zoo_names();
  if (help.value == "MACHINE" || name == "MACHINE") {
    for (const MachinePreset& preset : machine_presets()) help.choices.emplace_back(preset.name);
    help.choices.emplace_back("local");
  }
  if (help.value == "RUNNER")
    for (const RunnerPreset& preset : runner_presets()) help.choices.emplace_back(preset.name);
  constexpr const char* kFiles[] = {"MODEL",   "PLAN",   "FILE",  "FOLDER",
                                    "MACHINE", "RUNNER", "SOURCE"};
  help.file = std::ranges::any_of(kFiles, [&](const char* word) {
    return help.value.starts_with(word) || (help.positional && name.starts_with(word));
  });
}

VerbHelp help_of_verb(const CLI::App& verb, const std::string& name) {
  VerbHelp help = {.name = name,
                   .description = verb.get_description(),
                   .footer = verb.get_footer(),
                   .options = {}};
  for (const CLI::Option* option : verb.get_options()) {
    if (option->get_group().empty()) continue;
    OptionHelp entry;
    entry.positional = option->get_positional();
    if (entry.positional) {
      entry.names = {option->get_name(true)};
    } else {
      for (const std::string& letter : option->get_snames()) entry.names.push_back("-" + letter);
      for (const std::string& word : option->get_lnames()) entry.names.push_back("--" + word);
    }
    entry.takes_value = option->get_type_size() != 0;
    if (entry.takes_value) entry.value = option->get_type_name();
    entry.words = option->get_description();
    entry.usual = option->get_default_str();
    offer_values(entry);
    help.options.push_back(std::move(entry));
  }
  return help;
}

void add_verbs(const CLI::App& from, const std::string& before, std::vector<VerbHelp>& list) {
  for (const CLI::App* verb : from.get_subcommands({})) {
    if (verb->get_group().empty()) continue;
    const std::string name = before.empty() ? verb->get_name() : before + " " + verb->get_name();
    list.push_back(help_of_verb(*verb, name));
    add_verbs(*verb, name, list);
  }
}

}  // namespace

std::vector<VerbHelp> verbs_of(const CLI::App& program) {
  std::vector<VerbHelp> list;
  add_verbs(program, "", list);
  return list;
}

}  // namespace windlass
