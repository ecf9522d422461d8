// Man pages from what --help says.

#include <algorithm>

#include <CLI/CLI.hpp>
#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/base/version.h"
#include "windlass/cli/verb_help.h"

namespace windlass {
namespace {

// Text that roff takes for itself: no line begins with a dot or an apostrophe.
std::string roff(std::string_view text) {
  std::string escaped;
  bool start = true;
  for (char c : text) {
    if (start && (c == '.' || c == '\'')) escaped += "\\&";
    if (c == '\\')
      escaped += "\\e";
    else if (c == '-')
      escaped += "\\-";
    else
      escaped += c;
    start = c == '\n';
  }
  return escaped;
}

std::string heading(const std::string& page, std::string_view description) {
  std::string upper = page;
  std::ranges::transform(upper, upper.begin(), [](char c) {
    return static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  });
  return fmt::format(".TH {} 1 \"\" \"windlass {}\" \"windlass\"\n.SH NAME\n{} \\- {}\n", upper,
                     kVersion, roff(page), roff(description));
}

std::string option_entry(const OptionHelp& option) {
  std::string text = ".TP\n.B " + roff(join(option.names, ", "));
  if (option.takes_value && !option.positional) {
    std::string value = option.value;
    if (!option.choices.empty() && value.find('{') != std::string::npos)
      value = join(option.choices, "|");
    else if (const size_t colon = value.find(':'); colon != std::string::npos)
      value.erase(0, colon + 1);  // "INT:INT in [1 - 9]"
    text += " \\fI" + roff(value) + "\\fR";
  }
  text += "\n" + roff(option.words);
  if (!option.usual.empty()) text += fmt::format(" (default: {})", roff(option.usual));
  return text + "\n";
}

// Examples are shown as they are typed; what is before them is running text.
std::string footer_text(const std::string& footer) {
  if (footer.empty()) return {};
  const size_t at = footer.find("Examples:\n");
  std::string text;
  if (const std::string before = footer.substr(0, at); !before.empty())
    text += ".SH DETAILS\n.nf\n" + roff(before) + (before.ends_with('\n') ? "" : "\n") + ".fi\n";
  if (at == std::string::npos) return text;
  const std::string examples = footer.substr(at + std::string_view("Examples:\n").size());
  return text + ".SH EXAMPLES\n.nf\n" + roff(examples) + (examples.ends_with('\n') ? "" : "\n") +
         ".fi\n";
}

std::string page_name(const std::string& verb) {
  std::string name = "windlass-" + verb;
  std::ranges::replace(name, ' ', '-');
  return name;
}

constexpr std::string_view kExitCodes =
    ".SH \"EXIT STATUS\"\n0 done, 1 bad input, 2 no feasible plan, 3 run failed, 4 a bug in "
    "windlass.\n";

}  // namespace

std::string man_text(const std::vector<VerbHelp>& verbs, const VerbHelp& shown) {
  std::string text = heading(page_name(shown.name), shown.description);
  text += fmt::format(".SH SYNOPSIS\n.B windlass {}\n[OPTIONS]", roff(shown.name));
  for (const OptionHelp& option : shown.options)
    if (option.positional) text += " \\fI" + roff(option.names.front()) + "\\fR";
  text += "\n.SH OPTIONS\n";
  for (const OptionHelp& option : shown.options) text += option_entry(option);
  for (const VerbHelp& inner : verbs) {
    if (!inner.name.starts_with(shown.name + " ")) continue;
    text +=
        fmt::format(".SH \"{}\"\n{}\n", roff("windlass " + inner.name), roff(inner.description));
    for (const OptionHelp& option : inner.options) text += option_entry(option);
  }
  return text + footer_text(shown.footer) + std::string(kExitCodes) +
         ".SH \"SEE ALSO\"\n.BR windlass (1)\n";
}

std::string man_text_of_program(const CLI::App& program, const std::vector<VerbHelp>& verbs) {
  std::string text = heading("windlass", "trains neural networks that do not fit");
  text += ".SH SYNOPSIS\n.B windlass\n\\fIVERB\\fR [OPTIONS]\n.SH DESCRIPTION\n" +
          roff(program.get_description()) + "\n.SH VERBS\n";
  for (const VerbHelp& verb : verbs)
    if (verb.name.find(' ') == std::string::npos)
      text +=
          fmt::format(".TP\n.BR {} (1)\n{}\n", roff(page_name(verb.name)), roff(verb.description));
  return text + footer_text(program.get_footer());
}

}  // namespace windlass
