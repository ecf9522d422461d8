// Matrix products. Leading axes are folded into rows wherever the other operand is a single matrix,
// so that each product is one large gemm; gradients are written, or added, where they belong.

#include <algorithm>
#include <vector>

#include <ATen/ops/addmm.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/precision.h"
#include "windlass/runtime/kernels/products.h"
#include "windlass/runtime/threads.h"

namespace windlass {
namespace {

at::Tensor transposed_if(const at::Tensor& x, bool transpose) {
  return transpose ? x.transpose(-1, -2) : x;
}

// to[i] = a[i] b[i] for every i of a batch.
void multiply_batch(const at::Tensor& a, const at::Tensor& b, ProductTarget to) {
  if (is_direct_product(a, b, to.out)) {
    divide_product(a.size(0), blas_work(a, b), [&](int64_t begin, int64_t end) {
      at::Tensor out = to.out.narrow(0, begin, end - begin);
      const at::Tensor left = a.narrow(0, begin, end - begin);
      const at::Tensor right = b.narrow(0, begin, end - begin);
      if (to.adds)
        out.baddbmm_(left, right);
      else
        at::bmm_out(out, left, right);
    });
    return;
  }
  const int64_t size = a.size(0);
  const int64_t step = widened_block_count(a.size(1) * a.size(2) + b.size(1) * b.size(2));
  for (int64_t i = 0; i < size; i += step) {
    const int64_t count = std::min(step, size - i);
    put_product({to.out.narrow(0, i, count), to.adds},
                at::bmm(widened(a.narrow(0, i, count)), widened(b.narrow(0, i, count))));
  }
}

void sum_rows(const at::Tensor& rows, Result& result) {
  if (result.adds()) {
    result.set(rows.sum({0}));
    return;
  }
  at::Tensor& out = result.allocate();
  at::sum_out(out, rows, at::IntArrayRef{0}, /*keepdim=*/false, out.scalar_type());
}

// A matrix product with batch axes.
struct Batch {
  Shape shape;       // of the batch axes, broadcast
  int64_t size = 1;  // product of them
  // The second operand is one matrix, and the first has its rows in order: all batches are one
  // product.
  bool folds = false;
};

Batch batch_of(const MatMulAttrs& attrs, const Shape& a, const Shape& b) {
  Batch batch;
  const Shape b_batch(b.begin(), b.end() - 2);
  batch.shape = broadcast_shapes(Shape(a.begin(), a.end() - 2), b_batch);
  batch.size = element_count(batch.shape);
  batch.folds = !attrs.transpose_a && element_count(b_batch) == 1;
  return batch;
}

Shape with_matrix(Shape batch, const Shape& operand) {
  batch.insert(batch.end(), operand.end() - 2, operand.end());
  return batch;
}

// [batch, rows, columns]; copied only where batch axes are really broadcast.
at::Tensor as_batch(const at::Tensor& x, const Batch& batch) {
  const Shape shape(x.sizes().begin(), x.sizes().end());
  return x.expand(with_matrix(batch.shape, shape)).reshape({batch.size, x.size(-2), x.size(-1)});
}

at::Tensor as_matrix(const at::Tensor& x) { return x.view({x.size(-2), x.size(-1)}); }

// The gradient of an operand, left[i] right[i] for every batch, summed where it was broadcast.
void batch_gradient(const at::Tensor& left, const at::Tensor& right, const Batch& batch,
                    Result& result) {
  const Shape& shape = result.type().shape;
  const Shape matrix(shape.end() - 2, shape.end());
  if (element_count(shape) == batch.size * matrix[0] * matrix[1]) {
    ProductTarget to = product_target(result);
    to.out = to.out.view({batch.size, matrix[0], matrix[1]});
    multiply_batch(left, right, std::move(to));
    return;
  }
  const at::Tensor all = at::bmm(widened(left), widened(right));
  result.set(all.view(with_matrix(batch.shape, matrix)).sum_to_size(shape));
}

}  // namespace

void matmul_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<MatMulAttrs>();
  const at::Tensor &a = call.input(0), &b = call.input(1);
  const Batch batch = batch_of(attrs, Shape(a.sizes().begin(), a.sizes().end()),
                               Shape(b.sizes().begin(), b.sizes().end()));
  ProductTarget to = product_target(call.outputs[0]);
  if (batch.folds) {
    to.out = folded_rows(to.out);
    multiply_into(folded_rows(a), transposed_if(as_matrix(b), attrs.transpose_b), {},
                  std::move(to));
    return;
  }
  to.out = to.out.view({batch.size, to.out.size(-2), to.out.size(-1)});
  multiply_batch(transposed_if(as_batch(a, batch), attrs.transpose_a),
                 transposed_if(as_batch(b, batch), attrs.transpose_b), std::move(to));
}

void matmul_backward(BackwardCall& call) {
  const auto& attrs = call.attrs<MatMulAttrs>();
  const Batch batch = batch_of(attrs, call.shape(0), call.shape(1));
  const at::Tensor& gradient = call.gradient();
  if (batch.folds &&
      batch.size * call.shape(0).end()[-2] * call.shape(0).back() == element_count(call.shape(0))) {
    const at::Tensor g = folded_rows(gradient);
    if (call.wants(0)) {
      ProductTarget to = product_target(call.results[0]);
      to.out = folded_rows(to.out);
      multiply_into(g, transposed_if(as_matrix(call.input(1)), !attrs.transpose_b), {},
                    std::move(to));
    }
    if (call.wants(1)) {
      ProductTarget to = product_target(call.results[1]);
      to.out = as_matrix(to.out);
      const at::Tensor a = folded_rows(call.input(0));
      attrs.transpose_b ? multiply_over_rows(g, a, std::move(to))
                        : multiply_over_rows(a, g, std::move(to));
    }
    return;
  }
  const at::Tensor g = gradient.view({batch.size, gradient.size(-2), gradient.size(-1)});
  const at::Tensor g_transposed = g.transpose(1, 2);
  // Gradients in the layout their operand is stored in.
  if (call.wants(0)) {
    const at::Tensor b = transposed_if(as_batch(call.input(1), batch), attrs.transpose_b);
    attrs.transpose_a ? batch_gradient(b, g_transposed, batch, call.results[0])
                      : batch_gradient(g, b.transpose(1, 2), batch, call.results[0]);
  }
  if (call.wants(1)) {
    const at::Tensor a = transposed_if(as_batch(call.input(0), batch), attrs.transpose_a);
    attrs.transpose_b ? batch_gradient(g_transposed, a, batch, call.results[1])
                      : batch_gradient(a.transpose(1, 2), g, batch, call.results[1]);
  }
}

void linear_forward(ForwardCall& call) {
  const bool input_major = call.attrs<LinearAttrs>().input_major;
  ProductTarget to = product_target(call.outputs[0]);
  to.out = folded_rows(to.out);
  multiply_into(folded_rows(call.input(0)), transposed_if(call.input(1), !input_major),
                call.has(2) && call.facts.adds_bias ? call.input(2) : at::Tensor(), std::move(to));
}

void linear_backward(BackwardCall& call) {
  const bool input_major = call.attrs<LinearAttrs>().input_major;
  const at::Tensor g = folded_rows(call.gradient());
  if (call.wants(0)) {
    ProductTarget to = product_target(call.results[0]);
    to.out = folded_rows(to.out);
    multiply_into(g, transposed_if(call.input(1), input_major), {}, std::move(to));
  }
  if (call.wants(1)) {
    const at::Tensor x = folded_rows(call.input(0));
    ProductTarget to = product_target(call.results[1]);
    input_major ? multiply_over_rows(x, g, std::move(to)) : multiply_over_rows(g, x, std::move(to));
  }
  if (call.wants(2)) sum_rows(g, call.results[2]);
}

}  // namespace windlass
