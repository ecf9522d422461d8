// Products of rows with the matrices of their experts: rows in the order of tokens, or in slots.

#include <algorithm>
#include <vector>

#include <ATen/ops/empty.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"
#include "windlass/runtime/kernels/products.h"

namespace windlass {
namespace {

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
                   const at::Tensor& rows, const ProductTarget& to) {
  at::Tensor product = to.adds ? to.out.index_select(0, rows)
                               : at::empty({rows.size(0), to.out.size(1)}, to.out.options());
  multiply_into(x.index_select(0, from), matrix, {}, {product, to.adds});
  at::Tensor out = to.out;
  out.index_copy_(0, rows, product);
}

// Calls visit(expert, first row, rows) for the slots that are used, rows counted through all
// experts.
template <class Visit>
void for_each_run_of_slots(const at::Tensor& used, int64_t slots, Visit&& visit) {
  with_integer_type(used.scalar_type(), [&](auto zero) {
    const auto* counts = used.data_ptr<decltype(zero)>();
    for (int64_t i = 0; i < used.numel(); ++i) {
      const auto count = static_cast<int64_t>(counts[i]);
      if (count < 0 || count > slots) fail_input("{} of {} slots are used", count, slots);
      if (count > 0) visit(i / used.size(1), i * slots, count);
    }
  });
}

}  // namespace

void grouped_linear_forward(ForwardCall& call) {
  const at::Tensor &x = call.input(0), &w = call.input(1), &chosen = call.input(2);
  const int64_t repeats = x.dim() == 2 ? chosen.size(1) : 1;
  ProductTarget to = product_target(call.outputs[0]);
  to.out = folded_rows(to.out);
  if (!to.adds && !has_all(call.facts.rows, w.size(0))) to.out.zero_();
  for_each_block(chosen, call.facts.rows, w.size(0), [&](int64_t e, const at::Tensor& rows) {
    multiply_rows(folded_rows(x), rows.floor_divide(repeats), w[e].t(), rows, to);
  });
}

void grouped_linear_backward(BackwardCall& call) {
  const at::Tensor g = folded_rows(call.gradient());
  const at::Tensor& chosen = call.input(2);
  const int64_t experts = call.shape(1)[0];
  const int64_t repeats = call.shape(0).size() == 2 ? chosen.size(1) : 1;
  if (call.wants(0)) {
    ProductTarget to = product_target(call.results[0]);
    to.out = folded_rows(to.out);
    if (!to.adds && (repeats > 1 || !has_all(call.facts.rows, experts))) to.out.zero_();
    for_each_block(chosen, call.facts.rows, experts, [&](int64_t e, const at::Tensor& rows) {
      if (repeats == 1) {
        multiply_rows(g, rows, call.input(1)[e], rows, to);
        return;
      }
      // A token has the sum over its rows.
      at::Tensor product = at::empty({rows.size(0), to.out.size(1)}, to.out.options());
      multiply_into(g.index_select(0, rows), call.input(1)[e], {}, {product, false});
      to.out.index_add_(0, rows.floor_divide(repeats), product);
    });
  }
  if (call.wants(1)) {
    const ProductTarget to = product_target(call.results[1]);
    std::vector<bool> begun(static_cast<size_t>(experts), to.adds);
    for_each_block(chosen, call.facts.rows, experts, [&](int64_t e, const at::Tensor& rows) {
      multiply_over_rows(g.index_select(0, rows),
                         folded_rows(call.input(0)).index_select(0, rows.floor_divide(repeats)),
                         {to.out[e], begun[static_cast<size_t>(e)]});
      begun[static_cast<size_t>(e)] = true;
    });
    for (int64_t e = 0; e < experts; ++e)
      if (!begun[static_cast<size_t>(e)]) to.out[e].zero_();
  }
}

void slot_linear_forward(ForwardCall& call) {
  const at::Tensor &x = call.input(0), &w = call.input(1), &used = call.input(2);
  const at::Tensor rows = folded_rows(x);
  ProductTarget to = product_target(call.outputs[0]);
  to.out = folded_rows(to.out);
  if (!to.adds) to.out.zero_();
  for_each_run_of_slots(used, x.size(1) / used.size(1), [&](int64_t e, int64_t row, int64_t count) {
    multiply_into(rows.narrow(0, row, count), w[e].t(), {},
                  {to.out.narrow(0, row, count), to.adds});
  });
}

void slot_linear_backward(BackwardCall& call) {
  const at::Tensor g = folded_rows(call.gradient());
  const at::Tensor& used = call.input(2);
  const int64_t slots = call.shape(0)[1] / used.size(1), experts = call.shape(1)[0];
  if (call.wants(0)) {
    ProductTarget to = product_target(call.results[0]);
    to.out = folded_rows(to.out);
    if (!to.adds) to.out.zero_();
    for_each_run_of_slots(used, slots, [&](int64_t e, int64_t row, int64_t count) {
      multiply_into(g.narrow(0, row, count), call.input(1)[e], {},
                    {to.out.narrow(0, row, count), to.adds});
    });
  }
  if (call.wants(1)) {
    const at::Tensor x = folded_rows(call.input(0));
    const ProductTarget to = product_target(call.results[1]);
    std::vector<bool> begun(static_cast<size_t>(experts), to.adds);
    for_each_run_of_slots(used, slots, [&](int64_t e, int64_t row, int64_t count) {
      multiply_over_rows(g.narrow(0, row, count), x.narrow(0, row, count),
                         {to.out[e], begun[static_cast<size_t>(e)]});
      begun[static_cast<size_t>(e)] = true;
    });
    for (int64_t e = 0; e < experts; ++e)
      if (!begun[static_cast<size_t>(e)]) to.out[e].zero_();
  }
}

}  // namespace windlass
