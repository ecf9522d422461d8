#include "windlass/plan/degrees.h"

#include <algorithm>
#include <array>
#include <map>
#include <tuple>
#include <vector>

#include <fmt/format.h>

#include "windlass/base/text.h"
#include "windlass/strategy/used_devices.h"

namespace windlass {
namespace {

// Parts of one op: samples, channels, positions, experts, copies.
using OpDegrees = std::array<int64_t, 5>;
enum : size_t { kSamples, kChannels, kPositions, kExperts, kCopies };

// Which of them a loop of an op is. Outputs have samples first and channels last, with positions
// between; of attention, heads come before positions.
size_t what_is(const Graph& graph, const Op& op, const LoopNest& nest, int32_t loop,
               int32_t batch_loop) {
  if (loop < 0) return kCopies;
  if (loop == batch_loop) return kSamples;
  if (nest.loops[static_cast<size_t>(loop)].name == "expert") return kExperts;
  if (op.outputs.empty() || nest.outputs.empty()) return kChannels;
  const OperandMap& map = nest.outputs.front();
  const auto axis = std::ranges::find(map, loop, &AxisMap::loop) - map.begin();
  const auto rank = static_cast<ptrdiff_t>(graph[op.outputs.front()].type.shape.size());
  if (axis >= rank) return kChannels;  // reduced
  if (op.kind == OpKind::Attention) return axis == 1 && rank == 4 ? kChannels : kPositions;
  const bool positions = op.kind == OpKind::Linear || op.kind == OpKind::MatMul;
  return positions && rank == 3 && axis == 1 ? kPositions : kChannels;
}

void add_splits(const TrainingGraph& training, const BatchAxes& batch, const Strategy& strategy,
                Degrees& degrees) {
  // Weights tell channels from positions: attention may be split by heads either way.
  std::map<OpDegrees, double> work, with_weights;
  double all = 0;
  for (size_t i = 0; i < strategy.ops.size(); ++i) {
    const Op& op = training.graph.ops[i];
    const LoopNest nest = loops_of(training.graph, op);
    const Sharding& sharding = strategy.shardings[static_cast<size_t>(strategy.ops[i])];
    const int32_t samples = i < batch.loop.size() ? batch.loop[i] : -1;
    OpDegrees parts = {1, 1, 1, 1, 1};
    for (const Split& split : sharding.splits) {
      const size_t what =
          split.parts > 1 ? what_is(training.graph, op, nest, split.loop, samples) : kCopies;
      parts[what] *= split.parts;
      if (what == kSamples && !split.sizes.empty()) degrees.even = false;
    }
    // Ops without products decide where there are no others.
    const Arithmetic arithmetic = arithmetic_of(training.graph, op);
    const double weight = arithmetic.flops().value + 1e-6 * arithmetic.pointwise + 1e-9;
    work[parts] += weight;
    all += weight;
    if (std::ranges::any_of(op.inputs, [&](TensorId id) {
          return id.valid() && training.graph[id].role == TensorRole::Weight;
        }))
      with_weights[parts] += weight;
  }
  if (work.empty()) return;
  const auto most = std::ranges::max_element(with_weights.empty() ? work : with_weights, {},
                                             [](const auto& entry) { return entry.second; });
  degrees.dp = most->first[kSamples];
  degrees.tp = most->first[kChannels];
  degrees.cp = most->first[kPositions];
  degrees.copies = most->first[kCopies];
  for (const auto& [parts, share] : work) degrees.ep = std::max(degrees.ep, parts[kExperts]);
  // Replicas that share the experts have samples of their own elsewhere.
  degrees.dp *= most->first[kExperts];
  if (degrees.dp % degrees.ep != 0) degrees.ep = 1;
  // The experts of an op are on the replicas that have its samples elsewhere.
  const auto alike = [](const OpDegrees& parts) {
    return std::tuple(parts[kSamples] * parts[kExperts], parts[kChannels], parts[kPositions],
                      parts[kCopies]);
  };
  double like_most = 0;
  for (const auto& [parts, share] : work)
    if (alike(parts) == alike(most->first) &&
        (parts[kExperts] == 1 || parts[kExperts] == degrees.ep))
      like_most += share;
  degrees.share = like_most / all;
}

void add_saved(const TrainingGraph& training, const Strategy& strategy, Degrees& degrees) {
  for (size_t s = 0; s < strategy.saved.size(); ++s) {
    const int64_t bytes = training.saved[s].bytes.value * strategy.micro_batches;
    degrees.saved += bytes;
    switch (strategy.saved[s]) {
      case MemoryAction::Keep:
      case MemoryAction::Regather: break;
      case MemoryAction::Recompute: degrees.recomputed += bytes; break;
      case MemoryAction::Offload: degrees.offloaded += bytes; break;
      case MemoryAction::Compress8:
      case MemoryAction::Compress4:
      case MemoryAction::Compress2: degrees.compressed += bytes; break;
    }
  }
}

void add_weights(const TrainingGraph& training, const Strategy& strategy, Degrees& degrees) {
  const size_t first = training.forward_ops + training.backward_ops;
  degrees.zero_least = strategy.weights.empty() ? 0 : 3;
  for (size_t u = 0; u < strategy.weights.size(); ++u) {
    const Residency& home = strategy.weights[u];
    const int64_t bytes =
        byte_size(training.graph[training.graph.ops[first + u].inputs[0]].type).value;
    degrees.weights += bytes;
    if (home.host) degrees.host_weights += bytes;
    if (home.host_update) degrees.host_updates += bytes;
    degrees.zero = std::max<int>(degrees.zero, home.zero);
    degrees.zero_least = std::min<int>(degrees.zero_least, home.zero);
  }
}

std::string share_text(int64_t part, int64_t whole) {
  if (part >= whole) return "all";
  const double share = 100 * static_cast<double>(part) / static_cast<double>(whole);
  return share < 1 ? "<1 %" : fmt::format("{:.0f} %", std::min(share, 99.0));
}

}  // namespace

Degrees degrees_of(const TrainingGraph& training, const BatchAxes& batch, const Strategy& strategy,
                   int64_t samples) {
  Degrees degrees;
  if (const auto& packs = strategy.packs) {
    degrees.packs = true;
    degrees.dp = packs->replicas;
    degrees.pp = packs->depth;
    degrees.micro_samples = packs->backward_microbatch;
    degrees.micro_batches = samples / (packs->replicas * packs->backward_microbatch);
    return degrees;
  }
  std::vector<int32_t> groups;
  for (const Stage& stage : strategy.stages) groups.push_back(stage.group);
  std::ranges::sort(groups);
  groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
  degrees.pp = std::max<int64_t>(1, static_cast<int64_t>(groups.size()));
  degrees.interleave =
      std::max<int64_t>(1, static_cast<int64_t>(strategy.stages.size()) / degrees.pp);
  degrees.micro_batches = strategy.micro_batches;
  add_splits(training, batch, strategy, degrees);
  if (degrees.even && samples % (strategy.micro_batches * degrees.dp) == 0)
    degrees.micro_samples = samples / (strategy.micro_batches * degrees.dp);
  add_saved(training, strategy, degrees);
  add_weights(training, strategy, degrees);
  return degrees;
}

std::string degrees_title(const Degrees& degrees) {
  std::vector<std::string> split, more;
  const auto add_split = [&](int64_t degree, std::string_view words) {
    if (degree > 1) split.push_back(fmt::format("{}{}", degree, words));
  };
  add_split(degrees.dp, "-way data parallel");
  add_split(degrees.tp, "-way tensor parallel");
  if (degrees.packs)
    split.emplace_back("packs of layers");
  else
    add_split(degrees.pp, "-stage pipeline");
  add_split(degrees.cp, "-way context parallel");
  add_split(degrees.ep, "-way expert parallel");
  add_split(degrees.copies, " copies");
  if (split.empty()) split.emplace_back("one device");
  if (!degrees.packs) {
    const auto add = [&](int64_t part, int64_t whole, std::string_view words) {
      if (part > 0 && part >= whole / 100) more.emplace_back(words);
    };
    if (degrees.zero > 0) more.push_back(fmt::format("ZeRO {}", degrees.zero));
    add(degrees.recomputed, degrees.saved, "recompute");
    add(degrees.offloaded, degrees.saved, "offload");
    add(degrees.compressed, degrees.saved, "compression");
    add(degrees.host_weights, 0, "weights on the host");
    add(degrees.host_updates, 0, "optimizer on the host");
  }
  return join(split, " x ") + (more.empty() ? "" : " with " + join(more, ", "));
}

std::string degrees_text(const Degrees& degrees) {
  std::string text = fmt::format("dp {}, tp {}, pp {}", degrees.dp, degrees.tp, degrees.pp);
  if (degrees.interleave > 1) text += fmt::format(" (x{} interleaved)", degrees.interleave);
  if (degrees.cp > 1) text += fmt::format(", cp {}", degrees.cp);
  if (degrees.ep > 1) text += fmt::format(", ep {}", degrees.ep);
  if (degrees.copies > 1) text += fmt::format(", {} devices do the same", degrees.copies);
  if (degrees.packs) {
    text += ", packs of layers";
  } else if (degrees.zero == degrees.zero_least) {
    text += fmt::format(", ZeRO {}", degrees.zero);
  } else {
    text += fmt::format(", ZeRO {}-{} by weight", degrees.zero_least, degrees.zero);
  }
  text += fmt::format(", {} micro-batch{}", degrees.micro_batches,
                      degrees.micro_batches == 1 ? "" : "es");
  if (degrees.micro_samples > 0)
    text += fmt::format(" of {} sample{} a replica", degrees.micro_samples,
                        degrees.micro_samples == 1 ? "" : "s");
  if (degrees.share < 0.995)
    text += fmt::format(" (of {:.0f} % of the arithmetic; other ops are split otherwise)",
                        100 * degrees.share);
  return text;
}

std::string memory_methods_text(const Degrees& degrees) {
  if (degrees.packs) return "packs of layers: weights stream from the host";
  std::string text;
  const auto add = [&](std::string_view what, int64_t part, int64_t whole) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what,
                        part > 0 ? share_text(part, whole) : "none");
  };
  add("recompute", degrees.recomputed, degrees.saved);
  add("offload", degrees.offloaded, degrees.saved);
  if (degrees.compressed > 0) add("compress", degrees.compressed, degrees.saved);
  text += " of what the backward pass reads";
  if (degrees.host_weights > 0)
    text +=
        fmt::format("; weights on the host {}", share_text(degrees.host_weights, degrees.weights));
  if (degrees.host_updates > 0)
    text += fmt::format("; optimizer on the host {}",
                        share_text(degrees.host_updates, degrees.weights));
  return text;
}

Utilisation utilisation_of(const SimulatedStep& step, const Machine& machine, Flops model) {
  const TaskGraph& tasks = step.tasks;
  Utilisation use;
  use.model = model;
  std::map<Precision, double> by_precision;
  double once = 0, again = 0;
  for (size_t i = 0; i < tasks.size(); ++i) {
    const Task& task = tasks.tasks[i];
    if (moves(task.kind) || task.price < 0) continue;
    const TeamId team = tasks[tasks.lanes_of(TaskId(i)).front()].team;
    if (!team.valid()) continue;
    const auto devices = static_cast<double>(tasks[team].devices.size());
    for (const Kernel& kernel : tasks.works[static_cast<size_t>(task.price)].kernels) {
      by_precision[kernel.precision] += kernel.multiply_adds * devices;
      (task.kind == TaskKind::Recompute ? again : once) += kernel.multiply_adds * devices;
    }
  }
  use.hardware = once > 0 ? model * (1 + again / once) : model;
  double most = 0;
  for (const auto& [precision, flops] : by_precision)
    if (flops > most) most = flops, use.precision = precision;
  for (const Team& team : tasks.teams)
    for (DeviceId device : team.devices) {
      const auto& peak = machine.type_of(device).peak;
      const auto found = peak.find(use.precision);
      const auto plain = peak.find(Precision::Fp32);
      if (found != peak.end())
        use.peak += found->second;
      else if (plain != peak.end())
        use.peak += plain->second;
    }
  const double could = use.peak.value * step.step_time().value;
  if (could > 0) {
    use.mfu = use.model.value / could;
    use.hfu = use.hardware.value / could;
  }
  return use;
}

}  // namespace windlass
