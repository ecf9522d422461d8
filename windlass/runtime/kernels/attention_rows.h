// What attention does to one row of scores, between the products.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "windlass/runtime/kernels/exponential.h"
#include "windlass/runtime/kernels/random.h"
#include "windlass/runtime/kernels/vectorize.h"

namespace windlass {

// One query against the keys of a block. Keys outside [begin, end) are hidden.
template <class T>
struct ScoreRow {
  int64_t size = 0;   // keys in the block
  int64_t begin = 0;  // visible ones, within the block
  int64_t end = 0;
  T scale = 1;
  const T* mask = nullptr;  // of the first key of the block
  int64_t mask_stride = 0;  // 1, or 0: the same for all keys
};

// Dropout of the probabilities of a row: element j of the block is element `first` + j of those
// that draw.
struct RowDropout {
  RandomKey key;
  const DrawnElements* elements = nullptr;
  int64_t first = 0;
  uint32_t threshold = 0;  // 0: none
  double factor = 1;       // of what is kept
};

// Products q k of the visible keys [begin, end) to scores.
template <class T>
WINDLASS_INLINE inline void to_scores(const ScoreRow<T>& row, int64_t begin, int64_t end,
                                      T* values) {
  const T scale = row.scale;
  const T* mask = row.mask;
  if (mask == nullptr) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) values[j] *= scale;
  } else if (row.mask_stride == 1) {
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) values[j] = values[j] * scale + mask[j];
  } else {
    const T shift = mask[0];
#pragma omp simd
    for (int64_t j = begin; j < end; ++j) values[j] = values[j] * scale + shift;
  }
}

template <class T>
void hide(const ScoreRow<T>& row, T* values) {
  std::fill(values, values + row.begin, T(0));
  std::fill(values + row.end, values + row.size, T(0));
}

// Calls f(begin, end, words) for pieces of the visible keys, words[j - begin] being that of key j.
template <class T, class F>
void for_each_dropped(const ScoreRow<T>& row, const RowDropout& dropout, const F& f) {
  constexpr int64_t kPiece = 512;
  std::array<uint32_t, kPiece> words;
  for (int64_t j = row.begin; j < row.end; j += kPiece) {
    const int64_t n = std::min(kPiece, row.end - j);
    random_words(dropout.key, *dropout.elements, dropout.first + j, n, words.data());
    f(j, j + n, words.data());
  }
}

// The greatest score of a row and the sum of the exponentials relative to it.
template <class T>
struct RowSums {
  T top = -std::numeric_limits<T>::infinity();
  T sum = 0;

  bool nothing() const { return top == -std::numeric_limits<T>::infinity(); }
  // log sum exp of the scores, -infinity for a row that sees nothing.
  T lse() const { return nothing() && !(sum == 0) ? sum : top + std::log(sum); }
};

// Turns products q k into exponentials of the scores relative to the greatest. A row that sees
// nothing has top -infinity and sum 0, and exponentials of 0.
template <class T>
RowSums<T> exponentials(const ScoreRow<T>& row, T* values) {
  RowSums<T> found;
  hide(row, values);
  RowSums<T>* out = &found;
  vectorized([=]() WINDLASS_INLINE {
    to_scores(row, row.begin, row.end, values);
    const T greatest = greatest_of<T>(values + row.begin, row.end - row.begin);
    T total = 0;
    if (greatest != -std::numeric_limits<T>::infinity()) {
#pragma omp simd reduction(+ : total)
      for (int64_t j = row.begin; j < row.end; ++j) {
        const T p = exp_negative(values[j] - greatest);
        values[j] = p;
        total += p;
      }
    }
    out->top = greatest;
    out->sum = total;
  });
  if (!found.nothing()) return found;
  // NaN compares with nothing: it must not look like a row without keys.
  const bool poisoned =
      std::any_of(values + row.begin, values + row.end, [](T x) { return std::isnan(x); });
  found.sum = poisoned ? std::numeric_limits<T>::quiet_NaN() : T(0);
  std::fill(values + row.begin, values + row.end, found.sum);
  return found;
}

// Multiplies what is not dropped of a row by `factor` and by what makes up for the dropped.
template <class T>
void drop_and_scale(const ScoreRow<T>& row, const RowDropout& dropout, T factor, T* values) {
  if (dropout.threshold == 0) {
    if (factor == T(1)) return;
    vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
      for (int64_t j = row.begin; j < row.end; ++j) values[j] *= factor;
    });
    return;
  }
  const T kept = factor * static_cast<T>(dropout.factor);
  const uint32_t threshold = dropout.threshold;
  for_each_dropped(row, dropout, [=](int64_t begin, int64_t end, const uint32_t* words) {
    vectorized([=]() WINDLASS_INLINE {
#pragma omp simd
      for (int64_t j = begin; j < end; ++j)
        values[j] *= factor_if_kept(words[j - begin], threshold, kept);
    });
  });
}

// Turns products q k into probabilities, dropped and scaled; returns log sum exp of the scores,
// -infinity for a row that sees nothing, whose probabilities are 0.
template <class T>
T probabilities(const ScoreRow<T>& row, const RowDropout& dropout, T* values) {
  const RowSums<T> found = exponentials(row, values);
  if (!found.nothing()) drop_and_scale(row, dropout, T(1) / found.sum, values);
  return found.lse();
}

// From products q k in `scores` and dy v in `slopes` (null if not wanted): the dropped
// probabilities P F in `scores` and dS = P (F dP - total) in `slopes`.
template <class T>
void score_gradients(const ScoreRow<T>& row, const RowDropout& dropout, T lse, T total, T* scores,
                     T* slopes) {
  hide(row, scores);
  if (slopes != nullptr) hide(row, slopes);
  if (lse == -std::numeric_limits<T>::infinity()) {
    std::fill(scores + row.begin, scores + row.end, T(0));
    if (slopes != nullptr) std::fill(slopes + row.begin, slopes + row.end, T(0));
    return;
  }
  if (dropout.threshold == 0) {
    vectorized([=]() WINDLASS_INLINE {
      to_scores(row, row.begin, row.end, scores);
#pragma omp simd
      for (int64_t j = row.begin; j < row.end; ++j) scores[j] = exp_negative(scores[j] - lse);
      if (slopes == nullptr) return;
#pragma omp simd
      for (int64_t j = row.begin; j < row.end; ++j) slopes[j] = scores[j] * (slopes[j] - total);
    });
    return;
  }
  const auto factor = static_cast<T>(dropout.factor);
  const uint32_t threshold = dropout.threshold;
  for_each_dropped(row, dropout, [=](int64_t begin, int64_t end, const uint32_t* words) {
    vectorized([=]() WINDLASS_INLINE {
      to_scores(row, begin, end, scores);
#pragma omp simd
      for (int64_t j = begin; j < end; ++j) scores[j] = exp_negative(scores[j] - lse);
      if (slopes != nullptr) {
#pragma omp simd
        for (int64_t j = begin; j < end; ++j) {
          const T kept = factor_if_kept(words[j - begin], threshold, factor);
          slopes[j] = scores[j] * (slopes[j] * kept - total);
        }
      }
#pragma omp simd
      for (int64_t j = begin; j < end; ++j)
        scores[j] *= factor_if_kept(words[j - begin], threshold, factor);
    });
  });
}

}  // namespace windlass
