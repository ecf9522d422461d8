// Running the built program as a user would.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace windlass {

struct ProgramResult {
  int exit_code = -1;  // -1: ended by a signal
  std::string out, err;
  double cpu_seconds = 0;  // user and system time
  int64_t peak_bytes = 0;  // largest resident size
};

// Runs windlass with the arguments; no shell is involved.
ProgramResult run_windlass(const std::vector<std::string>& arguments);

}  // namespace windlass
