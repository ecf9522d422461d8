#include "windlass/task/overlap.h"

#include <algorithm>

#include "windlass/base/error.h"

namespace windlass {

Overlap::Overlap(const Region& from, const Region& to) {
  ensure(from.size() == to.size(), "parts of different tensors");
  same_ = from == to;
  elements_ = 1;
  int64_t from_inner = 1, to_inner = 1;
  bool alike = true;  // all axes inside of this one
  std::vector<Axis> inside_out;
  for (size_t a = from.size(); a-- > 0;) {
    if (alike && from[a] == to[a]) {
      from_inner *= from[a].count();
      to_inner *= to[a].count();
      elements_ *= from[a].count();
      continue;
    }
    alike = false;
    Axis axis = {.runs = {}, .from_stride = from_inner, .to_stride = to_inner};
    const int64_t from_run = from[a].size / from[a].blocks, to_run = to[a].size / to[a].blocks;
    int64_t count = 0;
    for (int64_t f = 0; f < from[a].blocks; ++f)
      for (int64_t t = 0; t < to[a].blocks; ++t) {
        const int64_t from_begin = f * from_run + from[a].range.begin;
        const int64_t to_begin = t * to_run + to[a].range.begin;
        const int64_t begin = std::max(from_begin, to_begin);
        const int64_t end =
            std::min(f * from_run + from[a].range.end, t * to_run + to[a].range.end);
        if (begin >= end) continue;
        axis.runs.push_back({f * from[a].range.size() + begin - from_begin,
                             t * to[a].range.size() + begin - to_begin, end - begin});
        count += end - begin;
      }
    elements_ *= count;
    from_inner *= from[a].count();
    to_inner *= to[a].count();
    inside_out.push_back(std::move(axis));
  }
  if (inside_out.empty()) inside_out.push_back({{{0, 0, 1}}, from_inner, to_inner});
  axes_.assign(inside_out.rbegin(), inside_out.rend());
  if (elements_ == 0) axes_.clear();
  int64_t runs = 0, first = -1, longest = 0;
  for_each([&](int64_t f, int64_t, int64_t n) {
    if (runs++ == 0) first = f;
    longest = n;
  });
  if (runs == 1 && longest == element_count(local_shape(to))) contiguous_from_ = first;
}

}  // namespace windlass
