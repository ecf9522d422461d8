#include "windlass/task/task_times.h"

#include <cmath>

#include "windlass/base/error.h"

namespace windlass {

Nanoseconds nanoseconds_of(Seconds time) {
  constexpr double kLongest = 1e17;  // three years
  const double value = std::round(time.value * 1e9);
  ensure(value >= 0, "the price of a task is negative");
  if (!(value <= kLongest))
    fail_input(
        "a task takes {:.0e} s on this machine: too long to be simulated; the model is too "
        "large, or a rate of the machine too low",
        time.value);
  return static_cast<Nanoseconds>(value);
}

Nanoseconds latency_of(const Traffic& traffic) { return nanoseconds_of(traffic.latency); }

}  // namespace windlass
