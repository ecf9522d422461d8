#include "windlass/report/page/page_layers.h"

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "windlass/base/error.h"
#include "windlass/graph/batch.h"
#include "windlass/graph/blocks.h"
#include "windlass/graph/network_layers.h"

namespace windlass {
namespace {

using nlohmann::ordered_json;
using Saved = std::map<MemoryAction, int64_t>;

std::string home_text(const Residency& home) {
  std::string text = home.host ? "on the host" : "on the device";
  if (home.zero > 0) text += fmt::format(", ZeRO {}", int{home.zero});
  if (home.host_update) text += ", updated by the host";
  return text;
}

// Without digits that split nothing; "whole" if none does. The loop over the samples has another
// name in each kind of op: here it is "samples".
std::string split_text(Sharding sharding, LoopNest nest, int32_t samples) {
  std::erase_if(sharding.splits, [](const Split& split) { return split.parts == 1; });
  if (sharding.splits.empty()) return "whole";
  if (samples >= 0) nest.loops[static_cast<size_t>(samples)].name = "samples";
  return format_sharding(sharding, nest);
}

struct OpRow {
  std::string name, kind, split;
  Saved saved;
  std::set<std::string> weights;

  bool same_decisions(const OpRow& other) const {
    return kind == other.kind && split == other.split && saved == other.saved &&
           weights == other.weights;
  }
};

std::vector<OpRow> op_rows(const Graph& network, const TrainingGraph& training,
                           const Strategy& strategy) {
  const Graph& graph = training.graph;
  const BatchAxes batch = find_batch(network);
  std::vector<OpRow> rows(training.forward_ops);
  std::map<TensorId, std::string> homes;
  const size_t first = training.forward_ops + training.backward_ops;
  for (size_t u = 0; u < strategy.weights.size(); ++u)
    homes[graph.ops[first + u].inputs[0]] = home_text(strategy.weights[u]);
  for (size_t i = 0; i < rows.size(); ++i) {
    const Op& op = graph.ops[i];
    rows[i].name = op.name;
    rows[i].kind = op_info(op.kind).name;
    rows[i].split = split_text(strategy.shardings[static_cast<size_t>(strategy.ops[i])],
                               loops_of(graph, op), i < batch.loop.size() ? batch.loop[i] : -1);
    for (TensorId id : op.inputs)
      if (const auto home = homes.find(id); id.valid() && home != homes.end())
        rows[i].weights.insert(home->second);
  }
  for (size_t s = 0; s < strategy.saved.size(); ++s)
    if (const OpId producer = training.saved[s].producer; producer.valid())
      rows[producer.index()].saved[strategy.saved[s]] +=
          training.saved[s].bytes.value * strategy.micro_batches;
  return rows;
}

ordered_json saved_json(const Saved& saved) {
  ordered_json json = ordered_json::object();
  for (const auto& [action, bytes] : saved) json[std::string(action_name(action))] = bytes;
  return json;
}

// What the names of ops have in common, up to a point or a slash.
std::string common_name(const std::vector<OpRow>& rows, size_t first, size_t last) {
  std::string name = rows[first].name;
  for (size_t i = first; i < last; ++i) {
    const std::string& other = rows[i].name;
    const auto [end, ignored] = std::ranges::mismatch(name, other);
    if (end == name.end() && (other.size() == name.size() || other[name.size()] == '.')) continue;
    const auto length = static_cast<size_t>(end - name.begin());
    const size_t cut = name.find_last_of("./", length == 0 ? 0 : length - 1);
    name.resize(cut == std::string::npos || length == 0 ? 0 : cut);
  }
  return name.empty() ? rows[first].name : name;
}

class LayerRows {
 public:
  LayerRows(const Graph& network, const TrainingGraph& training, const Strategy& strategy)
      : strategy_(strategy),
        ops_(op_rows(network, training, strategy)),
        stages_(stage_of_ops(strategy, training.forward_ops)) {}

  ordered_json run(const Graph& network) {
    for (const Block& block : find_blocks(network)) {
      size_t begin = block.first_op;
      for (int64_t r = 0; r < block.repetitions;) {
        int64_t next = r + 1;
        while (next < block.repetitions && stages_[begin] == stages_[at(block, next)]) ++next;
        add_row(block, r, next);
        begin = at(block, next);
        r = next;
      }
    }
    return std::move(rows_);
  }

 private:
  static size_t at(const Block& block, int64_t repetition) {
    return block.first_op + static_cast<size_t>(repetition) * block.ops;
  }

  bool alike(size_t a, size_t b, size_t ops) const {
    for (size_t i = 0; i < ops; ++i)
      if (!ops_[a + i].same_decisions(ops_[b + i])) return false;
    return true;
  }

  std::string name_of(const Block& block, int64_t begin, int64_t end) const {
    const auto name = [&](int64_t r) {
      return common_name(ops_, at(block, r), at(block, r) + block.ops);
    };
    return end - begin > 1 ? fmt::format("{} to {}", name(begin), name(end - 1)) : name(begin);
  }

  // What is decided for some repetitions together.
  ordered_json summary(const Block& block, int64_t begin, int64_t end) const {
    std::map<std::string, int64_t> splits;
    std::set<std::string> weights;
    Saved saved;
    for (size_t i = at(block, begin); i < at(block, end); ++i) {
      const OpRow& op = ops_[i];
      ++splits[op.split];
      weights.insert(op.weights.begin(), op.weights.end());
      for (const auto& [action, bytes] : op.saved) saved[action] += bytes;
    }
    const auto most =
        std::ranges::max_element(splits, {}, [](const auto& entry) { return entry.second; });
    const size_t others = splits.size() - 1;
    return {{"name", name_of(block, begin, end)},
            {"layers", end - begin},
            {"split", others == 0 ? most->first
                                  : fmt::format("{} and {} other{}", most->first, others,
                                                others == 1 ? "" : "s")},
            {"saved", saved_json(saved)},
            {"weights", weights}};
  }

  void add_row(const Block& block, int64_t begin, int64_t end) {
    ordered_json row = summary(block, begin, end);
    const auto stage = static_cast<size_t>(std::max(0, stages_[at(block, begin)]));
    row["stage"] = stage;
    row["group"] = strategy_.stages.empty() ? 0 : strategy_.stages[stage].group;
    auto& parts = row["parts"] = ordered_json::array();
    for (int64_t r = begin; r < end;) {
      int64_t next = r + 1;
      while (next < end && alike(at(block, r), at(block, next), block.ops)) ++next;
      ordered_json part = summary(block, r, next);
      auto& ops = part["ops"] = ordered_json::array();
      for (size_t i = at(block, r); i < at(block, r + 1); ++i)
        ops.push_back({{"name", ops_[i].name},
                       {"kind", ops_[i].kind},
                       {"split", ops_[i].split},
                       {"saved", saved_json(ops_[i].saved)},
                       {"weights", ops_[i].weights}});
      parts.push_back(std::move(part));
      r = next;
    }
    rows_.push_back(std::move(row));
  }

  const Strategy& strategy_;
  std::vector<OpRow> ops_;
  std::vector<int32_t> stages_;
  ordered_json rows_ = ordered_json::array();
};

std::string pack_name(const Pack& pack) {
  return pack.first == pack.last ? fmt::format("layer {}", pack.first)
                                 : fmt::format("layers {} to {}", pack.first, pack.last);
}

// What each layer that packs are made of begins with: the name of its first op.
std::vector<std::string> layer_names(const Graph& network) {
  std::vector<std::string> names;
  const std::vector<int32_t> layers = find_layers(network);
  for (size_t i = 0; i < layers.size(); ++i) {
    const auto layer = static_cast<size_t>(std::max(0, layers[i]));
    if (layer >= names.size()) names.resize(layer + 1);
    if (names[layer].empty()) names[layer] = network.ops[i].name;
  }
  return names;
}

// "transformer.h.0.ln_1 to transformer.h.3.mlp.c_fc"
std::string ops_of_pack(const Pack& pack, const std::vector<std::string>& names) {
  const auto name = [&](int32_t layer) {
    const auto at = static_cast<size_t>(layer);
    return at < names.size() ? names[at] : std::string();
  };
  return pack.first == pack.last ? name(pack.first)
                                 : fmt::format("{} to {}", name(pack.first), name(pack.last));
}

ordered_json pack_rows(const PackStrategy& packs, const std::vector<std::string>& names) {
  ordered_json rows = ordered_json::array();
  const auto device = [&](size_t task) {
    return static_cast<int64_t>(task) % std::max(1, packs.depth);
  };
  for (size_t p = 0; p < packs.forward_packs.size(); ++p)
    rows.push_back({{"name", pack_name(packs.forward_packs[p])},
                    {"ops", ops_of_pack(packs.forward_packs[p], names)},
                    {"pass", "forward"},
                    {"device", device(p)},
                    {"microbatch", packs.forward_microbatch},
                    {"action", ""}});
  for (size_t b = packs.backward_packs.size(); b-- > 0;) {
    const size_t task = packs.forward_packs.size() + packs.backward_packs.size() - 1 - b;
    std::string action(pack_action_name(packs.actions[b]));
    if (packs.stash_on_host[b]) action += ", input waits on the host";
    if (packs.device_update[b]) action += ", updated on the device";
    rows.push_back({{"name", pack_name(packs.backward_packs[b])},
                    {"ops", ops_of_pack(packs.backward_packs[b], names)},
                    {"pass", b + 1 == packs.backward_packs.size() ? "loss, backward" : "backward"},
                    {"device", device(task)},
                    {"microbatch", packs.backward_microbatch},
                    {"action", action}});
  }
  return rows;
}

}  // namespace

ordered_json page_layers_json(const Graph& network, const TrainingGraph& training,
                              const Strategy& strategy) {
  if (strategy.packs) return pack_rows(*strategy.packs, layer_names(network));
  ensure(network.ops.size() == training.forward_ops, "the network has other ops than its step");
  return LayerRows(network, training, strategy).run(network);
}

}  // namespace windlass
