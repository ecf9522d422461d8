// Matrix products. Leading axes are folded into rows wherever the other operand is a single matrix,
// so that each product is one large gemm; gradients are written, or added, where they belong.
//
// 16-bit operands that ATen does not multiply well are widened a block at a time: beside one
// operand or result of the size of a weight in fp32, workspace stays small however many rows there
// are.

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
#include "windlass/runtime/threads.h"

namespace windlass {
namespace {

// Elements of 16-bit operands that are widened at a time.
constexpr int64_t kBlockElements = int64_t{1} << 20;

int64_t block_count(int64_t elements_each) {
  return std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, elements_each));
}

// All axes but the last as one.
at::Tensor as_rows(const at::Tensor& x) {
  int64_t rows = 1;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) rows *= x.size(i);
  return x.view({rows, x.size(-1)});
}

at::Tensor transposed_if(const at::Tensor& x, bool transpose) {
  return transpose ? x.transpose(-1, -2) : x;
}

// Where a product goes: into the fresh tensor of a result, or onto its sum.
struct Target {
  at::Tensor out;
  bool adds;
};

Target target_of(Result& result) {
  if (result.adds()) return {result.sum(), true};
  return {result.allocate(), false};
}

void put(const Target& to, const at::Tensor& value) {
  if (to.adds)
    to.out.add_(value);
  else
    to.out.copy_(value);
}

// Whether ATen's product of a [..., m, k] and b [..., k, n] into `out` is as good as in fp32. It
// leaves small 16-bit products to plain loops that round every partial sum.
bool is_direct(const at::Tensor& a, const at::Tensor& b, const at::Tensor& out) {
  constexpr int64_t kSmall = 16 * 16 * 16;
  const at::ScalarType type = a.scalar_type();
  if (b.scalar_type() != type || out.scalar_type() != type) return false;
  return !is_narrow(type) || (is_multiplied(type) && a.size(-2) * a.size(-1) * b.size(-1) > kSmall);
}

// Multiplications that BLAS does: 16-bit products go elsewhere.
int64_t blas_work(const at::Tensor& a, const at::Tensor& b) {
  return is_narrow(a.scalar_type()) ? 0 : a.numel() * b.size(-1);
}

// to[r, n] = a[r, k] b[k, n] + bias.
void multiply(const at::Tensor& a, const at::Tensor& b, const at::Tensor& bias, Target to) {
  if (is_direct(a, b, to.out)) {
    // Rows or columns at a time, whichever are more.
    const int64_t axis = a.size(0) >= b.size(1) ? 0 : 1;
    const auto part = [&](int64_t begin, int64_t end) {
      const int64_t count = end - begin;
      at::Tensor out = to.out.narrow(axis, begin, count);
      const at::Tensor left = axis == 0 ? a.narrow(0, begin, count) : a;
      const at::Tensor right = axis == 0 ? b : b.narrow(1, begin, count);
      if (to.adds)
        out.addmm_(left, right);
      else if (bias.defined())
        at::addmm_out(out, bias.expand({a.size(0), b.size(1)}).narrow(axis, begin, count), left,
                      right);
      else
        at::mm_out(out, left, right);
    };
    divide_product(to.out.size(axis), blas_work(a, b), part);
    return;
  }
  const at::Tensor wide_b = widened(b), wide_bias = widened(bias);
  const int64_t rows = a.size(0), step = block_count(a.size(1) + b.size(1));
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    const at::Tensor block = widened(a.narrow(0, row, count));
    put({to.out.narrow(0, row, count), to.adds},
        bias.defined() ? at::addmm(wide_bias, block, wide_b) : at::mm(block, wide_b));
  }
}

// to[m, n] = a[r, m]^T b[r, n]: the sum over all rows.
void multiply_over_rows(const at::Tensor& a, const at::Tensor& b, Target to) {
  if (!is_narrow(a) || is_direct(a.t(), b, to.out)) {
    multiply(a.t(), b, {}, std::move(to));
    return;
  }
  // An fp32 sum takes the products directly.
  const bool direct = to.adds && to.out.scalar_type() == at::kFloat;
  at::Tensor sum = direct ? to.out : at::zeros(to.out.sizes(), at::kFloat);
  const int64_t rows = a.size(0), step = block_count(a.size(1) + b.size(1));
  for (int64_t row = 0; row < rows; row += step) {
    const int64_t count = std::min(step, rows - row);
    sum.addmm_(widened(a.narrow(0, row, count)).t(), widened(b.narrow(0, row, count)));
  }
  if (!direct) put(to, sum);
}

// to[i] = a[i] b[i] for every i of a batch.
void multiply_batch(const at::Tensor& a, const at::Tensor& b, Target to) {
  if (is_direct(a, b, to.out)) {
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
  const int64_t step = block_count(a.size(1) * a.size(2) + b.size(1) * b.size(2));
  for (int64_t i = 0; i < size; i += step) {
    const int64_t count = std::min(step, size - i);
    put({to.out.narrow(0, i, count), to.adds},
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
    Target to = target_of(result);
    to.out = to.out.view({batch.size, matrix[0], matrix[1]});
    multiply_batch(left, right, std::move(to));
    return;
  }
  const at::Tensor all = at::bmm(widened(left), widened(right));
  result.set(all.view(with_matrix(batch.shape, matrix)).sum_to_size(shape));
}

// Rows of an expert that are multiplied at a time, which bounds workspace.
constexpr int64_t kExpertRows = 2048;

// Calls visit(expert among those that are here, rows) for the rows, token * choices + choice, of
// each expert, a block at a time.
template <class Visit>
void for_each_block(const at::Tensor& chosen, const AxisPart& here, int64_t experts,
                    Visit&& visit) {
  const int64_t all = here.whole_size(experts);
  std::vector<std::vector<int64_t>> rows(static_cast<size_t>(experts));
  with_integer_type(chosen.scalar_type(), [&](auto zero) {
    const auto* ids = chosen.data_ptr<decltype(zero)>();
    for (int64_t row = 0; row < chosen.numel(); ++row) {
      const auto expert = static_cast<int64_t>(ids[row]);
      if (expert < 0 || expert >= all)
        fail_input("row {} is for expert {}, expected 0 to {}", row, expert, all - 1);
      const int64_t local = here.to_local(expert);
      if (local >= 0) rows[static_cast<size_t>(local)].push_back(row);
    }
  });
  for (int64_t e = 0; e < experts; ++e) {
    const std::vector<int64_t>& own = rows[static_cast<size_t>(e)];
    for (size_t at = 0; at < own.size(); at += static_cast<size_t>(kExpertRows)) {
      const auto count = std::min<int64_t>(kExpertRows, static_cast<int64_t>(own.size() - at));
      const at::Tensor block = at::empty({count}, at::kLong);
      std::copy_n(own.begin() + static_cast<ptrdiff_t>(at), count, block.data_ptr<int64_t>());
      visit(e, block);
    }
  }
}

// Whether all experts are here, so that every row has one.
bool has_all(const AxisPart& here, int64_t experts) { return here.whole_size(experts) == experts; }

// y[rows] = x[rows] matrix, or onto them.
void multiply_rows(const at::Tensor& x, const at::Tensor& from, const at::Tensor& matrix,
                   const at::Tensor& rows, const Target& to) {
  at::Tensor product = to.adds ? to.out.index_select(0, rows)
                               : at::empty({rows.size(0), to.out.size(1)}, to.out.options());
  multiply(x.index_select(0, from), matrix, {}, {product, to.adds});
  at::Tensor out = to.out;
  out.index_copy_(0, rows, product);
}

}  // namespace

void matmul_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<MatMulAttrs>();
  const at::Tensor &a = call.input(0), &b = call.input(1);
  const Batch batch = batch_of(attrs, Shape(a.sizes().begin(), a.sizes().end()),
                               Shape(b.sizes().begin(), b.sizes().end()));
  Target to = target_of(call.outputs[0]);
  if (batch.folds) {
    to.out = as_rows(to.out);
    multiply(as_rows(a), transposed_if(as_matrix(b), attrs.transpose_b), {}, std::move(to));
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
    const at::Tensor g = as_rows(gradient);
    if (call.wants(0)) {
      Target to = target_of(call.results[0]);
      to.out = as_rows(to.out);
      multiply(g, transposed_if(as_matrix(call.input(1)), !attrs.transpose_b), {}, std::move(to));
    }
    if (call.wants(1)) {
      Target to = target_of(call.results[1]);
      to.out = as_matrix(to.out);
      const at::Tensor a = as_rows(call.input(0));
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
  Target to = target_of(call.outputs[0]);
  to.out = as_rows(to.out);
  multiply(as_rows(call.input(0)), transposed_if(call.input(1), !input_major),
           call.has(2) && call.facts.adds_bias ? call.input(2) : at::Tensor(), std::move(to));
}

void linear_backward(BackwardCall& call) {
  const bool input_major = call.attrs<LinearAttrs>().input_major;
  const at::Tensor g = as_rows(call.gradient());
  if (call.wants(0)) {
    Target to = target_of(call.results[0]);
    to.out = as_rows(to.out);
    multiply(g, transposed_if(call.input(1), input_major), {}, std::move(to));
  }
  if (call.wants(1)) {
    const at::Tensor x = as_rows(call.input(0));
    Target to = target_of(call.results[1]);
    input_major ? multiply_over_rows(x, g, std::move(to)) : multiply_over_rows(g, x, std::move(to));
  }
  if (call.wants(2)) sum_rows(g, call.results[2]);
}

void grouped_linear_forward(ForwardCall& call) {
  const at::Tensor &x = call.input(0), &w = call.input(1), &chosen = call.input(2);
  const int64_t repeats = x.dim() == 2 ? chosen.size(1) : 1;
  Target to = target_of(call.outputs[0]);
  to.out = as_rows(to.out);
  if (!to.adds && !has_all(call.facts.rows, w.size(0))) to.out.zero_();
  for_each_block(chosen, call.facts.rows, w.size(0), [&](int64_t e, const at::Tensor& rows) {
    multiply_rows(as_rows(x), rows.floor_divide(repeats), w[e].t(), rows, to);
  });
}

void grouped_linear_backward(BackwardCall& call) {
  const at::Tensor g = as_rows(call.gradient());
  const at::Tensor& chosen = call.input(2);
  const int64_t experts = call.shape(1)[0];
  const int64_t repeats = call.shape(0).size() == 2 ? chosen.size(1) : 1;
  if (call.wants(0)) {
    Target to = target_of(call.results[0]);
    to.out = as_rows(to.out);
    if (!to.adds && (repeats > 1 || !has_all(call.facts.rows, experts))) to.out.zero_();
    for_each_block(chosen, call.facts.rows, experts, [&](int64_t e, const at::Tensor& rows) {
      if (repeats == 1) {
        multiply_rows(g, rows, call.input(1)[e], rows, to);
        return;
      }
      // A token has the sum over its rows.
      at::Tensor product = at::empty({rows.size(0), to.out.size(1)}, to.out.options());
      multiply(g.index_select(0, rows), call.input(1)[e], {}, {product, false});
      to.out.index_add_(0, rows.floor_divide(repeats), product);
    });
  }
  if (call.wants(1)) {
    const Target to = target_of(call.results[1]);
    std::vector<bool> begun(static_cast<size_t>(experts), to.adds);
    for_each_block(chosen, call.facts.rows, experts, [&](int64_t e, const at::Tensor& rows) {
      multiply_over_rows(g.index_select(0, rows),
                         as_rows(call.input(0)).index_select(0, rows.floor_divide(repeats)),
                         {to.out[e], begun[static_cast<size_t>(e)]});
      begun[static_cast<size_t>(e)] = true;
    });
    for (int64_t e = 0; e < experts; ++e)
      if (!begun[static_cast<size_t>(e)]) to.out[e].zero_();
  }
}

}  // namespace windlass
