// Names and literals of Python scripts.
#pragma once

#include <set>
#include <string>
#include <string_view>

#include "windlass/graph/shape.h"

namespace windlass {

// A string of Python; JSON's escapes are Python's.
std::string python_text(const std::string& text);
// A name as an identifier that is no word of Python or of the script.
std::string identifier(std::string_view name);
// What follows the last "." or "/".
std::string last_part(std::string_view name);
// "(2, 3)", "(2,)".
std::string shape_text(const Shape& shape);

class Names {
 public:
  // The name that is wanted, with a number if it is taken.
  std::string fresh(const std::string& wanted);

 private:
  std::set<std::string> used_;
};

}  // namespace windlass
