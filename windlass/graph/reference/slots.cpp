// Mixture of experts with rows in slots: to the slots, the products there, and back.

#include "windlass/base/error.h"
#include "windlass/graph/reference/calls.h"

namespace windlass::reference {
namespace {

// Calls visit(token, row of chosen, row of slots) for every choice whose expert is here; rows of
// slots are counted through those of all experts that are here.
template <class Visit>
void for_each_slot(const SlotAttrs& attrs, const Array& chosen, const AxisPart& here,
                   Visit&& visit) {
  const int64_t tokens = chosen.shape[0], choices = chosen.shape[1];
  const int64_t blocks = tokens / attrs.block, all = here.whole_size(attrs.experts);
  for (int64_t b = 0; b < blocks; ++b) {
    std::vector<int64_t> used(static_cast<size_t>(all));
    for (int64_t row = b * attrs.block * choices; row < (b + 1) * attrs.block * choices; ++row) {
      const auto expert = static_cast<int64_t>(chosen.values[row]);
      if (expert < 0 || expert >= all)
        fail_input("row {} is for expert {}, expected 0 to {}", row, expert, all - 1);
      const int64_t slot = used[static_cast<size_t>(expert)]++;
      if (slot >= attrs.slots)
        fail_input("expert {} is chosen more than {} times for {} tokens", expert, attrs.slots,
                   attrs.block);
      const int64_t local = here.to_local(expert);
      if (local >= 0) visit(row / choices, row, (local * blocks + b) * attrs.slots + slot);
    }
  }
}

// Calls visit(row of slots, expert) for the slots that are used.
template <class Visit>
void for_each_used(const Array& used, int64_t slots, Visit&& visit) {
  const int64_t blocks = used.shape[1];
  for (int64_t i = 0; i < static_cast<int64_t>(used.values.size()); ++i) {
    const auto count = static_cast<int64_t>(used.values[i]);
    if (count < 0 || count > slots) fail_input("{} of {} slots are used", count, slots);
    for (int64_t s = 0; s < count; ++s) visit(i * slots + s, i / blocks);
  }
}

}  // namespace

ForwardResult dispatch_forward(const ForwardCall& call) {
  const auto& attrs = call.attrs<SlotAttrs>();
  const Array &x = call.input(0), &chosen = call.input(1);
  const int64_t blocks = x.shape[0] / attrs.block, width = x.shape[1];
  Array rows({attrs.experts, blocks * attrs.slots, width}), used({attrs.experts, blocks});
  for_each_slot(attrs, chosen, call.facts.rows, [&](int64_t token, int64_t, int64_t slot) {
    std::copy_n(&x.values[token * width], width, &rows.values[slot * width]);
    used.values[slot / attrs.slots] += 1;
  });
  return {{rows, used}, {}};
}

std::vector<Array> dispatch_backward(const BackwardCall& call) {
  const int64_t width = call.shape(0)[1];
  const Array& g = call.gradient();
  Array gx = call.zeros_if_wanted(0);
  if (call.wants(0))
    for_each_slot(call.attrs<SlotAttrs>(), call.input(1), call.facts().rows,
                  [&](int64_t token, int64_t, int64_t slot) {
                    for (int64_t i = 0; i < width; ++i)
                      gx.values[token * width + i] += g.values[slot * width + i];
                  });
  return {gx, Array()};
}

ForwardResult collect_forward(const ForwardCall& call) {
  const Array &rows = call.input(0), &chosen = call.input(1), &weights = call.input(2);
  const int64_t width = rows.shape[2];
  Array y({chosen.shape[0], width});
  for_each_slot(call.attrs<SlotAttrs>(), chosen, call.facts.rows,
                [&](int64_t token, int64_t row, int64_t slot) {
                  for (int64_t i = 0; i < width; ++i)
                    y.values[token * width + i] +=
                        weights.values[row] * rows.values[slot * width + i];
                });
  return {{y}, {}};
}

std::vector<Array> collect_backward(const BackwardCall& call) {
  const Array& g = call.gradient();
  const int64_t width = call.shape(0)[2];
  Array grows = call.zeros_if_wanted(0), gweights = call.zeros_if_wanted(2);
  for_each_slot(call.attrs<SlotAttrs>(), call.input(1), call.facts().rows,
                [&](int64_t token, int64_t row, int64_t slot) {
                  for (int64_t i = 0; i < width; ++i) {
                    const double dy = g.values[token * width + i];
                    if (call.wants(0))
                      grows.values[slot * width + i] = call.input(2).values[row] * dy;
                    if (call.wants(2))
                      gweights.values[row] += call.input(0).values[slot * width + i] * dy;
                  }
                });
  return {grows, Array(), gweights};
}

ForwardResult slot_linear_forward(const ForwardCall& call) {
  const Array &x = call.input(0), &w = call.input(1), &used = call.input(2);
  const int64_t n = w.shape[1], k = w.shape[2];
  Array y({x.shape[0], x.shape[1], n});
  for_each_used(used, x.shape[1] / used.shape[1], [&](int64_t row, int64_t expert) {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i)
        y.values[row * n + j] += w.values[(expert * n + j) * k + i] * x.values[row * k + i];
  });
  return {{y}, {}};
}

std::vector<Array> slot_linear_backward(const BackwardCall& call) {
  const int64_t n = call.shape(1)[1], k = call.shape(1)[2];
  const Array& g = call.gradient();
  const Array& used = call.input(2);
  Array gx = call.zeros_if_wanted(0), gw = call.zeros_if_wanted(1);
  for_each_used(used, call.shape(0)[1] / used.shape[1], [&](int64_t row, int64_t expert) {
    for (int64_t j = 0; j < n; ++j)
      for (int64_t i = 0; i < k; ++i) {
        const int64_t at = (expert * n + j) * k + i;
        if (call.wants(0))
          gx.values[row * k + i] += call.input(1).values[at] * g.values[row * n + j];
        if (call.wants(1))
          gw.values[at] += g.values[row * n + j] * call.input(0).values[row * k + i];
      }
  });
  return {gx, gw, Array()};
}

}  // namespace windlass::reference
