// The models of the measured sweep.
#pragma once

#include <cstdint>
#include <vector>

namespace windlass {

struct SweepSource {
  const char* name;
  const char* source;
  int64_t sequence, image;  // 0: not its
  std::vector<int64_t> batches;
  bool quick;  // of the small set
};

// Sized so that a step of the largest batch takes well under two seconds on one core, and that of
// the smallest is far from filling it: what a step takes whatever its batch is must show. Batches
// of ResNet-50 end before 16, where oneDNN has other convolutions: no line in the batch knows of
// that.
const std::vector<SweepSource>& sweep_sources();

}  // namespace windlass
