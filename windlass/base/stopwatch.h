// Seconds since it was made.
#pragma once

#include <cstdint>

namespace windlass {

class Stopwatch {
 public:
  Stopwatch();
  double seconds() const;

 private:
  int64_t begin_;  // nanoseconds of a clock that never goes back
};

}  // namespace windlass
