// The learning rate over the steps of a run.
#pragma once

#include <cstdint>
#include <string_view>

namespace windlass {

enum class RateShape : uint8_t {
  Constant,
  Cosine,  // from the peak to the floor by half a wave
  Linear,  // from the peak to the floor
};
// "constant", "cosine", "linear". Throws Error{Input} with the known names.
RateShape rate_shape_from_name(std::string_view name);

struct LearningRate {
  double peak = 1e-3;
  double floor = 0;  // where Cosine and Linear end
  RateShape shape = RateShape::Constant;
  int64_t warm_up = 0;  // steps in which it rises to the peak, evenly; the first is not 0
  int64_t steps = 0;    // of the whole run

  // Of step 1, 2, ... After the last step it stays where it is.
  double at(int64_t step) const;
};

}  // namespace windlass
