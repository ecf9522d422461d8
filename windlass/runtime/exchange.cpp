#include "windlass/runtime/exchange.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <mutex>
#include <span>
#include <utility>

#include "windlass/base/error.h"
#include "windlass/base/parallel.h"
#include "windlass/graph/even_parts.h"

namespace windlass {
namespace {

// Elements, or bytes of copies, that are worth a thread of their own.
constexpr int64_t kWorthThread = 1 << 18;

// Calls move(range) for parts of [0, size), on so many threads at most.
void divide(int64_t threads, int64_t size, int64_t least, const std::function<void(Range)>& move) {
  const int64_t parts = std::clamp(size / std::max<int64_t>(1, least), int64_t{1}, threads);
  in_parallel(static_cast<size_t>(parts), static_cast<size_t>(parts),
              [&](size_t i) { move(part_of(size, parts, static_cast<int64_t>(i))); });
}

// Calls move(item, range) for ranges of [0, size_of(item)) that together are all of all items.
template <class Item, class SizeOf, class Move>
void divide_list(int64_t threads, const std::vector<Item>& items, const SizeOf& size_of,
                 const Move& move) {
  int64_t all = 0;
  for (const Item& item : items) all += size_of(item);
  divide(threads, all, kWorthThread, [&](Range part) {
    int64_t at = 0;
    for (const Item& item : items) {
      const int64_t size = size_of(item);
      const Range mine{std::clamp(part.begin - at, int64_t{0}, size),
                       std::clamp(part.end - at, int64_t{0}, size)};
      if (mine.size() > 0) move(item, mine);
      at += size;
    }
  });
}

}  // namespace

class DeviceExchange::Room {
 public:
  struct Block {
    std::unique_ptr<std::byte[]> bytes;
    size_t size = 0;
  };
  // At least so large; the smallest that is free.
  Block take(size_t size) {
    {
      const std::lock_guard lock(mutex_);
      auto best = free_.end();
      for (auto at = free_.begin(); at != free_.end(); ++at)
        if (at->size >= size && (best == free_.end() || at->size < best->size)) best = at;
      if (best != free_.end() && best->size <= 2 * size + kSmall) {
        Block found = std::move(*best);
        free_.erase(best);
        return found;
      }
    }
    return {std::unique_ptr<std::byte[]>(new std::byte[size]), size};
  }
  void give_back(Block block) {
    const std::lock_guard lock(mutex_);
    free_.push_back(std::move(block));
    if (free_.size() > kKept) free_.erase(free_.begin());
  }

 private:
  static constexpr size_t kSmall = 4096, kKept = 32;
  std::mutex mutex_;
  std::vector<Block> free_;
};

// What has come for a task, and the chunks of sums that were made of it.
struct DeviceExchange::Received {
  const std::byte* find(const void* key) const {
    if (parcels == nullptr) return nullptr;
    const auto found = parcels->arrived.find(key);
    return found == parcels->arrived.end() ? nullptr : at(0, found->second);
  }
  const std::byte* at(size_t round, const TaskParcels::Place& place) const {
    return blocks[round][place.message].bytes.get() + place.offset;
  }

  const TaskParcels* parcels = nullptr;
  std::vector<Room::Block> blocks[TaskParcels::kRounds];  // by message that was received
  std::map<int32_t, std::vector<std::byte>> chunks;       // by sum: made here
};

DeviceExchange::DeviceExchange(const Program& program, Slots& slots, const Ownership& own,
                               Ranks* ranks, std::unique_ptr<PlainSums> plain, int64_t threads)
    : program_(program),
      slots_(slots),
      own_(own),
      ranks_(ranks),
      parcels_(program.tasks.size()),
      room_(std::make_unique<Room>()),
      plain_(std::move(plain)),
      threads_(threads) {
  if (own.alone()) return;
  ensure(ranks != nullptr, "several processes, and no way to them");
  uint32_t tags = 0;
  for (size_t t = 0; t < program.tasks.size(); ++t) {
    const ProgramTask& task = program.tasks[t];
    first_tag_.push_back(tags);
    if (!moves(task.kind)) continue;
    const size_t parts = task.apart ? task.parts.size() : 1;
    for (size_t p = 0; p < parts; ++p)
      parcels_[t].push_back(
          make_parcels(program, own, TaskId(t), task.apart ? static_cast<int32_t>(p) : -1));
    tags += static_cast<uint32_t>(parts) * TaskParcels::kRounds;
    ensure(tags < kControlTag, "more exchanges than tags");
  }
}

DeviceExchange::~DeviceExchange() = default;

bool DeviceExchange::crosses(TaskId task, int32_t part) const {
  const auto& list = parcels_[task.index()];
  return !list.empty() && list[static_cast<size_t>(std::max(part, 0))].any();
}

void DeviceExchange::run(TaskId id, int32_t part) {
  const ProgramTask& task = program_.tasks[id.index()];
  if (plain_ && plain_->run(id, slots_)) return;
  Received received;
  if (!crosses(id, part)) {
    if (part < 0) carry_out(task, received);
    return;
  }
  received.parcels = &parcels_[id.index()][static_cast<size_t>(std::max(part, 0))];
  pass_messages(id, 0, received);
  for (size_t p = 0; p < task.parts.size(); ++p)
    if (part < 0 || part == static_cast<int32_t>(p)) copy_parts(task.parts[p], received);
  if (part < 0) {
    for (const auto& [index, chunks] : received.parcels->divided)
      divided_sum(task, index, received);
    pass_messages(id, 1, received);
    carry_out(task, received);
    hand_out(task, received);
  }
  for (auto& blocks : received.blocks)
    for (Room::Block& block : blocks) room_->give_back(std::move(block));
}

void DeviceExchange::pass_messages(TaskId id, size_t round, Received& received) {
  const TaskParcels& parcels = *received.parcels;
  if (parcels.sends[round].empty() && parcels.receives[round].empty()) return;
  std::vector<Ranks::Transfer> sends, receives;
  std::vector<Room::Block> packed;
  for (const RankMessage& message : parcels.receives[round]) {
    const auto size = static_cast<size_t>(message.bytes);
    received.blocks[round].push_back(room_->take(size));
    receives.push_back({message.peer, {received.blocks[round].back().bytes.get(), size}});
  }
  for (const RankMessage& message : parcels.sends[round]) {
    const auto size = static_cast<size_t>(message.bytes);
    packed.push_back(room_->take(size));
    for (const Parcel& parcel : message.parcels)
      pack(parcel, received, packed.back().bytes.get() + parcel.offset);
    sends.push_back({message.peer, {packed.back().bytes.get(), size}});
  }
  const auto which = static_cast<uint32_t>(received.parcels - parcels_[id.index()].data());
  ranks_->exchange(
      first_tag_[id.index()] + which * TaskParcels::kRounds + static_cast<uint32_t>(round), sends,
      receives);
  for (Room::Block& block : packed) room_->give_back(std::move(block));
}

void DeviceExchange::pack(const Parcel& parcel, const Received& received, std::byte* to) {
  const auto size = static_cast<size_t>(parcel.bytes);
  if (parcel.sum >= 0) {
    std::memcpy(to, received.chunks.at(parcel.sum).data(), size);
  } else if (parcel.overlap != nullptr) {
    const at::Tensor from = slots_.operand(*parcel.operand);
    pack_overlap(*parcel.overlap, parcel.operand->type.dtype,
                 static_cast<const std::byte*>(from.data_ptr()), to);
  } else {
    const std::span<std::byte> from = slots_.bytes(parcel.slot);
    ensure(parcel.at + parcel.bytes <= static_cast<int64_t>(from.size()),
           "what is sent goes beyond its slot");
    std::memcpy(to, from.data() + parcel.at, size);
  }
}

void DeviceExchange::carry_out(const ProgramTask& task, const Received& received) {
  for (const StatisticsMerge& part : task.merges) merge(part, received);
  int64_t received_bytes = 0;
  for (const Receive& part : task.receives) received_bytes += byte_size(part.type).value;
  const auto receivers = static_cast<int64_t>(task.receives.size());
  divide(threads_, receivers, received_bytes < kWorthThread ? receivers : 1, [&](Range part) {
    for (const Receive& each :
         std::span(task.receives)
             .subspan(static_cast<size_t>(part.begin), static_cast<size_t>(part.size())))
      if (own_.mine(each.to)) receive(each, received);
  });
  const auto made_elsewhere = [&](const TermSum& part) {
    const auto index = static_cast<int32_t>(&part - task.sums.data());
    return received.parcels != nullptr && received.parcels->divided.contains(index);
  };
  divide_list(
      threads_, task.sums, [](const TermSum& part) { return part.count; },
      [&](const TermSum& part, Range elements) {
        if (!made_elsewhere(part)) sum(part, elements, received);
      });
  divide_list(
      threads_, task.copies, [](const FlatCopy& part) { return part.bytes; },
      [&](const FlatCopy& part, Range bytes) {
        if (own_.mine(part.to)) copy(part, bytes, received);
      });
}

// Copies of a part that come from another process.
void DeviceExchange::copy_parts(const Part& part, const Received& received) {
  for (const FlatCopy& copy : part.flat_copies)
    if (const std::byte* from = received.find(&copy)) {
      const std::span<std::byte> to = slots_.bytes(copy.to);
      ensure(copy.to_at + copy.bytes <= static_cast<int64_t>(to.size()),
             "a copy does not fit where it goes");
      std::memcpy(to.data() + copy.to_at, from, static_cast<size_t>(copy.bytes));
    }
  for (const PartCopy& copy : part.part_copies)
    if (const std::byte* from = received.find(&copy))
      copy_packed(copy.overlap, copy.dtype, from, slots_.bytes(copy.to).data());
}

void DeviceExchange::receive(const Receive& receive, const Received& received) {
  const DType dtype = receive.type.dtype;
  const bool several =
      !receive.sources.empty() && receive.sources.front().place != receive.sources.back().place;
  const bool adds = receive.sums || several;
  if (adds && receive.combine == CombineFn::Sum && (dtype == DType::BF16 || dtype == DType::F16))
    return receive_wide(receive, received);
  std::byte* to = slots_.bytes(receive.to).data();
  if (receive.sums) std::memset(to, 0, static_cast<size_t>(byte_size(receive.type).value));
  for (const Receive::Source& source : receive.sources) {
    const bool combines = receive.sums || source.place != receive.sources.front().place;
    if (const std::byte* packed = received.find(&source)) {
      if (combines)
        combine_packed(source.overlap, dtype, receive.combine, packed, to);
      else
        copy_packed(source.overlap, dtype, packed, to);
      continue;
    }
    // A part that is not dense is copied first, outside of any device's memory.
    const at::Tensor from = slots_.operand(source.from);
    const auto* data = static_cast<const std::byte*>(from.data_ptr());
    if (combines)
      combine_overlap(source.overlap, dtype, receive.combine, data, to);
    else
      copy_overlap(source.overlap, dtype, data, to);
  }
}

// Places are summed in fp32; parts of one place lie beside each other, or are copies.
void DeviceExchange::receive_wide(const Receive& receive, const Received& received) {
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
      const Receive::Source& source = receive.sources[i];
      if (const std::byte* packed = received.find(&source)) {
        copy_packed(source.overlap, dtype, packed, beside.data());
        continue;
      }
      const at::Tensor from = slots_.operand(source.from);
      copy_overlap(source.overlap, dtype, static_cast<const std::byte*>(from.data_ptr()),
                   beside.data());
    }
    add_overlap_wide(whole, dtype, beside.data(), sum.data());
  }
  narrow(sum.data(), dtype, slots_.bytes(receive.to).data(), count);
}

void DeviceExchange::sum(const TermSum& sum, Range elements, const Received& received) {
  const int64_t first = elements.begin * element_bytes(sum.dtype);
  std::vector<const std::byte*> terms;
  std::vector<SumTarget> targets;
  for (const TermSum::Where& target : sum.results)
    if (own_.mine(target.slot))
      targets.push_back({slots_.bytes(target.slot).data() + target.at + first, target.adds});
  if (targets.empty() || elements.size() == 0) return;
  for (const TermSum::Where& term : sum.terms) {
    const std::byte* come = received.find(&term);
    terms.push_back((come != nullptr ? come : slots_.bytes(term.slot).data() + term.at) + first);
  }
  combine_terms(sum.dtype, sum.combine, terms, targets, elements.size());
}

// The chunk of a sum that is this process's to make.
void DeviceExchange::divided_sum(const ProgramTask& task, int32_t index, Received& received) {
  const TermSum& sum = task.sums[static_cast<size_t>(index)];
  const int64_t each = element_bytes(sum.dtype);
  for (const TaskParcels::Chunk& chunk : received.parcels->divided.at(index)) {
    if (chunk.rank != own_.rank) continue;
    std::vector<std::byte>& made = received.chunks[index];
    made.resize(static_cast<size_t>(chunk.elements.size() * each));
    if (made.empty()) continue;
    std::vector<const std::byte*> terms;
    for (const TermSum::Where& term : sum.terms) {
      const std::byte* come = received.find(&term);
      terms.push_back(come != nullptr
                          ? come
                          : slots_.bytes(term.slot).data() + term.at + chunk.elements.begin * each);
    }
    combine_terms(sum.dtype, sum.combine, terms, {{made.data(), false}}, chunk.elements.size());
  }
}

// All chunks to where the sums go here.
void DeviceExchange::hand_out(const ProgramTask& task, const Received& received) {
  for (const auto& [index, chunks] : received.parcels->divided) {
    const TermSum& sum = task.sums[static_cast<size_t>(index)];
    const int64_t each = element_bytes(sum.dtype);
    for (const TaskParcels::Chunk& chunk : chunks) {
      const auto size = static_cast<size_t>(chunk.elements.size() * each);
      if (size == 0) continue;
      const std::byte* from =
          chunk.rank == own_.rank ? received.chunks.at(index).data() : received.at(1, chunk.place);
      for (const TermSum::Where& target : sum.results)
        if (own_.mine(target.slot))
          std::memcpy(slots_.bytes(target.slot).data() + target.at + chunk.elements.begin * each,
                      from, size);
    }
  }
}

void DeviceExchange::copy(const FlatCopy& copy, Range bytes, const Received& received) {
  const std::byte* come = received.find(&copy);
  const Slots::Ends ends = come == nullptr
                               ? slots_.ends(copy)
                               : Slots::Ends{come, slots_.bytes(copy.to).data() + copy.to_at};
  std::memcpy(ends.to + bytes.begin, ends.from + bytes.begin, static_cast<size_t>(bytes.size()));
}

void DeviceExchange::merge(const StatisticsMerge& merge, const Received& received) {
  if (std::ranges::none_of(merge.slots, [&](int32_t slot) { return own_.mine(slot); })) return;
  const auto in = [&](auto zero) {
    using T = decltype(zero);
    std::vector<const T*> members;
    for (const int32_t& slot : merge.slots) {
      const std::byte* come = received.find(&slot);
      members.push_back(
          reinterpret_cast<const T*>(come != nullptr ? come : slots_.bytes(slot).data()));
    }
    const auto size = static_cast<size_t>(byte_size(merge.exchange.type).value);
    std::vector<T> merged(size / sizeof(T));
    merge_statistics<T>(merge.exchange, members, merged.data());
    for (int32_t slot : merge.slots)
      if (own_.mine(slot)) std::memcpy(slots_.bytes(slot).data(), merged.data(), size);
  };
  if (merge.exchange.type.dtype == DType::F64) return in(double{});
  ensure(merge.exchange.type.dtype == DType::F32, "statistics of another type");
  in(float{});
}

}  // namespace windlass
