#pragma once

#include <string>

namespace windlass {

// Where tests find things: this checkout, and the program that was built of it. Functions of a
// source that CMake writes, so that no other object depends on where the checkout lies.
std::string source_folder();
std::string program_path();

}  // namespace windlass
