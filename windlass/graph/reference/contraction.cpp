// Matrix products. Each gradient is again a product, with one operand transposed.

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// A batch of products C[m, n] = A[m, k] B[k, n], batch axes broadcast.
struct Batches {
  Shape batch;
  Strides a_batch, b_batch;  // of whole matrices, in elements
  int64_t m = 0, n = 0, k = 0;
};

// Strides of the batch axes of `shape` (its last two are a matrix) broadcast to `batch`.
Strides batch_strides(const Shape& shape, const Shape& batch) {
  Strides strides = broadcast_strides(Shape(shape.begin(), shape.end() - 2), batch);
  const int64_t matrix = shape[shape.size() - 2] * shape[shape.size() - 1];
  for (int64_t& stride : strides) stride *= matrix;
  return strides;
}

Batches batches_of(const MatMulAttrs& attrs, const Shape& a, const Shape& b) {
  ensure(a.size() >= 2 && b.size() >= 2, "MatMul operand of rank below 2");
  Batches result;
  result.batch = broadcast_shapes(Shape(a.begin(), a.end() - 2), Shape(b.begin(), b.end() - 2));
  result.a_batch = batch_strides(a, result.batch);
  result.b_batch = batch_strides(b, result.batch);
  result.m = a[a.size() - (attrs.transpose_a ? 1 : 2)];
  result.k = a[a.size() - (attrs.transpose_a ? 2 : 1)];
  result.n = b[b.size() - (attrs.transpose_b ? 2 : 1)];
  ensure(b[b.size() - (attrs.transpose_b ? 1 : 2)] == result.k, "MatMul inner dimensions differ");
  return result;
}

// The rows x columns matrix at `data`, stored transposed if `transpose`.
template <class T>
Matrix<T> matrix_at(T* data, int64_t rows, int64_t columns, bool transpose = false) {
  if (transpose) return {data, 1, rows};
  return {data, columns, 1};
}

// Sums over all axes but the last.
Array sum_rows(const Array& x) { return sum_to(x, {x.shape.back()}); }

int64_t row_count(const Shape& shape) { return product(shape, 0, shape.size() - 1); }

// Calls visit(row, row of x, expert among those that are here) for every row, token * choices +
// choice, whose expert is here.
template <class Visit>
void for_each_row(const Array& chosen, const Shape& x, const AxisPart& here, int64_t experts,
                  Visit&& visit) {
  const int64_t all = here.whole_size(experts), repeats = x.size() == 2 ? chosen.shape[1] : 1;
  for (int64_t row = 0; row < static_cast<int64_t>(chosen.values.size()); ++row) {
    const auto expert = static_cast<int64_t>(chosen.values[row]);
    if (expert < 0 || expert >= all)
      fail_input("row {} is for expert {}, expected 0 to {}", row, expert, all - 1);
    const int64_t local = here.to_local(expert);
    if (local >= 0) visit(row, row / repeats, local);
  }
}

}  // namespace

ForwardResult matmul_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<MatMulAttrs>();
  const Array& a = call.input(0);
  const Array& b = call.input(1);
  const Batches s = batches_of(attrs, a.shape, b.shape);
  Shape shape = s.batch;
  shape.insert(shape.end(), {s.m, s.n});
  Array c(shape);
  walk<2>(s.batch, {s.a_batch, s.b_batch}, [&](int64_t i, const auto& at) {
    add_product(matrix_at(a.values.data() + at[0], s.m, s.k, attrs.transpose_a),
                matrix_at(b.values.data() + at[1], s.k, s.n, attrs.transpose_b),
                matrix_at(c.values.data() + i * s.m * s.n, s.m, s.n), s.m, s.n, s.k);
  });
  return {{c}, {}};
}

std::vector<Array> matmul_backward(const BackwardCall& call) {
  const auto& attrs = call.attrs<MatMulAttrs>();
  const Batches s = batches_of(attrs, call.shape(0), call.shape(1));
  const Array& g = call.gradient();
  const auto g_matrix = [&](int64_t i) {
    return matrix_at(g.values.data() + i * s.m * s.n, s.m, s.n);
  };
  Array ga = call.zeros_if_wanted(0);
  if (call.wants(0)) {
    const Array& b = call.input(1);
    walk<2>(s.batch, {s.a_batch, s.b_batch}, [&](int64_t i, const auto& at) {
      add_product(g_matrix(i),
                  matrix_at(b.values.data() + at[1], s.k, s.n, attrs.transpose_b).transposed(),
                  matrix_at(ga.values.data() + at[0], s.m, s.k, attrs.transpose_a), s.m, s.k, s.n);
    });
  }
  Array gb = call.zeros_if_wanted(1);
  if (call.wants(1)) {
    const Array& a = call.input(0);
    walk<2>(s.batch, {s.a_batch, s.b_batch}, [&](int64_t i, const auto& at) {
      add_product(matrix_at(a.values.data() + at[0], s.m, s.k, attrs.transpose_a).transposed(),
                  g_matrix(i), matrix_at(gb.values.data() + at[1], s.k, s.n, attrs.transpose_b),
                  s.k, s.n, s.m);
    });
  }
  return {ga, gb};
}

ForwardResult linear_forward(const ForwardCall& call) {
  const bool input_major = call.attrs<LinearAttrs>().input_major;
  const Array& x = call.input(0);
  const Array& w = call.input(1);
  const int64_t k = w.shape[input_major ? 0 : 1], n = w.shape[input_major ? 1 : 0];
  ensure(x.shape.back() == k, "Linear input does not fit the weight");
  Shape shape = x.shape;
  shape.back() = n;
  const bool biased = call.has(2) && call.facts.adds_bias;
  Array y = biased ? broadcast_to(call.input(2), shape) : Array(shape);
  const int64_t rows = row_count(shape);
  add_product(matrix_at(x.values.data(), rows, k), matrix_at(w.values.data(), k, n, !input_major),
              matrix_at(y.values.data(), rows, n), rows, n, k);
  return {{y}, {}};
}

std::vector<Array> linear_backward(const BackwardCall& call) {
  const bool input_major = call.attrs<LinearAttrs>().input_major;
  const Shape& w_shape = call.shape(1);
  const int64_t k = w_shape[input_major ? 0 : 1], n = w_shape[input_major ? 1 : 0];
  const Array& g = call.gradient();
  const int64_t rows = row_count(g.shape);
  const auto g_matrix = matrix_at(g.values.data(), rows, n);
  Array gx = call.zeros_if_wanted(0);
  if (call.wants(0)) {
    const auto w = matrix_at(call.input(1).values.data(), k, n, !input_major);
    add_product(g_matrix, w.transposed(), matrix_at(gx.values.data(), rows, k), rows, k, n);
  }
  Array gw = call.zeros_if_wanted(1);
  if (call.wants(1)) {
    const auto x = matrix_at(call.input(0).values.data(), rows, k);
    add_product(x.transposed(), g_matrix, matrix_at(gw.values.data(), k, n, !input_major), k, n,
                rows);
  }
  return {gx, gw, call.wants(2) ? sum_rows(g) : Array()};
}

ForwardResult grouped_linear_forward(const ForwardCall& call) {
  const Array& x = call.input(0);
  const Array& w = call.input(1);
  const Array& chosen = call.input(2);
  const int64_t n = w.shape[1], k = w.shape[2];
  Array y({chosen.shape[0], chosen.shape[1], n});
  for_each_row(chosen, x.shape, call.facts.rows, w.shape[0],
               [&](int64_t row, int64_t from, int64_t expert) {
                 add_product(matrix_at(x.values.data() + from * k, 1, k),
                             matrix_at(w.values.data() + expert * n * k, k, n, true),
                             matrix_at(y.values.data() + row * n, 1, n), 1, n, k);
               });
  return {{y}, {}};
}

std::vector<Array> grouped_linear_backward(const BackwardCall& call) {
  const int64_t experts = call.shape(1)[0], n = call.shape(1)[1], k = call.shape(1)[2];
  const Array& g = call.gradient();
  Array gx = call.zeros_if_wanted(0), gw = call.zeros_if_wanted(1);
  for_each_row(call.input(2), call.shape(0), call.facts().rows, experts,
               [&](int64_t row, int64_t from, int64_t expert) {
                 const auto g_matrix = matrix_at(g.values.data() + row * n, 1, n);
                 if (call.wants(0))
                   add_product(g_matrix,
                               matrix_at(call.input(1).values.data() + expert * n * k, n, k),
                               matrix_at(gx.values.data() + from * k, 1, k), 1, k, n);
                 if (call.wants(1))
                   add_product(g_matrix.transposed(),
                               matrix_at(call.input(0).values.data() + from * k, 1, k),
                               matrix_at(gw.values.data() + expert * n * k, n, k), n, k, 1);
               });
  return {gx, gw};
}

}  // namespace windlass::reference
