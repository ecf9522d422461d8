// What exchanges over links take at least, whoever takes part.
#pragma once

#include <cstdint>
#include <map>
#include <utility>

#include "windlass/machine/machine.h"

namespace windlass {

// In seconds. The machine must outlive it.
class LeastTraffic {
 public:
  explicit LeastTraffic(const Machine& machine);

  // Sums of so many bytes over `members` of the devices, nobody else being there.
  double all_reduce(int64_t members, int64_t bytes);
  // Each byte of a large one.
  double all_reduce_byte(int64_t members);
  // A device gets so many bytes from others.
  double receive(double bytes) const { return bytes > 0 ? latency_ + bytes / bandwidth_ : 0; }

 private:
  const Machine& machine_;
  double latency_ = 0, bandwidth_ = 0;  // of the least route, of all links of a device
  std::map<std::pair<int64_t, int64_t>, double> known_;
};

}  // namespace windlass
