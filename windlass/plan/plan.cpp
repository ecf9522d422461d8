#include "windlass/plan/plan.h"

#include <algorithm>
#include <charconv>

#include "windlass/base/error.h"
#include "windlass/base/hash.h"
#include "windlass/base/text.h"

namespace windlass {
namespace {

constexpr int32_t kMaxParts = 1 << 20;

void add_ids(Hasher& hasher, const std::vector<TensorId>& ids) {
  hasher.add(static_cast<uint64_t>(ids.size()));
  for (TensorId id : ids) hasher.add(id.value);
}

std::string name_of(const LoopNest& nest, size_t loop) {
  const std::string& name = nest.loops[loop].name;
  const auto same = std::ranges::count(nest.loops, name, &LoopDim::name);
  const bool clear = same == 1 && !name.empty() && name != "copy" && name != "whole" &&
                     name.find_first_of(" /#") == std::string::npos;
  return clear ? name : fmt::format("#{}", loop);
}

// A whole number from 1, all of `text`.
int32_t parse_count(std::string_view text, std::string_view whole) {
  int32_t value = 0;
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (failed != std::errc() || end != text.data() + text.size() || value < 1 || value > kMaxParts)
    fail_input("\"{}\": \"{}\" is not a number of parts, expected 1 to {}", whole, text, kMaxParts);
  return value;
}

// "2:1:1": the sizes of so many parts.
std::vector<int32_t> parse_sizes(std::string_view text, std::string_view whole) {
  if (std::ranges::count(text, ':') >= kMaxParts)
    fail_input("\"{}...\": more than {} parts", whole.substr(0, 60), kMaxParts);
  std::vector<int32_t> sizes;
  for (std::string_view item : split(text, ':')) sizes.push_back(parse_count(item, whole));
  const std::string wrong = check_sizes(static_cast<int64_t>(sizes.size()), sizes);
  if (!wrong.empty()) fail_input("\"{}\": {}", whole, wrong);
  return sizes;
}

}  // namespace

bool ModelRequest::operator==(const ModelRequest& other) const {
  return source == other.source && batch == other.batch && sequence == other.sequence &&
         image == other.image && dimensions == other.dimensions && loss == other.loss &&
         dtype == other.dtype && freeze == other.freeze && train == other.train &&
         fuse == other.fuse && as_exported == other.as_exported &&
         expert_capacity == other.expert_capacity &&
         training.optimizer == other.training.optimizer &&
         training.master_weights == other.training.master_weights &&
         training.gradient_dtype == other.training.gradient_dtype &&
         training.clip_norm == other.training.clip_norm && runner == other.runner;
}

uint64_t fingerprint(const Graph& graph) {
  Hasher hasher;
  for (const Tensor& tensor : graph.tensors) {
    hasher.add(static_cast<uint64_t>(tensor.type.dtype))
        .add(static_cast<uint64_t>(tensor.type.shape.size()));
    for (int64_t size : tensor.type.shape) hasher.add(size);
    hasher.add(static_cast<uint64_t>(tensor.role)).add(tensor.producer.value).add(tensor.trainable);
    if (tensor.constant < 0) continue;
    const auto& values = graph.constants[static_cast<size_t>(tensor.constant)].values;
    hasher.add(static_cast<uint64_t>(values.size()));
    for (double value : values) hasher.add(value);
  }
  for (const Op& op : graph.ops) {
    hasher.add(static_cast<uint64_t>(op.kind))
        .add(static_cast<uint64_t>(op.pass))
        .add(hash_attrs(op.attrs))
        .add(op.forward.value);
    for (const auto* ids : {&op.inputs, &op.outputs, &op.auxiliaries}) add_ids(hasher, *ids);
    for (const SavedRef& ref : op.saved)
      hasher.add(static_cast<uint64_t>(ref.source)).add(ref.index);
  }
  add_ids(hasher, graph.inputs);
  add_ids(hasher, graph.outputs);
  return hasher.add(graph.loss.value).result();
}

uint64_t fingerprint(const Machine& machine) {
  Hasher hasher;
  hasher.add(std::string_view(machine.name));
  for (const Device& device : machine.devices) {
    // By content: the order of types is no property of a machine.
    const DeviceType& type = machine.device_types[device.type];
    hasher.add(std::string_view(device.name))
        .add(device.node.value)
        .add(device.limit.value)
        .add(device.endpoint.value)
        .add(std::string_view(type.name))
        .add(type.memory.value)
        .add(type.reserved.value)
        .add(type.memory_bandwidth.value)
        .add(type.launch_overhead.value);
    if (type.copies_itself) hasher.add(type.copies_itself);
    if (type.matrix_share > 0) hasher.add(type.matrix_share);
    for (const auto& [precision, rate] : type.peak)
      hasher.add(static_cast<uint64_t>(precision)).add(rate.value);
  }
  for (const Node& node : machine.nodes) {
    hasher.add(std::string_view(node.name))
        .add(node.memory.value)
        .add(node.memory_bandwidth.value)
        .add(node.peak.value)
        .add(node.peer_to_peer)
        .add(node.endpoint.value);
    if (node.one_process) hasher.add(node.one_process);
  }
  for (const Endpoint& endpoint : machine.endpoints)
    hasher.add(static_cast<uint64_t>(endpoint.kind))
        .add(endpoint.index)
        .add(std::string_view(endpoint.name))
        .add(endpoint.node.value);
  for (const Link& link : machine.links)
    hasher.add(link.a.value)
        .add(link.b.value)
        .add(link.bandwidth.value)
        .add(link.latency.value)
        .add(link.full_duplex);
  return hasher.result();
}

std::string format_fingerprint(uint64_t fingerprint) { return fmt::format("{:016x}", fingerprint); }

std::string sharding_to_text(const Sharding& sharding, const LoopNest& nest) {
  std::string text;
  for (const Split& split : sharding.splits) {
    if (!text.empty()) text += " ";
    text += fmt::format("{}/{}",
                        split.loop < 0 ? "copy" : name_of(nest, static_cast<size_t>(split.loop)),
                        format_parts(split.parts, split.sizes));
    if (split.blocks > 1) text += fmt::format("x{}", split.blocks);
  }
  return text.empty() ? "whole" : text;
}

Sharding sharding_from_text(std::string_view text, const LoopNest& nest) {
  Sharding sharding;
  if (text == "whole") return sharding;
  std::vector<std::string> names = {"copy"};
  for (size_t l = 0; l < nest.loops.size(); ++l) names.push_back(name_of(nest, l));
  int64_t members = 1;
  for (std::string_view item : split(text, ' ')) {
    if (item.empty()) fail_input("\"{}\": expected one space between splits", text);
    const size_t slash = item.rfind('/');
    if (slash == std::string_view::npos)
      fail_input("\"{}\": \"{}\" is no split, expected LOOP/PARTS", text, item);
    const std::string name(item.substr(0, slash));
    const auto known = std::ranges::find(names, name);
    if (known == names.end())
      fail_input("\"{}\": there is no loop \"{}\"{}; the op has {}", text, printable(name, 60),
                 did_you_mean(name, names), join(names, ", "));
    Split split;
    split.loop = static_cast<int32_t>(known - names.begin()) - 1;
    std::string_view parts = item.substr(slash + 1);
    if (const size_t cross = parts.find('x'); cross != std::string_view::npos) {
      split.blocks = parse_count(parts.substr(cross + 1), text);
      parts = parts.substr(0, cross);
    }
    if (parts.find(':') != std::string_view::npos) {
      split.sizes = parse_sizes(parts, text);
      split.parts = static_cast<int32_t>(split.sizes.size());
    } else {
      split.parts = parse_count(parts, text);
    }
    members *= split.parts;
    if (members > kMaxParts) fail_input("\"{}\": more than {} parts", text, kMaxParts);
    sharding.splits.push_back(split);
  }
  if (sharding.splits.empty()) fail_input("\"{}\" is no split; write \"whole\"", text);
  return sharding;
}

Plan make_plan(const ModelRequest& model, const Graph& whole, int64_t samples,
               const TrainingGraph& training, const Machine& machine, const Strategy& strategy) {
  check_strategy(training, machine, strategy);
  Plan plan;
  plan.model = model;
  plan.model_fingerprint = fingerprint(whole);
  plan.machine = machine;
  plan.machine_fingerprint = fingerprint(machine);
  plan.samples = samples;
  plan.strategy = strategy;
  plan.strategy.shardings.clear();
  plan.strategy.ops.clear();
  for (size_t i = 0; i < strategy.ops.size(); ++i) {
    const Sharding& sharding = strategy.shardings[static_cast<size_t>(strategy.ops[i])];
    const std::string text =
        sharding_to_text(sharding, loops_of(training.graph, training.graph.ops[i]));
    if (plan.splits.empty() || plan.splits.back().split != text)
      plan.splits.push_back({i, 0, text});
    ++plan.splits.back().count;
  }
  return plan;
}

Strategy strategy_of(const Plan& plan, const TrainingGraph& training) {
  Strategy strategy = plan.strategy;
  strategy.shardings.clear();
  strategy.ops.clear();
  std::map<Sharding, int32_t> known;
  for (const ShardingRun& run : plan.splits) {
    if (run.count > training.forward_ops - std::min(run.first, training.forward_ops))
      fail_input("plan: it splits ops up to {}, the model has {}", run.first + run.count,
                 training.forward_ops);
    for (size_t i = run.first; i < run.first + run.count; ++i) {
      const Op& op = training.graph.ops[i];
      Sharding sharding;
      try {
        sharding = sharding_from_text(run.split, loops_of(training.graph, op));
      } catch (const Error& error) {
        throw error.within(fmt::format("plan: op {} \"{}\"", i, op.name));
      }
      const auto [entry, fresh] =
          known.try_emplace(sharding, static_cast<int32_t>(strategy.shardings.size()));
      if (fresh) strategy.shardings.push_back(sharding);
      strategy.ops.push_back(entry->second);
    }
  }
  check_strategy(training, plan.machine, strategy);
  return strategy;
}

void check_model(const Plan& plan, const Graph& whole) {
  const uint64_t found = fingerprint(whole);
  if (found != plan.model_fingerprint)
    fail_input(
        "plan: it was made for another model: for \"{}\" with fingerprint {}, this one has {}; the "
        "file or the flags have changed{}; plan again",
        plan.model.source, format_fingerprint(plan.model_fingerprint), format_fingerprint(found),
        plan.strategy.packs ? ", or it is of packs that were priced by layers" : "");
}

void check_machine(const Plan& plan, const Machine& machine) {
  const uint64_t found = fingerprint(machine);
  if (found != plan.machine_fingerprint)
    fail_input(
        "plan: it was made for another machine: \"{}\" with fingerprint {}, but \"{}\" has {}; "
        "plan "
        "again, or leave the machine out to use the plan's own",
        plan.machine.name, format_fingerprint(plan.machine_fingerprint), machine.name,
        format_fingerprint(found));
}

}  // namespace windlass
