// Flags that every verb that searches shares.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "windlass/search/search.h"

namespace CLI {
class App;
}

namespace windlass {

// --allow: what may change the mathematics.
struct AllowFlag {
  std::vector<std::string> allow = {};

  void add_to(CLI::App& verb);
  // Fewest bits that saved tensors may be stored in, as SearchOptions::compress has it.
  int compress() const;
};

struct SearchFlags {
  std::string method = "auto";
  std::string mode = "auto";  // of packs of layers: dp, pp
  double time_limit = 60;
  int64_t micro_batches = 0;
  int threads = 0;
  uint64_t seed = 0;
  std::string effort = "normal";  // quick, normal, thorough, or a number of times normal
  AllowFlag allow = {};
  std::vector<std::string> fix = {};

  void add_to(CLI::App& verb);

  // Throws Error{Input} naming the flag.
  SearchOptions options() const;
};

// How much that is, relative to normal. Throws Error{Input}.
double effort_of(const std::string& text);

// "tp=2,zero=1,recompute=off": throws Error{Input} with the known names. Micro-batches are set
// beside.
void read_fixed(const std::string& text, FixedDecisions& fixed, int64_t& micro_batches);

}  // namespace windlass
