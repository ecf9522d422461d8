// `windlass completion` and `windlass man`: the program at home in a shell.

#include <filesystem>
#include <memory>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/atomic_file.h"
#include "windlass/base/error.h"
#include "windlass/base/text.h"
#include "windlass/cli/cli.h"
#include "windlass/cli/verb_help.h"

namespace windlass {
namespace {

struct ShellFlags {
  std::string shell, verb, folder;
};

void write_page(const std::filesystem::path& path, const std::string& text) {
  AtomicFile file(path.string());
  file.write(text);
  file.commit();
}

// One page a verb, and one of the program.
void write_pages(const CLI::App& program, const std::vector<VerbHelp>& verbs,
                 const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) fail_input("{}: cannot be made: {}", folder.string(), error.message());
  write_page(folder / "windlass.1", man_text_of_program(program, verbs));
  for (const VerbHelp& verb : verbs)
    if (verb.name.find(' ') == std::string::npos)
      write_page(folder / fmt::format("windlass-{}.1", verb.name), man_text(verbs, verb));
}

void print_page(const CLI::App& program, const ShellFlags& flags) {
  const std::vector<VerbHelp> verbs = verbs_of(program);
  if (!flags.folder.empty()) return write_pages(program, verbs, flags.folder);
  if (flags.verb.empty()) {
    fmt::print("{}", man_text_of_program(program, verbs));
    return;
  }
  std::vector<std::string> names;
  for (const VerbHelp& verb : verbs) {
    if (verb.name == flags.verb) {
      fmt::print("{}", man_text(verbs, verb));
      return;
    }
    names.push_back(verb.name);
  }
  fail_input("unknown verb \"{}\"{}; known are {}", flags.verb, did_you_mean(flags.verb, names),
             join(names, ", "));
}

}  // namespace

void add_shell(CLI::App& program) {
  auto flags = std::make_shared<ShellFlags>();
  CLI::App* completion =
      program.add_subcommand("completion", "A script that completes words of windlass in a shell.");
  completion->add_option("SHELL", flags->shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember({"bash", "zsh", "fish"}));
  completion->footer(
      "Examples:\n"
      "  source <(windlass completion bash)\n"
      "  windlass completion zsh > ~/.zsh/completions/_windlass\n"
      "  windlass completion fish > ~/.config/fish/completions/windlass.fish");
  completion->callback(
      [flags, &program] { fmt::print("{}", completion_text(verbs_of(program), flags->shell)); });
  CLI::App* man = program.add_subcommand("man", "Man pages, from the text of --help.");
  man->add_option("VERB", flags->verb, "of this verb; default: of the program");
  man->add_option("--folder", flags->folder, "write all pages into a folder")->type_name("FOLDER");
  man->footer(
      "Examples:\n"
      "  windlass man plan | man -l -\n"
      "  windlass man --folder ~/.local/share/man/man1");
  man->callback([flags, &program] { print_page(program, *flags); });
}

}  // namespace windlass
