// Steps that somebody measured beside their own training, on whatever machine.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "windlass/base/units.h"

namespace windlass {

struct MeasuredPoint {
  int64_t batch = 0;
  std::string method;
  std::optional<Bytes> peak;
  std::optional<Seconds> time;
};

// "batch,method,peak_bytes,step_time_s", a header and a line for each step; either of the last two
// may be empty. Throw Error{Input} naming the line.
std::vector<MeasuredPoint> measured_from_csv(std::string_view text, const std::string& where);
// A file of these; or as FILE@BATCH or FILE@BATCH,METHOD a trace or a snapshot of PyTorch
// (read_trace.h), which is one step.
std::vector<MeasuredPoint> read_measured(const std::string& name);

}  // namespace windlass
