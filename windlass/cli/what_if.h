// What the controls of the what-if page mean: flags of "windlass plan".
#pragma once

#include <string>
#include <string_view>

#include "windlass/serve/child.h"

namespace windlass {

// From what the page sends (docs/serve.md). Safe on any bytes: names of files are not among what it
// may say. The process is "windlass answer", with the files that the page sent along; its preface
// is a line {"command": what a user would type in a shell}. Throws Error{Input} for the user of the
// page. `most_seconds`: of a search.
ChildCommand read_what_if(std::string_view body, double most_seconds);

// The page itself, with the models, machines and runners that there are.
std::string what_if_page(const std::string& token, double most_seconds);

// A word of a command line for a shell, quoted where it must be.
std::string shell_word(std::string_view text);

}  // namespace windlass
