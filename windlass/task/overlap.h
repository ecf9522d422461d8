// What two dense parts of a tensor have in common.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "windlass/graph/op_piece.h"

namespace windlass {

// Elements that two dense parts of one tensor have in common, as runs that are neighbours in both.
// Made once, used every step. Inner axes that both have alike are part of the runs.
class Overlap {
 public:
  Overlap() = default;
  Overlap(const Region& from, const Region& to);

  int64_t elements() const { return elements_; }
  // Both are the same part.
  bool same() const { return same_; }
  // One run is all there is: `from` has it from this element on, `to` from its first to its last.
  // -1 if there are several, or `to` has more.
  int64_t contiguous_from() const { return contiguous_from_; }

  // Calls visit(from, to, count), places in elements of the local arrays.
  template <class Visit>
  void for_each(Visit&& visit) const {
    if (elements_ > 0) walk(0, 0, 0, visit);
  }

 private:
  struct Run {
    int64_t from = 0, to = 0, count = 0;
  };
  struct Axis {
    std::vector<Run> runs;
    int64_t from_stride = 1, to_stride = 1;
  };
  template <class Visit>
  void walk(size_t axis, int64_t from, int64_t to, Visit&& visit) const {
    const Axis& here = axes_[axis];
    if (axis + 1 == axes_.size()) {
      for (const Run& run : here.runs)
        visit(from + run.from * here.from_stride, to + run.to * here.to_stride,
              run.count * here.from_stride);
      return;
    }
    for (const Run& run : here.runs)
      for (int64_t i = 0; i < run.count; ++i)
        walk(axis + 1, from + (run.from + i) * here.from_stride, to + (run.to + i) * here.to_stride,
             visit);
  }

  std::vector<Axis> axes_;  // outermost first; the last one's runs are contiguous
  int64_t elements_ = 0;
  bool same_ = false;
  int64_t contiguous_from_ = -1;
};

}  // namespace windlass
