// The program at home in a shell: completions, man pages, examples and hints.

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <set>
#include <string>
#include <vector>

#include "tests/run_program.h"
#include "tests/scratch_folder.h"
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace windlass {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsSupersetOf;

std::string said(const std::vector<std::string>& arguments) {
  const ProgramResult result = run_windlass(arguments);
  EXPECT_EQ(result.exit_code, 0) << result.err;
  return result.out;
}

std::vector<std::string> all_verbs() {
  const std::string help = said({"--help"});
  std::vector<std::string> verbs;
  static const std::regex kVerb("\n  ([a-z]+) +[A-Z]");
  const std::string listed = help.substr(help.find("Subcommands:"));
  for (std::sregex_iterator it(listed.begin(), listed.end(), kVerb), end; it != end; ++it)
    verbs.push_back((*it)[1]);
  return verbs;
}

bool has_program(const std::string& name) {
  return std::system(("command -v " + name + " > /dev/null 2>&1").c_str()) == 0;
}

// What a command prints; it must end well.
std::string output_of(const std::string& command) {
  FILE* const pipe = popen((command + " 2>&1").c_str(), "r");
  std::string text;
  char buffer[4096];
  while (const size_t count = fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, count);
  EXPECT_EQ(pclose(pipe), 0) << command << "\n" << text;
  return text;
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  return {std::istream_iterator<std::string>(stream), {}};
}

TEST(Shell, EveryVerbHasExamplesAndAManPage) {
  const std::vector<std::string> verbs = all_verbs();
  EXPECT_THAT(verbs, IsSupersetOf({"plan", "serve", "completion", "man", "train"}));
  const std::string program = said({"man"});
  for (const std::string& verb : verbs) {
    const std::string help = said({verb, "--help"});
    EXPECT_THAT(help, HasSubstr("Examples:\n  ")) << verb;
    const std::string page = said({"man", verb});
    EXPECT_THAT(page, HasSubstr("\n.SH EXAMPLES\n")) << verb;
    EXPECT_THAT(program, HasSubstr("windlass\\-" + verb)) << verb;
    // Every flag of the help is in the page.
    static const std::regex kFlag("\n  (?:-[a-z],)?--([a-z-]+)");
    for (std::sregex_iterator it(help.begin(), help.end(), kFlag), end; it != end; ++it) {
      const std::string flag = std::regex_replace((*it)[1].str(), std::regex("-"), "\\-");
      EXPECT_THAT(page, HasSubstr("\\-\\-" + flag)) << verb;
    }
  }
}

TEST(Shell, ManPagesAreRoffWithoutComplaint) {
  if (!has_program("groff")) GTEST_SKIP() << "groff is missing";
  const ScratchFolder folder;
  said({"man", "--folder", folder / "man1"});
  for (const std::string& verb : all_verbs())
    EXPECT_EQ(output_of("groff -man -ww -z -Tutf8 " + (folder / ("man1/windlass-" + verb + ".1"))),
              "");
  EXPECT_EQ(output_of("groff -man -ww -z -Tutf8 " + (folder / "man1/windlass.1")), "");
}

TEST(Shell, BashCompletes) {
  if (!has_program("bash")) GTEST_SKIP() << "bash is missing";
  const ScratchFolder folder;
  const std::string script = folder / "windlass.bash";
  std::ofstream(script) << said({"completion", "bash"});
  const auto completed = [&](const std::string& words) {
    return words_of(output_of("bash -c 'source " + script + "; COMP_WORDS=(" + words +
                              "); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _windlass; echo "
                              "${COMPREPLY[@]}'"));
  };
  EXPECT_THAT(completed("windlass pl"), ElementsAre("plan"));
  EXPECT_THAT(completed("windlass plan --dty"), ElementsAre("--dtype"));
  EXPECT_THAT(completed("windlass plan gpt2 --dtype b"), ElementsAre("bf16"));
  EXPECT_THAT(completed("windlass plan gpt2-x"), ElementsAre("gpt2-xl"));
  EXPECT_THAT(completed("windlass plan gpt2 --on 4x309"), ElementsAre("4x3090"));
  EXPECT_THAT(completed("windlass machine sh"), ElementsAre("show"));
  EXPECT_THAT(completed("windlass machine show --js"), ElementsAre("--json"));
  EXPECT_THAT(completed("windlass export plan.json --to mega"), ElementsAre("megatron"));
  EXPECT_THAT(completed("windlass answer --ba"), ElementsAre());
}

TEST(Shell, OtherShellsReadTheirScripts) {
  const ScratchFolder folder;
  std::ofstream(folder / "w.zsh") << said({"completion", "zsh"});
  std::ofstream(folder / "w.fish") << said({"completion", "fish"});
  if (has_program("zsh")) {
    EXPECT_EQ(output_of("zsh -n " + (folder / "w.zsh")), "");
  }
  if (!has_program("fish")) GTEST_SKIP() << "fish is missing";
  const auto completed = [&](const std::string& line) {
    return output_of("fish --no-config -c 'source " + (folder / "w.fish") + "; complete -C \"" +
                     line + "\"'");
  };
  EXPECT_THAT(completed("windlass pl"), HasSubstr("plan\t"));
  EXPECT_THAT(completed("windlass plan gpt2 --dtype b"), HasSubstr("bf16"));
  EXPECT_THAT(completed("windlass machine sh"), HasSubstr("show\t"));
}

TEST(Shell, SlipsOfTheKeyboardAreNamed) {
  for (const auto& [typed, meant] : std::vector<std::pair<std::string, std::string>>{
           {"pln", "plan"}, {"serv", "serve"}, {"simulat", "simulate"}, {"reprot", "report"}}) {
    const ProgramResult result = run_windlass({typed});
    EXPECT_EQ(result.exit_code, 1);
    EXPECT_THAT(result.err, HasSubstr("did you mean \"" + meant + "\""));
    EXPECT_EQ(result.err.find("answer"), std::string::npos);
  }
  EXPECT_EQ(run_windlass({"man", "pln"}).exit_code, 1);
  EXPECT_EQ(run_windlass({"completion", "tcsh"}).exit_code, 1);
}

}  // namespace
}  // namespace windlass
