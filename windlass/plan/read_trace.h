// Steps in files that PyTorch writes: what a step took and how much memory it held.
#pragma once

#include <optional>
#include <string_view>

#include "windlass/base/units.h"

namespace windlass {

struct TraceFigures {
  std::optional<Seconds> time;
  std::optional<Bytes> peak;
};

// Two kinds of JSON:
//  - a trace of torch.profiler (export_chrome_trace), whose steps were marked by profiler.step():
//  the
//    median of the "ProfilerStep#n" events, and with profile_memory the most that was allocated, on
//    cards if there are any;
//  - torch.cuda.memory._snapshot(), written by json.dump(..., default=str): what is allocated at
//  its
//    end, followed back through its history; the most on any card. Pickles are not read: they can
//    run code.
// Throws Error{Input} if it is neither, or has neither steps nor memory.
TraceFigures figures_from_trace(std::string_view text);

}  // namespace windlass
