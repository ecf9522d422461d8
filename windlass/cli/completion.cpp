// Completions of bash, zsh and fish: all words are in the script, nothing is asked while typing.

#include <algorithm>

#include <fmt/format.h>

#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/verb_help.h"

namespace windlass {
namespace {

std::vector<std::string> top_verbs(const std::vector<VerbHelp>& verbs) {
  std::vector<std::string> names;
  for (const VerbHelp& verb : verbs)
    if (verb.name.find(' ') == std::string::npos) names.push_back(verb.name);
  return names;
}

// Words of verbs within this one: "machine" has list, show, probe.
std::vector<std::string> inner_verbs(const std::vector<VerbHelp>& verbs, const VerbHelp& outer) {
  std::vector<std::string> names;
  for (const VerbHelp& verb : verbs)
    if (verb.name.starts_with(outer.name + " "))
      names.push_back(verb.name.substr(outer.name.size() + 1));
  return names;
}

std::vector<std::string> positional_choices(const VerbHelp& verb) {
  for (const OptionHelp& option : verb.options)
    if (option.positional) return option.choices;
  return {};
}

// First sentence, without line ends.
std::string short_words(std::string_view text) {
  std::string words;
  for (char c : text.substr(0, text.find('\n'))) words += c;
  const size_t end = words.find_first_of(";:");
  return words.substr(0, std::min(end, size_t{70}));
}

std::string quoted_with(std::string_view text, std::string_view special) {
  std::string quoted;
  for (char c : text) {
    if (c == '\'')
      quoted += "'\\''";
    else if (special.find(c) != std::string_view::npos)
      quoted += fmt::format("\\{}", c);
    else
      quoted += c;
  }
  return quoted;
}

std::string bash_text(const std::vector<VerbHelp>& verbs) {
  std::string values, words;
  for (const VerbHelp& verb : verbs) {
    std::vector<std::string> flags;
    for (const OptionHelp& option : verb.options) {
      if (option.positional) continue;
      flags.insert(flags.end(), option.names.begin(), option.names.end());
      if (!option.takes_value) continue;
      for (const std::string& name : option.names)
        values +=
            fmt::format("    '{} {}') words='{}' ;;\n", verb.name, name, join(option.choices, " "));
    }
    std::vector<std::string> plain = inner_verbs(verbs, verb);
    for (const std::string& choice : positional_choices(verb)) plain.push_back(choice);
    words += fmt::format("    '{}') flags='{}' plain='{}' ;;\n", verb.name, join(flags, " "),
                         join(plain, " "));
  }
  return fmt::format(R"(# bash completion of windlass: source <(windlass completion bash)
_windlass() {{
  local current="${{COMP_WORDS[COMP_CWORD]}}" verb="${{COMP_WORDS[1]}}" words='?' flags='' plain=''
  COMPREPLY=()
  if ((COMP_CWORD == 1)); then
    COMPREPLY=($(compgen -W '{} --help --version' -- "$current"))
    return
  fi
  case "$verb ${{COMP_WORDS[2]}}" in
{}  esac
  case "$verb ${{COMP_WORDS[COMP_CWORD-1]}}" in
{}  esac
  if [[ $words != '?' ]]; then
    COMPREPLY=($(compgen -W "$words" -- "$current"))
    return
  fi
  case "$verb" in
{}  esac
  if [[ $current == -* ]]; then
    COMPREPLY=($(compgen -W "$flags" -- "$current"))
  else
    COMPREPLY=($(compgen -W "$plain" -- "$current"))
  fi
}}
complete -o default -F _windlass windlass
)",
                     join(top_verbs(verbs), " "),
                     [&] {
                       std::string inner;
                       for (const VerbHelp& verb : verbs)
                         if (verb.name.find(' ') != std::string::npos)
                           inner += fmt::format("    '{}') ((COMP_CWORD > 2)) && verb='{}' ;;\n",
                                                verb.name, verb.name);
                       return inner;
                     }(),
                     values, words);
}

std::string zsh_arguments(const VerbHelp& verb, const std::vector<std::string>& inner) {
  std::string text;
  const std::string_view special = "[]:\\";
  for (const OptionHelp& option : verb.options) {
    const std::string choices = join(option.choices, " ");
    std::string action =
        ":" + quoted_with(option.value.substr(0, option.value.find(':')), special) + ":";
    if (!option.choices.empty() && option.file)
      action += fmt::format("{{_values value {} ; _files}}", choices);
    else if (!option.choices.empty())
      action += fmt::format("({})", choices);
    else if (option.file)
      action += "_files";
    if (option.positional) continue;
    for (const std::string& name : option.names)
      text += fmt::format(" \\\n        '{}[{}]{}'", name,
                          quoted_with(short_words(option.words), special),
                          option.takes_value ? action : "");
  }
  const auto plain = positional_choices(verb);
  if (!inner.empty())
    text += fmt::format(" \\\n        '1:what:({})'", join(inner, " "));
  else if (!plain.empty())
    text +=
        fmt::format(" \\\n        '*:name or file:{{compadd -- {} ; _files}}'", join(plain, " "));
  else
    text += " \\\n        '*:file:_files'";
  return text;
}

std::string zsh_text(const std::vector<VerbHelp>& verbs) {
  std::string described, cases;
  for (const VerbHelp& verb : verbs) {
    if (verb.name.find(' ') != std::string::npos) continue;
    described += fmt::format("    '{}:{}'\n", verb.name, quoted_with(verb.description, ":"));
    cases += fmt::format("    {})\n      _arguments -S{} ;;\n", verb.name,
                         zsh_arguments(verb, inner_verbs(verbs, verb)));
  }
  return fmt::format(R"(#compdef windlass
# zsh completion of windlass: windlass completion zsh > a folder of fpath/_windlass
_windlass() {{
  local -a verbs
  verbs=(
{}  )
  if ((CURRENT == 2)); then
    _describe verb verbs
    return
  fi
  local verb=$words[2]
  shift words
  ((CURRENT--))
  case $verb in
{}  esac
}}
if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
  _windlass "$@"
else
  compdef _windlass windlass
fi
)",
                     described, cases);
}

std::string fish_text(const std::vector<VerbHelp>& verbs) {
  std::string text =
      "# fish completion of windlass: windlass completion fish > "
      "~/.config/fish/completions/windlass.fish\n";
  for (const VerbHelp& verb : verbs) {
    const size_t space = verb.name.find(' ');
    const std::string last = space == std::string::npos ? verb.name : verb.name.substr(space + 1);
    const std::string seen =
        fmt::format("__fish_seen_subcommand_from {}", verb.name.substr(0, space));
    text += fmt::format("complete -c windlass -n '{}' -a {} -d '{}'\n",
                        space == std::string::npos ? "__fish_use_subcommand" : seen, last,
                        quoted_with(verb.description, "\\"));
    for (const OptionHelp& option : verb.options) {
      if (option.positional) {
        if (!option.choices.empty())
          text += fmt::format("complete -c windlass -n '{}' -a '{}'\n", seen,
                              join(option.choices, " "));
        continue;
      }
      text += fmt::format("complete -c windlass -n '{}'", seen);
      for (const std::string& name : option.names)
        text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
      if (option.takes_value) text += option.file || option.choices.empty() ? " -r" : " -x";
      if (!option.choices.empty()) text += fmt::format(" -a '{}'", join(option.choices, " "));
      text += fmt::format(" -d '{}'\n", quoted_with(short_words(option.words), "\\"));
    }
  }
  return text;
}

}  // namespace

std::string completion_text(const std::vector<VerbHelp>& verbs, const std::string& shell) {
  if (shell == "bash") return bash_text(verbs);
  if (shell == "zsh") return zsh_text(verbs);
  ensure(shell == "fish", "the flag knows the shells");
  return fish_text(verbs);
}

}  // namespace windlass
