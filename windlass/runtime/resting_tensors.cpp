#include "windlass/runtime/resting_tensors.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <tuple>

#include "windlass/base/error.h"

namespace windlass {
namespace {

Region whole_region(const Region& part) {
  Region whole;
  for (const AxisPart& axis : part) whole.push_back({axis.size, {0, axis.size}, 1});
  return whole;
}

// Calls visit(in whole, in part, count) for runs of the elements `mine` of a part.
template <class Visit>
void for_runs(const Region& region, const Range& mine, Visit&& visit) {
  Overlap(whole_region(region), region).for_each([&](int64_t from, int64_t to, int64_t count) {
    const int64_t begin = std::max(to, mine.begin), end = std::min(to + count, mine.end);
    if (begin < end) visit(from + begin - to, begin - mine.begin, end - begin);
  });
}

// One tensor among those of a buffer, and where it begins in each part.
struct Layered {
  DType dtype = DType::F32;
  int64_t elements = 0;
};

std::vector<Layered> tensors_of(const TrainingGraph& training, const Buffer& buffer) {
  const Graph& graph = training.graph;
  const int64_t elements = element_count(graph[buffer.tensor].type.shape);
  if (buffer.kind != BufferKind::OptimizerState)
    return {{graph[buffer.tensor].type.dtype, elements}};
  std::vector<Layered> list;
  for (size_t u = training.forward_ops + training.backward_ops; u < graph.ops.size(); ++u)
    if (graph.ops[u].inputs[0] == buffer.tensor)
      for (size_t k = 2; k < graph.ops[u].inputs.size(); ++k)
        if (graph.ops[u].inputs[k].valid())
          list.push_back({graph[graph.ops[u].inputs[k]].type.dtype, elements});
  return list;
}

void gather(const std::byte* from, const Placed& placed, DType dtype, std::span<std::byte> whole) {
  const int64_t each = element_bytes(dtype);
  for_runs(placed.region, placed.mine, [&](int64_t there, int64_t here, int64_t count) {
    std::memcpy(whole.data() + there * each, from + here * each, static_cast<size_t>(count * each));
  });
}

void put(const Slots& slots, const Placed& placed, int64_t at, DType dtype,
         std::span<const std::byte> whole) {
  const int64_t each = element_bytes(dtype);
  std::byte* to = slots.bytes(placed.slot).data() + at;
  for_runs(placed.region, placed.mine, [&](int64_t there, int64_t here, int64_t count) {
    std::memcpy(to + here * each, whole.data() + there * each, static_cast<size_t>(count * each));
  });
}

}  // namespace

void scatter(const Slots& slots, const Placed& placed, DType dtype,
             std::span<const std::byte> whole) {
  put(slots, placed, 0, dtype, whole);
}

namespace {

// Bytes of a slot that are part of a whole tensor.
struct Piece {
  const Placed* placed = nullptr;
  int64_t at = 0, bytes = 0;  // in the slot
  int64_t base = 0;           // of its layer in the whole
  DType dtype = DType::F32;
  int64_t elements = 0;  // of the layer
};

bool same_part(const Placed& a, const Placed& b) {
  return a.region == b.region && a.mine == b.mine;
}

// The rank that has most of a tensor; of several the one that has least to read so far.
int32_t rank_with_most(const Program& program, const std::vector<BufferId>& buffers,
                       const Ownership& own, std::vector<int64_t>& load) {
  std::vector<std::vector<const Placed*>> taken(static_cast<size_t>(own.ranks));
  std::vector<int64_t> elements(static_cast<size_t>(own.ranks));
  for (BufferId id : buffers)
    for (const Placed& placed : program.placed[id.index()]) {
      const auto rank = static_cast<size_t>(own.of_slot[static_cast<size_t>(placed.slot)]);
      if (std::ranges::any_of(taken[rank], [&](auto* other) { return same_part(*other, placed); }))
        continue;
      taken[rank].push_back(&placed);
      elements[rank] += placed.mine.size();
    }
  size_t best = 0;
  for (size_t rank = 1; rank < elements.size(); ++rank)
    if (std::pair(-elements[rank], load[rank]) < std::pair(-elements[best], load[best]))
      best = rank;
  return static_cast<int32_t>(best);
}

// Copies of what is there already are left out; those of the reader come first.
std::vector<Piece> pieces_of(const Program& program, const std::vector<BufferId>& buffers,
                             const std::vector<Layered>& layers, const RestingPlaces& places) {
  std::vector<const Placed*> all;
  for (BufferId id : buffers)
    for (const Placed& placed : program.placed[id.index()]) all.push_back(&placed);
  std::stable_partition(all.begin(), all.end(), [&](const Placed* placed) {
    return places.own.of_slot[static_cast<size_t>(placed->slot)] == places.reader;
  });
  std::vector<Piece> pieces;
  int64_t base = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    const int64_t each = element_bytes(layers[l].dtype);
    std::vector<const Placed*> taken;
    int64_t done = 0;
    for (const Placed* placed : all) {
      const bool known = std::ranges::any_of(
          taken, [&](const Placed* other) { return same_part(*other, *placed); });
      if (known || done >= layers[l].elements) continue;
      taken.push_back(placed);
      const int64_t size = placed->mine.size();
      int64_t at = 0;
      for (size_t k = 0; k < l; ++k) at += size * element_bytes(layers[k].dtype);
      pieces.push_back({placed, at, size * each, base, layers[l].dtype, layers[l].elements});
      done += size;
    }
    ensure(done >= layers[l].elements, "part of a tensor is nowhere");
    base += layers[l].elements * each;
  }
  return pieces;
}

void read_pieces(const std::vector<Piece>& pieces, const RestingPlaces& places,
                 std::span<std::byte> out) {
  const Ownership& own = places.own;
  const auto owner = [&](const Piece& piece) {
    return own.of_slot[static_cast<size_t>(piece.placed->slot)];
  };
  const auto reads = [&](int32_t rank) {
    return places.reader == kReadByAll || places.reader == rank;
  };
  // By rank: its pieces, one behind the other.
  std::map<int32_t, std::vector<std::byte>> told;
  if (!own.alone()) {
    std::map<int32_t, int64_t> sizes;
    for (const Piece& piece : pieces) sizes[owner(piece)] += piece.bytes;
    std::vector<Ranks::Transfer> sends, receives;
    for (const auto& [rank, size] : sizes) {
      if (size == 0 || (rank != own.rank && !reads(own.rank))) continue;
      told[rank].resize(static_cast<size_t>(size));
      if (rank != own.rank) receives.push_back({rank, told[rank]});
    }
    if (told.contains(own.rank)) {
      int64_t at = 0;
      for (const Piece& piece : pieces) {
        if (owner(piece) != own.rank) continue;
        std::memcpy(told[own.rank].data() + at,
                    places.slots.bytes(piece.placed->slot).data() + piece.at,
                    static_cast<size_t>(piece.bytes));
        at += piece.bytes;
      }
      for (int32_t rank = 0; rank < own.ranks; ++rank)
        if (rank != own.rank && reads(rank)) sends.push_back({rank, told[own.rank]});
    }
    if (!sends.empty() || !receives.empty()) places.ranks->exchange(kRestTag, sends, receives);
    if (!reads(own.rank)) return;
  }
  std::map<int32_t, int64_t> at;
  for (const Piece& piece : pieces) {
    const std::byte* from = nullptr;
    if (own.alone()) {
      from = places.slots.bytes(piece.placed->slot).data() + piece.at;
    } else {
      from = told[owner(piece)].data() + at[owner(piece)];
      at[owner(piece)] += piece.bytes;
    }
    gather(from, *piece.placed, piece.dtype,
           out.subspan(static_cast<size_t>(piece.base),
                       static_cast<size_t>(piece.elements * element_bytes(piece.dtype))));
  }
}

}  // namespace

std::vector<PersistentTensor> resting_tensors(const TrainingGraph& training, const TaskGraph& tasks,
                                              const Program& program, const RestingPlaces& given) {
  std::vector<int64_t> load(static_cast<size_t>(given.own.ranks));  // bytes, by rank
  using Key = std::tuple<BufferKind, TensorId, const TrainingGraph*>;
  std::map<Key, std::vector<BufferId>> found;
  std::vector<Key> order;
  for (size_t b = 0; b < tasks.buffers.size(); ++b) {
    const Buffer& buffer = tasks.buffers[b];
    if (!program.rests[b]) continue;
    const Key key = {buffer.kind, buffer.tensor, &training.of(buffer.micro_batch)};
    auto& list = found[key];
    if (list.empty()) order.push_back(key);
    list.emplace_back(b);
  }
  std::vector<PersistentTensor> tensors;
  for (const Key& key : order) {
    const std::vector<BufferId> buffers = found[key];
    const Buffer& first_buffer = tasks[buffers[0]];
    const std::vector<Layered> layers = tensors_of(*std::get<2>(key), first_buffer);
    PersistentTensor tensor = {.kind = first_buffer.kind, .tensor = first_buffer.tensor};
    if (std::get<2>(key) != &training) tensor.micro_batch = first_buffer.micro_batch;
    for (const Layered& layer : layers) tensor.bytes += layer.elements * element_bytes(layer.dtype);
    RestingPlaces places = given;
    if (given.reader == kReadShared) {
      places.reader = rank_with_most(program, buffers, given.own, load);
      load[static_cast<size_t>(places.reader)] += tensor.bytes;
    }
    tensor.reader = places.reader;
    for (BufferId id : buffers) {
      // Bytes that are carried over lie elsewhere after each step.
      const bool device = tasks[tasks[id].memory].team.valid() && tasks[id].at_end;
      const Placed& first = program.placed[id.index()][0];
      if (!device || program.devices != 1 || first.mine.size() != layers[0].elements ||
          !places.own.alone())
        continue;
      tensor.on_device = places.slots.bytes(first.slot).first(static_cast<size_t>(tensor.bytes));
    }
    tensor.read = [places, pieces = pieces_of(program, buffers, layers, places)](
                      std::span<std::byte> out) { read_pieces(pieces, places, out); };
    tensor.write = [places, &program, buffers, layers](std::span<const std::byte> in) {
      for (BufferId id : buffers)
        for (const Placed& placed : program.placed[id.index()]) {
          if (!places.own.mine(placed.slot)) continue;
          int64_t base = 0, at = 0;
          for (const Layered& layer : layers) {
            const int64_t each = element_bytes(layer.dtype);
            put(places.slots, placed, at, layer.dtype, in.subspan(static_cast<size_t>(base)));
            base += layer.elements * each;
            at += placed.mine.size() * each;
          }
        }
    };
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

}  // namespace windlass
