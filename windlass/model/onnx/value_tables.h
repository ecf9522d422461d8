// Stored tensors whose values give them away: what nobody trains has a form that no trained tensor
// has. Each test looks at all values and none at names.
#pragma once

#include <vector>

#include "windlass/graph/shape.h"

namespace windlass {

// Whether a value is infinite or not a number. Training such a tensor gives nothing but NaN.
bool has_infinities(const std::vector<double>& values);

// Sines and cosines of positions, as rotary and sinusoidal embeddings store them: along one axis
// every line follows t[p + 1] + t[p - 1] = k t[p] with a k of its own, as all waves do, and one of
// them oscillates. Lines without oscillation alone are ramps and constants, which weights may begin
// as.
bool is_wave_table(const Shape& shape, const std::vector<double>& values, DType stored);

// The same of places in a plane or in time, with a row of zeros or more before (for a class token):
// in each other row the same pairs of columns are sine and cosine of one angle.
bool is_circle_table(const Shape& shape, const std::vector<double>& values, DType stored);

// Zeros and ones, both.
bool is_zeros_and_ones(const std::vector<double>& values);

// These in a matrix or more: a mask.
bool is_zero_one_mask(const Shape& shape, const std::vector<double>& values);

// A square whose entries grow by one step along a row and shrink by it along a column, for each
// leading index: a (j - i), as linear biases of attention are.
bool is_distance_table(const Shape& shape, const std::vector<double>& values);

// Coordinates of a grid, as meshgrid makes them: along every axis all lines are arithmetic
// sequences, and along two axes of three places or more some of them rise or fall. A sequence that
// is only repeated may be a weight that begins so.
bool is_grid(const Shape& shape, const std::vector<double>& values);

// Filters [channels, 1, ...] of a convolution that are all the same and no constant: a blur, an
// edge filter, a window. What a network learns begins with other numbers for each channel, or with
// one number and zeros.
bool is_repeated_filter(const Shape& shape, const std::vector<double>& values);

// Numbers of a formula, in a matrix or more: waves, coordinates, half of them zero, or few
// different sizes, as edge filters, wavelets, adjacencies and filter banks have. What a network
// learns begins with chance, with one number, with one in each row (an identity), or with the same
// row again and again.
bool is_computed_table(const Shape& shape, const std::vector<double>& values, DType stored);

// A vector that rises or falls from each place to the next.
bool is_schedule(const std::vector<double>& values);

}  // namespace windlass
