// Published speed-ups of searched strategies beside those that windlass's search finds.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "windlass/base/units.h"

namespace windlass {

struct SpeedupRow {
  std::string model, machine, expert;  // the expert's strategy
  int64_t batch = 0;
  double published_expert = 0, published_search = 0;  // over data parallelism
  Seconds data_parallel, expert_time, found;          // simulated
  bool proven = false;                                // the sum of times is least

  double expert_speedup() const { return data_parallel / expert_time; }
  double search_speedup() const { return data_parallel / found; }
  // Where the published search wins over data parallelism or the expert, so does this one.
  bool passed() const;
};

struct SpeedupTable {
  std::string title, source, note;
  std::vector<SpeedupRow> rows;
  bool passed() const;
};

// Throws Error{Input} beginning with `name`.
SpeedupTable read_speedups(std::string_view name, std::string_view text);
// Searches and simulates every row; `done` is called after each.
void run_speedups(SpeedupTable& table, const std::function<void(size_t, size_t)>& done = {});

std::string speedup_text(const SpeedupTable& table);
nlohmann::ordered_json speedup_json(const SpeedupTable& table);

}  // namespace windlass
