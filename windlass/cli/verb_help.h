// What --help knows, as data: completions of shells and man pages are made of the same text.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace windlass {

struct OptionHelp {
  std::vector<std::string> names;  // "-o", "--output"; of a positional its one name
  bool positional = false;
  bool takes_value = false;
  std::string value = {};                 // what kind: "PLAN", "INT in [1 - 9]"
  std::string words = {}, usual = {};     // description, default
  std::vector<std::string> choices = {};  // the values there are, or those a shell should offer
  bool file = false;                      // a shell offers files beside
};

struct VerbHelp {
  std::string name;  // "plan", "machine show"
  std::string description, footer;
  std::vector<OptionHelp> options;
};

// Every verb that is listed, in its order, those within verbs after them.
std::vector<VerbHelp> verbs_of(const CLI::App& program);

// "windlass completion bash|zsh|fish": a script for the shell.
std::string completion_text(const std::vector<VerbHelp>& verbs, const std::string& shell);
// "windlass man [VERB]": roff. `program` describes the program as a whole.
std::string man_text(const std::vector<VerbHelp>& verbs, const VerbHelp& shown);
std::string man_text_of_program(const CLI::App& program, const std::vector<VerbHelp>& verbs);

}  // namespace windlass
