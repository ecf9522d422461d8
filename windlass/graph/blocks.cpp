#include "windlass/graph/blocks.h"

#include <algorithm>
#include <unordered_map>

#include <fmt/format.h>

#include "windlass/base/hash.h"
#include "windlass/graph/op_info.h"

namespace windlass {
namespace {

// Longest repeating sequence of pieces that is looked for.
constexpr size_t kMaxPeriod = 24;

size_t forward_count(const Graph& graph) {
  size_t count = 0;
  while (count < graph.ops.size() && graph.ops[count].pass == Pass::Forward) ++count;
  return count;
}

// Whether a tensor depends on a trainable weight.
std::vector<bool> find_trained(const Graph& graph, size_t ops) {
  std::vector<bool> trained(graph.tensors.size());
  for (size_t t = 0; t < trained.size(); ++t)
    trained[t] = graph.tensors[t].role == TensorRole::Weight;
  for (size_t i = 0; i < ops; ++i) {
    const Op& op = graph.ops[i];
    const bool any = std::any_of(op.inputs.begin(), op.inputs.end(),
                                 [&](TensorId id) { return id.valid() && trained[id.index()]; });
    for (TensorId id : op.outputs) trained[id.index()] = any && is_float(graph[id].type.dtype);
  }
  return trained;
}

struct Span {
  size_t first = 0;  // op that produces it
  size_t last = 0;   // last op that reads it
  size_t readers = 0;
};

// A tensor read by many ops over a large part of the graph is a side input.
bool is_side_input(const Span& span, size_t ops) {
  return span.readers >= 4 && (span.last - span.first) * 6 >= ops;
}

uint64_t type_hash(const TensorType& type) {
  Hasher hasher;
  hasher.add(static_cast<uint64_t>(type.dtype)).add(static_cast<uint64_t>(type.shape.size()));
  for (int64_t size : type.shape) hasher.add(size);
  return hasher.result();
}

}  // namespace

std::vector<size_t> cut_points(const Graph& graph) {
  const size_t ops = forward_count(graph);
  const std::vector<bool> trained = find_trained(graph, ops);
  const std::vector<TensorId> roots = storage_roots(graph);
  std::vector<Span> spans(graph.tensors.size());
  for (size_t i = 0; i < ops; ++i) {
    for (TensorId id : graph.ops[i].outputs)
      if (roots[id.index()] == id) spans[id.index()] = {i, i, 0};
    for (TensorId id : graph.ops[i].inputs) {
      if (!id.valid()) continue;
      Span& span = spans[roots[id.index()].index()];
      span.last = std::max(span.last, i);
      ++span.readers;
    }
  }
  // crossing[i]: tensors made at or before op i and read after it.
  std::vector<int64_t> crossing(ops + 1);
  for (size_t t = 0; t < spans.size(); ++t) {
    const bool produced =
        graph.tensors[t].producer.valid() && graph.tensors[t].producer.index() < ops;
    if (!produced || !trained[t] || spans[t].last <= spans[t].first) continue;
    if (is_side_input(spans[t], ops)) continue;
    ++crossing[spans[t].first];
    --crossing[spans[t].last];
  }
  std::vector<size_t> cuts;
  int64_t open = 0;
  for (size_t i = 0; i < ops; ++i) {
    open += crossing[i];
    if (open == 1 || i + 1 == ops) {
      // A view belongs to the piece of the tensor it looks at.
      const bool view_next = i + 1 < ops && op_info(graph.ops[i + 1].kind).view;
      if (!view_next) cuts.push_back(i);
    }
  }
  return cuts;
}

uint64_t structure_hash(const Graph& graph, size_t first, size_t last) {
  // Tensors from outside are numbered by first use, so that the same piece elsewhere looks the
  // same.
  std::unordered_map<TensorId, uint64_t> outside;
  Hasher hasher;
  for (size_t i = first; i < last; ++i) {
    const Op& op = graph.ops[i];
    hasher.add(static_cast<uint64_t>(op.kind)).add(hash_attrs(op.attrs));
    for (TensorId id : op.inputs) {
      if (!id.valid()) {
        hasher.add(uint64_t{0});
        continue;
      }
      const Tensor& tensor = graph[id];
      hasher.add(type_hash(tensor.type)).add(static_cast<uint64_t>(tensor.role));
      if (tensor.producer.valid() && tensor.producer.index() >= first) {
        hasher.add(static_cast<uint64_t>(tensor.producer.index() - first));
        const auto& outputs = graph[tensor.producer].outputs;
        hasher.add(static_cast<uint64_t>(std::ranges::find(outputs, id) - outputs.begin()));
      } else if (tensor.constant >= 0) {
        const auto& values = graph.constants[static_cast<size_t>(tensor.constant)].values;
        hasher.add(static_cast<uint64_t>(values.size()));
        for (size_t k = 0; k < std::min<size_t>(values.size(), 64); ++k) hasher.add(values[k]);
      } else {
        const auto [entry, inserted] = outside.try_emplace(id, outside.size());
        hasher.add(entry->second + (uint64_t{1} << 32));
      }
    }
    for (TensorId id : op.outputs) hasher.add(type_hash(graph[id].type));
  }
  return hasher.result();
}

std::vector<Block> find_blocks(const Graph& graph) {
  struct Piece {
    size_t first, last;
    uint64_t hash;
  };
  std::vector<Piece> pieces;
  size_t start = 0;
  for (size_t cut : cut_points(graph)) {
    pieces.push_back({start, cut + 1, structure_hash(graph, start, cut + 1)});
    start = cut + 1;
  }
  // agree[period][i]: how many pieces from i on equal the one `period` further, without a break.
  std::vector<std::vector<uint32_t>> agree(kMaxPeriod + 1);
  for (size_t period = 1; period <= kMaxPeriod && period < pieces.size(); ++period) {
    agree[period].resize(pieces.size());
    for (size_t i = pieces.size() - period; i-- > 0;)
      if (pieces[i].hash == pieces[i + period].hash) agree[period][i] = agree[period][i + 1] + 1;
  }
  std::vector<Block> blocks;
  const auto add_single = [&](const Piece& piece, bool joins) {
    if (joins && !blocks.empty())
      blocks.back().ops += piece.last - piece.first;
    else
      blocks.push_back({piece.first, piece.last - piece.first, 1});
  };
  bool joins = false;
  for (size_t i = 0; i < pieces.size();) {
    size_t best_period = 0, best_repetitions = 1;
    for (size_t period = 1; period <= kMaxPeriod && i + 2 * period <= pieces.size(); ++period) {
      const size_t repetitions = 1 + agree[period][i] / period;
      const bool better =
          repetitions > 1 &&
          (best_period == 0 || repetitions * period > best_repetitions * best_period);
      if (better) {
        best_period = period;
        best_repetitions = repetitions;
      }
    }
    // Repeating a single op is not structure worth showing.
    const size_t ops = best_period ? pieces[i + best_period - 1].last - pieces[i].first
                                   : pieces[i].last - pieces[i].first;
    if (best_period == 0 || ops < 2) {
      add_single(pieces[i], joins);
      joins = true;
      ++i;
      continue;
    }
    blocks.push_back({pieces[i].first, ops, static_cast<int64_t>(best_repetitions)});
    joins = false;
    i += best_period * best_repetitions;
  }
  return blocks;
}

std::string format_blocks(const std::vector<Block>& blocks) {
  std::string text;
  for (const Block& block : blocks) {
    if (!text.empty()) text += ", ";
    const std::string_view unit = block.ops == 1 ? "op" : "ops";
    text += block.repetitions > 1 ? fmt::format("{} x [{} {}]", block.repetitions, block.ops, unit)
                                  : fmt::format("{} {}", block.ops, unit);
  }
  return text;
}

}  // namespace windlass
