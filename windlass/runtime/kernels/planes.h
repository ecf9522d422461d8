// Loops over the planes of x [b, c, spatial...], for kernels that ATen does not have.
//
// A plane is the spatial part of one channel of one sample. Planes are divided over threads, and
// each is computed by one thread in a fixed order, so that results do not depend on their number.
// Spatial axes are filled up to three by leading axes of 1.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "windlass/runtime/kernels/kernel.h"

namespace windlass {

using Triple = std::array<int64_t, 3>;

inline Triple spatial_sizes(at::IntArrayRef shape) {
  Triple sizes = {1, 1, 1};
  for (size_t i = 2; i < shape.size(); ++i) sizes[3 - shape.size() + i] = shape[i];
  return sizes;
}

inline int64_t volume(const Triple& sizes) { return sizes[0] * sizes[1] * sizes[2]; }

// Sums of 16-bit values are formed in fp32.
template <class T>
using Sum = std::conditional_t<std::is_same_v<T, double>, double, float>;

// Calls run(plane) for every plane; `work` is the cost of one in elementary steps.
template <class Run>
void for_each_plane(int64_t planes, int64_t work, Run&& run) {
  constexpr int64_t kWorth = 32768;  // steps that are worth a thread
  const int64_t grain = std::max<int64_t>(1, kWorth / std::max<int64_t>(1, work));
  at::parallel_for(0, planes, grain, [&](int64_t begin, int64_t end) {
    for (int64_t plane = begin; plane < end; ++plane) run(plane);
  });
}

// Makes a result whose planes are sums: calls scatter(plane, values) with the plane's values in the
// type of sums, zero or what the result is added to, for scatter to add to.
template <class T, class Scatter>
void scatter_planes(Result& result, int64_t work, Scatter&& scatter) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<T>::value;
  const bool in_place = result.adds() && result.sum().scalar_type() == kType;
  at::Tensor out = in_place ? result.sum() : at::empty(result.type().shape, kType);
  const int64_t size = volume(spatial_sizes(out.sizes()));
  T* data = out.template data_ptr<T>();
  for_each_plane(out.size(0) * out.size(1), work, [&](int64_t plane) {
    T* values = data + plane * size;
    if constexpr (std::is_same_v<T, Sum<T>>) {
      if (!in_place) std::fill(values, values + size, T(0));
      scatter(plane, values);
    } else {
      std::vector<Sum<T>> sums(static_cast<size_t>(size), 0);
      if (in_place) std::copy(values, values + size, sums.begin());
      scatter(plane, sums.data());
      for (int64_t i = 0; i < size; ++i) values[i] = static_cast<T>(sums[static_cast<size_t>(i)]);
    }
  });
  if (!in_place) result.set(std::move(out));
}

}  // namespace windlass
