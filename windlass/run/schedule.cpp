#include "windlass/run/schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "windlass/base/error.h"

namespace windlass {

RateShape rate_shape_from_name(std::string_view name) {
  if (name == "constant") return RateShape::Constant;
  if (name == "cosine") return RateShape::Cosine;
  if (name == "linear") return RateShape::Linear;
  fail_input("learning rate schedule \"{}\": expected constant, cosine or linear", name);
}

double LearningRate::at(int64_t step) const {
  if (step <= warm_up) return peak * static_cast<double>(step) / static_cast<double>(warm_up);
  if (shape == RateShape::Constant || steps <= warm_up) return peak;
  const double part =
      std::min(1.0, static_cast<double>(step - warm_up) / static_cast<double>(steps - warm_up));
  if (shape == RateShape::Linear) return peak + (floor - peak) * part;
  return floor + (peak - floor) * 0.5 * (1 + std::cos(std::numbers::pi * part));
}

}  // namespace windlass
