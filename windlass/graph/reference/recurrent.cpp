#include "windlass/graph/reference/recurrent.h"

#include <algorithm>
#include <cmath>

namespace windlass::reference {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

RecurrentLayer::RecurrentLayer(const RecurrentAttrs& attrs, const Shape& x, int64_t gate_count)
    : steps(x[0]),
      batch(x[1]),
      inputs(x[2]),
      hidden(attrs.hidden),
      directions(attrs.bidirectional ? 2 : 1),
      gates(gate_count),
      reverse(attrs.reverse && !attrs.bidirectional) {}

Vector RecurrentLayer::state_before(const Array& history, const Array* initial, int64_t d,
                                    int64_t n, int64_t b) const {
  if (n > 0) return slice_of(history, step_at(time(d, n - 1), d, b, hidden), hidden);
  if (initial != nullptr) return slice_of(*initial, state_at(d, b), hidden);
  return Vector(hidden, 0);
}

Vector slice_of(const Array& array, int64_t start, int64_t size) {
  return Vector(array.values.begin() + start, array.values.begin() + start + size);
}

void put_slice(const Vector& values, int64_t start, Array& array) {
  std::copy(values.begin(), values.end(), array.values.begin() + start);
}

Vector multiply_rows(const Array& weight, int64_t d, int64_t row, int64_t count, const Vector& x) {
  const int64_t rows = weight.shape[1], columns = weight.shape[2];
  Vector result(count, 0);
  for (int64_t i = 0; i < count; ++i) {
    for (int64_t j = 0; j < columns; ++j)
      result[i] += weight.values[(d * rows + row + i) * columns + j] * x[j];
  }
  return result;
}

Vector bias_part(const Array* bias, int64_t d, int64_t part, int64_t row, int64_t count) {
  if (bias == nullptr) return Vector(count, 0);
  return slice_of(*bias, d * bias->shape[1] + part * bias->shape[1] / 2 + row, count);
}

void add_weight_gradient(const Vector& gradient, const Vector& x, int64_t d, int64_t row,
                         Array& weight_gradient) {
  const int64_t rows = weight_gradient.shape[1], columns = weight_gradient.shape[2];
  for (size_t i = 0; i < gradient.size(); ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      weight_gradient.values[(d * rows + row + static_cast<int64_t>(i)) * columns + j] +=
          gradient[i] * x[j];
    }
  }
}

void add_operand_gradient(const Vector& gradient, const Array& weight, int64_t d, int64_t row,
                          double* x_gradient) {
  const int64_t rows = weight.shape[1], columns = weight.shape[2];
  for (size_t i = 0; i < gradient.size(); ++i) {
    for (int64_t j = 0; j < columns; ++j) {
      x_gradient[j] +=
          gradient[i] * weight.values[(d * rows + row + static_cast<int64_t>(i)) * columns + j];
    }
  }
}

void add_bias_gradient(const Vector& gradient, int64_t d, int64_t part, int64_t row,
                       Array& bias_gradient) {
  const int64_t width = bias_gradient.shape[1];
  for (size_t i = 0; i < gradient.size(); ++i) {
    bias_gradient.values[d * width + part * width / 2 + row + static_cast<int64_t>(i)] +=
        gradient[i];
  }
}

Vector arriving_gradient(const BackwardCall& call, const RecurrentLayer& layer, const Vector& carry,
                         int64_t d, int64_t t, int64_t b) {
  Vector result = carry;
  if (const Array* dy = call.gradient_or_null(0)) {
    for (int64_t j = 0; j < layer.hidden; ++j)
      result[j] += dy->values[layer.step_at(t, d, b, layer.hidden) + j];
  }
  return result;
}

Vector final_gradient(const BackwardCall& call, const RecurrentLayer& layer, size_t index,
                      int64_t d, int64_t b) {
  const Array* g = call.gradient_or_null(index);
  return g != nullptr ? slice_of(*g, layer.state_at(d, b), layer.hidden) : Vector(layer.hidden, 0);
}

}  // namespace windlass::reference
