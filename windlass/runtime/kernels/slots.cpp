// Rows of tokens to the slots of their experts, and back.

#include <algorithm>
#include <vector>

#include <ATen/Parallel.h>

#include "windlass/base/error.h"
#include "windlass/runtime/kernels/element_types.h"
#include "windlass/runtime/kernels/kernel.h"

namespace windlass {
namespace {

constexpr int64_t kSlotGrain = int64_t{1} << 14;  // elements worth a thread

// By row of the chosen experts, token * choices + choice: its row among the slots of the experts
// that are here; -1: its expert is elsewhere.
std::vector<int64_t> expert_rows(const SlotAttrs& attrs, const at::Tensor& chosen,
                                 const AxisPart& here) {
  const int64_t each = attrs.block * chosen.size(1);
  const int64_t blocks = chosen.size(0) / attrs.block, all = here.whole_size(attrs.experts);
  std::vector<int64_t> result(static_cast<size_t>(chosen.numel()));
  std::vector<int64_t> used;
  with_integer_type(chosen.scalar_type(), [&](auto zero) {
    const auto* ids = chosen.data_ptr<decltype(zero)>();
    for (int64_t row = 0; row < chosen.numel(); ++row) {
      if (row % each == 0) used.assign(static_cast<size_t>(all), 0);
      const auto expert = static_cast<int64_t>(ids[row]);
      if (expert < 0 || expert >= all)
        fail_input("row {} is for expert {}, expected 0 to {}", row, expert, all - 1);
      const int64_t slot = used[static_cast<size_t>(expert)]++;
      if (slot >= attrs.slots)
        fail_input(
            "expert {} is chosen more than {} times for {} tokens, which is all the room it has; "
            "plan again with a larger --expert-capacity (experts / choices of a token is always "
            "enough)",
            expert, attrs.slots, attrs.block);
      const int64_t local = here.to_local(expert);
      result[static_cast<size_t>(row)] =
          local < 0 ? -1 : (local * blocks + row / each) * attrs.slots + slot;
    }
  });
  return result;
}

int64_t slot_grain(int64_t width) {
  return std::max<int64_t>(1, kSlotGrain / std::max<int64_t>(1, width));
}

at::Tensor zeros_or_sum(Result& result) {
  return result.adds() ? result.sum() : result.allocate().zero_();
}

}  // namespace

void dispatch_forward(ForwardCall& call) {
  const auto& attrs = call.attrs<SlotAttrs>();
  const at::Tensor &x = call.input(0), &chosen = call.input(1);
  const int64_t choices = chosen.size(1), width = x.size(1);
  const std::vector<int64_t> slots = expert_rows(attrs, chosen, call.facts.rows);
  at::Tensor rows = call.outputs[0].allocate().zero_();
  auto* used = call.outputs[1].allocate().zero_().data_ptr<int64_t>();
  for (const int64_t slot : slots)
    if (slot >= 0) ++used[slot / attrs.slots];
  with_float_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* from = x.data_ptr<T>();
    T* to = rows.data_ptr<T>();
    at::parallel_for(0, chosen.numel(), slot_grain(width), [&](int64_t begin, int64_t end) {
      for (int64_t r = begin; r < end; ++r)
        if (const int64_t slot = slots[static_cast<size_t>(r)]; slot >= 0)
          std::copy_n(from + r / choices * width, width, to + slot * width);
    });
  });
}

void dispatch_backward(BackwardCall& call) {
  if (!call.wants(0)) return;
  const at::Tensor& chosen = call.input(1);
  const int64_t choices = chosen.size(1), width = call.shape(0)[1];
  const std::vector<int64_t> slots = expert_rows(call.attrs<SlotAttrs>(), chosen, call.facts.rows);
  const at::Tensor gradient = call.gradient();
  at::Tensor dx = zeros_or_sum(call.results[0]);
  with_float_type(gradient.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    using W = wide_t<T>;
    const T* g = gradient.data_ptr<T>();
    T* out = dx.data_ptr<T>();
    at::parallel_for(0, chosen.size(0), slot_grain(width * choices),
                     [&](int64_t begin, int64_t end) {
                       std::vector<W> sum(static_cast<size_t>(width));
                       for (int64_t t = begin; t < end; ++t) {
                         T* to = out + t * width;
                         for (size_t i = 0; i < sum.size(); ++i) sum[i] = static_cast<W>(to[i]);
                         for (int64_t r = t * choices; r < (t + 1) * choices; ++r) {
                           const int64_t slot = slots[static_cast<size_t>(r)];
                           if (slot < 0) continue;
                           const T* row = g + slot * width;
                           for (size_t i = 0; i < sum.size(); ++i) sum[i] += static_cast<W>(row[i]);
                         }
                         for (size_t i = 0; i < sum.size(); ++i) to[i] = static_cast<T>(sum[i]);
                       }
                     });
  });
}

void collect_forward(ForwardCall& call) {
  const at::Tensor &rows = call.input(0), &chosen = call.input(1), &weights = call.input(2);
  const int64_t choices = chosen.size(1), width = rows.size(2);
  const std::vector<int64_t> slots = expert_rows(call.attrs<SlotAttrs>(), chosen, call.facts.rows);
  at::Tensor& y = call.outputs[0].allocate();
  with_float_type(rows.scalar_type(), [&](auto zero) {
    with_float_type(weights.scalar_type(), [&](auto weight_zero) {
      using T = decltype(zero);
      using V = decltype(weight_zero);
      using W = wide_t<T>;
      const T* from = rows.data_ptr<T>();
      const V* weight = weights.data_ptr<V>();
      T* out = y.data_ptr<T>();
      at::parallel_for(0, chosen.size(0), slot_grain(width * choices),
                       [&](int64_t begin, int64_t end) {
                         std::vector<W> sum(static_cast<size_t>(width));
                         for (int64_t t = begin; t < end; ++t) {
                           std::fill(sum.begin(), sum.end(), W(0));
                           for (int64_t r = t * choices; r < (t + 1) * choices; ++r) {
                             const int64_t slot = slots[static_cast<size_t>(r)];
                             if (slot < 0) continue;
                             const auto w = static_cast<W>(weight[r]);
                             const T* row = from + slot * width;
                             for (size_t i = 0; i < sum.size(); ++i)
                               sum[i] += w * static_cast<W>(row[i]);
                           }
                           T* to = out + t * width;
                           for (size_t i = 0; i < sum.size(); ++i) to[i] = static_cast<T>(sum[i]);
                         }
                       });
    });
  });
}

void collect_backward(BackwardCall& call) {
  const at::Tensor g = call.gradient();
  const at::Tensor& chosen = call.input(1);
  const int64_t choices = chosen.size(1), width = call.shape(0)[2];
  const bool wants_rows = call.wants(0), wants_weights = call.wants(2);
  if (!wants_rows && !wants_weights) return;
  const std::vector<int64_t> slots = expert_rows(call.attrs<SlotAttrs>(), chosen, call.facts.rows);
  at::Tensor drows = wants_rows ? zeros_or_sum(call.results[0]) : at::Tensor();
  at::Tensor dweights = wants_weights ? zeros_or_sum(call.results[2]) : at::Tensor();
  with_float_type(g.scalar_type(), [&](auto zero) {
    with_float_type(scalar_type(call.input_types[2].dtype), [&](auto weight_zero) {
      using T = decltype(zero);
      using V = decltype(weight_zero);
      using W = wide_t<T>;
      const T* gradient = g.data_ptr<T>();
      const T* rows = wants_weights ? call.input(0).data_ptr<T>() : nullptr;
      const V* weights = wants_rows ? call.input(2).data_ptr<V>() : nullptr;
      T* to_rows = wants_rows ? drows.data_ptr<T>() : nullptr;
      V* to_weights = wants_weights ? dweights.data_ptr<V>() : nullptr;
      at::parallel_for(0, chosen.numel(), slot_grain(width), [&](int64_t begin, int64_t end) {
        for (int64_t r = begin; r < end; ++r) {
          const int64_t slot = slots[static_cast<size_t>(r)];
          if (slot < 0) continue;
          const T* dy = gradient + r / choices * width;
          if (wants_rows) {
            const auto w = static_cast<W>(weights[r]);
            T* to = to_rows + slot * width;
            for (int64_t i = 0; i < width; ++i)
              to[i] = static_cast<T>(static_cast<W>(to[i]) + w * static_cast<W>(dy[i]));
          }
          if (wants_weights) {
            const T* row = rows + slot * width;
            auto total = static_cast<W>(static_cast<wide_t<V>>(to_weights[r]));
            for (int64_t i = 0; i < width; ++i)
              total += static_cast<W>(row[i]) * static_cast<W>(dy[i]);
            to_weights[r] = static_cast<V>(static_cast<wide_t<V>>(total));
          }
        }
      });
    });
  });
}

}  // namespace windlass
