#include "windlass/runtime/exchange.h"

#include <cstring>
#include <vector>

#include "windlass/base/error.h"

namespace windlass {

void LocalExchange::run(const ProgramTask& task) {
  for (const StatisticsMerge& part : task.merges) merge(part);
  for (const Receive& part : task.receives) receive(part);
  for (const TermSum& part : task.sums) sum(part);
  for (const FlatCopy& part : task.copies) copy(part);
}

void LocalExchange::receive(const Receive& receive) {
  const DType dtype = receive.type.dtype;
  const bool several =
      !receive.sources.empty() && receive.sources.front().place != receive.sources.back().place;
  const bool adds = receive.sums || several;
  if (adds && receive.combine == CombineFn::Sum && (dtype == DType::BF16 || dtype == DType::F16))
    return receive_wide(receive);
  std::byte* to = slots_.bytes(receive.to).data();
  if (receive.sums) std::memset(to, 0, static_cast<size_t>(byte_size(receive.type).value));
  for (const Receive::Source& source : receive.sources) {
    // A part that is not dense is copied first, outside of any device's memory.
    const at::Tensor from = slots_.operand(source.from);
    const auto* data = static_cast<const std::byte*>(from.data_ptr());
    if (receive.sums || source.place != receive.sources.front().place)
      combine_overlap(source.overlap, dtype, receive.combine, data, to);
    else
      copy_overlap(source.overlap, dtype, data, to);
  }
}

// Places are summed in fp32; parts of one place lie beside each other, or are copies.
void LocalExchange::receive_wide(const Receive& receive) {
  const DType dtype = receive.type.dtype;
  const int64_t count = element_count(receive.type.shape);
  std::vector<float> sum(static_cast<size_t>(count), 0);
  std::vector<std::byte> beside(static_cast<size_t>(count * element_bytes(dtype)));
  Region all;
  for (int64_t size : receive.type.shape) all.push_back({size, {0, size}, 1});
  const Overlap whole(all, all);
  for (size_t i = 0; i < receive.sources.size();) {
    std::ranges::fill(beside, std::byte{0});
    const int64_t place = receive.sources[i].place;
    for (; i < receive.sources.size() && receive.sources[i].place == place; ++i) {
      const at::Tensor from = slots_.operand(receive.sources[i].from);
      copy_overlap(receive.sources[i].overlap, dtype,
                   static_cast<const std::byte*>(from.data_ptr()), beside.data());
    }
    add_overlap_wide(whole, dtype, beside.data(), sum.data());
  }
  narrow(sum.data(), dtype, slots_.bytes(receive.to).data(), count);
}

void LocalExchange::sum(const TermSum& sum) {
  std::vector<const std::byte*> terms;
  std::vector<SumTarget> targets;
  for (const TermSum::Where& term : sum.terms)
    terms.push_back(slots_.bytes(term.slot).data() + term.at);
  for (const TermSum::Where& target : sum.results)
    targets.push_back({slots_.bytes(target.slot).data() + target.at, target.adds});
  combine_terms(sum.dtype, sum.combine, terms, targets, sum.count);
}

void LocalExchange::copy(const FlatCopy& copy) {
  const Slots::Ends ends = slots_.ends(copy);
  std::memcpy(ends.to, ends.from, static_cast<size_t>(copy.bytes));
}

void LocalExchange::merge(const StatisticsMerge& merge) {
  const auto in = [&](auto zero) {
    using T = decltype(zero);
    std::vector<const T*> members;
    for (int32_t slot : merge.slots)
      members.push_back(reinterpret_cast<const T*>(slots_.bytes(slot).data()));
    T* first = reinterpret_cast<T*>(slots_.bytes(merge.slots[0]).data());
    merge_statistics<T>(merge.exchange, members, first);
    const auto size = static_cast<size_t>(byte_size(merge.exchange.type).value);
    for (size_t i = 1; i < merge.slots.size(); ++i)
      std::memcpy(slots_.bytes(merge.slots[i]).data(), first, size);
  };
  if (merge.exchange.type.dtype == DType::F64) return in(double{});
  ensure(merge.exchange.type.dtype == DType::F32, "statistics of another type");
  in(float{});
}

}  // namespace windlass
