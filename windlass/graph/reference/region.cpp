#include "windlass/graph/reference/region.h"

#include <algorithm>

namespace windlass {

Array take_region(const Array& whole, const Region& region) {
  if (region.empty()) return whole;
  Array part(local_shape(region));
  for_each_run(region, [&](int64_t local, int64_t from, int64_t count) {
    std::copy_n(whole.values.begin() + from, count, part.values.begin() + local);
  });
  return part;
}

void put_region(const Array& part, const Region& region, Array& whole) {
  if (region.empty()) {
    whole = part;
    return;
  }
  for_each_run(region, [&](int64_t local, int64_t to, int64_t count) {
    std::copy_n(part.values.begin() + local, count, whole.values.begin() + to);
  });
}

void add_region(const Array& part, const Region& region, Array& whole) {
  for_each_run(region, [&](int64_t local, int64_t to, int64_t count) {
    for (int64_t i = 0; i < count; ++i) whole.values[to + i] += part.values[local + i];
  });
}

}  // namespace windlass
