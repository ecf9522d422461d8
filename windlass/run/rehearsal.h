// Rehearsal: every rank's program of a plan is walked without kernels, to see that what is sent is
// received, and that nobody waits for ever.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace windlass {

struct RehearsalReport {
  int64_t ranks = 0;
  int64_t tasks = 0;     // of the plan
  int64_t jobs = 0;      // of all ranks
  int64_t messages = 0;  // between them
  int64_t bytes = 0;     // in those
  // What is wrong, a sentence each; at most some. Empty: nothing.
  std::vector<std::string> faults;
};

}  // namespace windlass
