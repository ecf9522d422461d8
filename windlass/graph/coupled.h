// Coupled ops: what the pieces of a loop tell each other (batch norm over a split batch, softmax
// and cross-entropy over split classes, attention over split keys, ...).
//
// Where such a loop is cut, a pass over the op has three steps. *Begin* makes statistics of the
// local operands. They are *merged* over the pieces that differ only in loops that couple
// (couples). *End* makes the local results from the local operands and the merged statistics. What
// lacks a coupled loop comes out the same, and whole, on all of them: attention's output, running
// statistics, the gradient of a scale.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "windlass/graph/op_piece.h"

namespace windlass {

// How statistics are merged. They are a matrix, its rows the last axis.
enum class MergeFn : uint8_t {
  Sum,      // number by number
  Moments,  // rows of count, mean and sum of squared deviations from it
  Softmax,  // rows of a maximum, `scaled` sums of terms divided by exp(maximum), and plain sums
};

struct Exchange {
  TensorType type;  // of the statistics of each piece and of all; absent: nothing is exchanged
  MergeFn fn = MergeFn::Sum;
  int64_t scaled = 0;

  bool needed() const { return type.present(); }
};

// Whether pieces of the loop exchange statistics in some pass.
inline bool couples(const LoopDim& loop) {
  return loop.coupling.forward > 0 || loop.coupling.backward > 0;
}

// What a piece exchanges in a pass. Backward: given which gradients are wanted. Forward, and
// recomputing forward, alike.
Exchange exchange_of(const OpPiece& piece, Pass pass, const std::vector<bool>& wanted = {});

// Numbers that a piece with these sizes of loops exchanges at most, as LoopDim::coupling prices
// them, where `cut` loops are cut: so many for each point of the loops that neither couple nor are
// Whole.
int64_t exchanged_scalars(const LoopNest& nest, const std::vector<int64_t>& sizes,
                          const std::vector<bool>& cut, Pass pass);

// The statistics of all from those of each piece, in the order of the members: the same bits on
// every one of them. `members` and `result` have the elements of exchange.type, contiguous; result
// may be one of the members only if it is the first.
//
// Moments: Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample
// variances" (1979). Softmax: Milakov, Gimelshein, "Online normalizer calculation for softmax"
// (2018).
template <class T>
void merge_statistics(const Exchange& exchange, const std::vector<const T*>& members, T* result) {
  const int64_t count = element_count(exchange.type.shape);
  const int64_t width = exchange.type.shape.empty() ? 1 : exchange.type.shape.back();
  std::copy_n(members[0], count, result);
  for (size_t m = 1; m < members.size(); ++m) {
    for (int64_t at = 0; at < count; at += width) {
      T* a = result + at;
      const T* b = members[m] + at;
      int64_t plain = 0;  // first column that is simply added
      if (exchange.fn == MergeFn::Moments) {
        const T total = a[0] + b[0], apart = b[1] - a[1];
        if (b[0] > 0) {
          a[2] += b[2] + apart * apart * a[0] * b[0] / total;
          a[1] += apart * b[0] / total;
        }
        a[0] = total;
        plain = width;
      } else if (exchange.fn == MergeFn::Softmax) {
        constexpr T kNone = -std::numeric_limits<T>::infinity();
        const T top = std::max(a[0], b[0]);
        const T mine = a[0] == kNone ? 0 : std::exp(a[0] - top);
        const T other = b[0] == kNone ? 0 : std::exp(b[0] - top);
        for (int64_t c = 1; c <= exchange.scaled; ++c) a[c] = a[c] * mine + b[c] * other;
        a[0] = top;
        plain = exchange.scaled + 1;
      }
      for (int64_t c = plain; c < width; ++c) a[c] += b[c];
    }
  }
}

}  // namespace windlass
