// Measurements made elsewhere: traces and snapshots of PyTorch, and tables of steps.

#include "fuzz/exercise.h"

#include "windlass/plan/read_measured.h"
#include "windlass/plan/read_trace.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace windlass;
  const auto text = fuzz::as_text(data, size);
  fuzz::tolerate([&] { figures_from_trace(text); });
  fuzz::tolerate([&] { measured_from_csv(text, "steps.csv"); });
  return 0;
}
